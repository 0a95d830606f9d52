"""The quickstart in JupyterLab, as a person sees it: live while the training cell is busy, linked, and good-looking.

The tests of this module are the chapters of one story in one browser tab; they run in the order of the file.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import change_theme, resize
from tests.browser.waiting import eventually, redrawn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Lab

# One number for everything that is drawn on the dashboard's canvases.
PICTURE = """() => [...document.querySelectorAll('.fl-root canvas')].map(canvas => {
    if (!canvas.width || !canvas.height || !canvas.offsetParent) return 0;
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    let hash = 0;
    for (let i = 0; i < data.length; i += 4) hash = (hash * 31 + data[i] + 7 * data[i + 1] + 13 * data[i + 2]) | 0;
    return hash;
})"""

# The names of visible canvases that hold nothing, or one colour alone.
BLANK = """() => [...document.querySelectorAll('.fl-root canvas')].filter(canvas => {
    if (!canvas.offsetParent || canvas.closest('.fl-sparkcell')) return false;
    const data = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return data.every(pixel => pixel === data[0]);
}).map(canvas => canvas.getAttribute('aria-label') || 'a canvas')"""


WATCHED = "watched.txt"  # appears in the notebook's folder when the training has been looked at


def trains_until_watched(notebook: str) -> str:
    """The quickstart with a training that is busy, on a machine of any speed, for as long as these tests look at it."""
    for old, new in (
        ("epochs=40)", "epochs=1000)"),
        ('for _ in progress(range(epochs), \\"epochs\\"):', 'for epoch in progress(range(epochs), \\"epochs\\"):'),
        (
            '"        for images, labels in batches:\\n"',
            f"\"        if epoch >= 40 and __import__('os').path.exists('{WATCHED}'): break\\n\",\n"
            '    "        for images, labels in batches:\\n"',
        ),
    ):
        assert notebook.count(old) == 1, f"the quickstart has changed: {old} is there {notebook.count(old)} times"
        notebook = notebook.replace(old, new)
    return notebook


@pytest.fixture(scope="module")
def notebook(lab: Lab, page: Page, pytestconfig: pytest.Config) -> Page:
    """A page with a copy of the quickstart, connected to its kernel, with nothing run."""
    text = (pytestconfig.rootpath / "notebooks" / "quickstart.ipynb").read_text()
    (lab.folder / "quickstart.ipynb").write_text(trains_until_watched(text))
    lab.open(page, "quickstart.ipynb")
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    return page


@pytest.fixture(scope="module")
def training(notebook: Page) -> Page:
    """The notebook with all cells started, while the training cell is busy and frames arrive."""
    notebook.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    notebook.wait_for_function("() => window.__flnb?.state === 'recording'", timeout=60_000)
    notebook.wait_for_function("() => window.__flnb.step > 5")
    return notebook


def busy(page: Page) -> bool:
    """Whether the training cell is executing. (The kernel's own status flickers: each message of a widget sets it.)"""
    cell = page.locator(".jp-CodeCell", has_text='flnb.record("digits-cnn")').first
    return "*" in (cell.locator(".jp-InputPrompt").text_content() or "")


def value(page: Page, expression: str) -> Any:
    """A field of the dashboard's read-only test object."""
    return page.evaluate(f"() => window.__flnb.{expression}")


def dashboard(page: Page) -> Locator:
    """The dashboard's element."""
    return page.locator(".fl-root").first


@pytest.mark.timeout(240)
def test_while_the_cell_is_busy_the_dashboard_lives(training: Page, screenshots: Path) -> None:
    page = training
    assert busy(page), "the training cell ended before it could be watched"
    dashboard(page).scroll_into_view_if_needed()
    redrawn(page)
    picture, events = page.evaluate(PICTURE), _events(page)
    began, updates = time.monotonic(), value(page, "updates")
    page.wait_for_function("before => window.__flnb.updates >= before + 20", arg=updates, timeout=30_000)
    rate = (value(page, "updates") - updates) / (time.monotonic() - began)
    assert busy(page)
    eventually(page, "window.__flnb.events", lambda now: now > events)

    def moved(after: Any) -> bool:
        return len(after) >= 3 and sum(a != b for a, b in zip(picture, after, strict=False)) >= 2

    eventually(page, PICTURE, moved)
    assert value(page, "dropped") == 0
    print(f"{rate:.1f} updates/s while the cell is busy")


def _events(page: Page) -> int:
    return int(value(page, "events"))


@pytest.mark.timeout(120)
def test_pause_freezes_within_three_tenths_of_a_second_and_resume_goes_on(training: Page) -> None:
    page = training
    if not busy(page):
        pytest.fail("the training cell ended before it could be paused")
    dashboard(page).locator(".fl-pause").click()
    page.wait_for_timeout(300)  # what had arrived is drawn by then
    eventually(page, "window.__flnb.paused", True)
    updates, picture, frames = value(page, "updates"), page.evaluate(PICTURE), value(page, "frames")
    page.wait_for_timeout(1000)
    assert value(page, "updates") == updates
    assert page.evaluate(PICTURE) == picture
    eventually(page, "window.__flnb.frames", lambda now: now > frames)  # recording goes on behind the pause
    dashboard(page).locator(".fl-pause").click()
    page.wait_for_function("before => window.__flnb.updates > before + 5", arg=updates, timeout=10_000)
    assert value(page, "paused") is False
    eventually(page, PICTURE, lambda now: now != picture)
    assert busy(page)


@pytest.mark.timeout(120)
def test_a_picture_for_the_readme_while_the_cell_is_busy(training: Page, screenshots: Path) -> None:
    page = training
    page.wait_for_function("() => window.__flnb.step > 200")
    dashboard(page).evaluate("element => element.closest('.jp-Cell').scrollIntoView({block: 'start'})")
    redrawn(page)
    assert busy(page)
    page.screenshot(path=screenshots / "jupyterlab-training.png")


@pytest.mark.timeout(300)
def test_the_whole_notebook_runs_without_an_error(lab: Lab, training: Page) -> None:
    page = training
    (lab.folder / WATCHED).touch()
    page.wait_for_function(
        "() => [...document.querySelectorAll('.jp-InputPrompt')].every(mark => !mark.textContent.includes('*'))",
        timeout=240_000,
    )
    errors = page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr'], .jp-RenderedText")
    failed = [text for text in errors.all_inner_texts() if "Traceback" in text]
    assert not failed, failed[0]
    dashboard(page).scroll_into_view_if_needed()
    swaps = dashboard(page).locator(".fl-meta[title*='manager caching → best-fit'][title*='→ caching']")
    swaps.wait_for(state="attached")  # the loop at the end swapped its manager, and the dashboard says when
    assert (swaps.get_attribute("title") or "").count(" → ") == 3
    assert page.flnb_errors == []  # type: ignore[attr-defined]


@pytest.mark.timeout(120)
def test_a_click_on_an_op_marks_it_in_tape_and_memory(training: Page) -> None:
    page = training
    root = dashboard(page)
    root.scroll_into_view_if_needed()
    root.get_by_role("tab", name="Overview").click()
    redrawn(page)
    before = page.evaluate(PICTURE)
    root.locator("tr").filter(has=page.get_by_text("conv2d_bias", exact=True)).first.click()
    eventually(page, "window.__flnb.selection?.op", "conv2d_bias")
    redrawn(page)
    marked = page.evaluate(PICTURE)
    changed = [index for index, (a, b) in enumerate(zip(before, marked, strict=True)) if a != b]
    assert len(changed) >= 2, f"only canvases {changed} show the selection; tape and memory should"
    page.keyboard.press("Escape")
    eventually(page, "window.__flnb.selection", None)


@pytest.fixture
def light_again(training: Page) -> Iterator[None]:
    """Leave the page as it was found."""
    size = training.viewport_size
    yield
    assert size is not None
    training.set_viewport_size(size)
    change_theme(training, "Light")


@pytest.fixture
def trained_again(lab: Lab, training: Page) -> None:
    """The training cell run once more, because a long run gives better pictures than the notebook's last one."""
    (lab.folder / WATCHED).touch()
    training.evaluate(
        """() => {
            const notebook = window.jupyterapp.shell.currentWidget.content;
            const trains = cell => cell.model.sharedModel.getSource().includes('record("digits-cnn")');
            notebook.activeCellIndex = notebook.widgets.findIndex(trains);
            window.jupyterapp.commands.execute('notebook:run-cell');
        }"""
    )
    training.wait_for_function("() => window.__flnb.state === 'recording'")
    training.wait_for_function("() => window.__flnb.state === 'finished'", timeout=180_000)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("light_again", "trained_again")
def test_every_view_in_both_themes_and_widths(training: Page, screenshots: Path) -> None:
    page = training
    root = dashboard(page)
    names = root.get_by_role("tab").all_inner_texts()
    assert {"Overview", "Ops", "Memory", "Tape", "Metrics"} <= {name.strip() for name in names}
    for theme in ("Light", "Dark"):
        change_theme(page, theme)
        for width in (1200, 900):
            resize(page, root, width)
            for name in names:
                root.get_by_role("tab", name=name).click()
                root.scroll_into_view_if_needed()
                redrawn(page)
                root.screenshot(path=screenshots / f"{name.strip().lower()}-{theme.lower()}-{width}.png")
                overflow = page.evaluate(
                    "() => { const e = document.querySelector('.fl-root'); return e.scrollWidth - e.clientWidth }"
                )
                assert overflow <= 1, f"{name} at {width} px overflows by {overflow} px"
    assert page.flnb_errors == []  # type: ignore[attr-defined]


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("light_again")
def test_a_change_of_theme_leaves_no_canvas_of_the_overview_blank(training: Page) -> None:
    """JupyterLab hides the page for a moment while it changes its theme; the window keeps its size here."""
    page = training
    dashboard(page).get_by_role("tab", name="Overview").click()
    redrawn(page)
    eventually(page, BLANK, [])
    for theme in ("Dark", "Light", "Dark"):
        change_theme(page, theme)
        redrawn(page)
        eventually(page, page.locator(".fl-root .fl-chart canvas").count, lambda count: count >= 3)
        eventually(page, BLANK, [])


@pytest.mark.timeout(120)
def test_after_a_reload_the_page_shows_the_run_again(training: Page) -> None:
    """The kernel keeps the recording; a new page asks for it with a hello and gets a keyframe."""
    page = training
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save') }")
    page.reload()
    page.wait_for_function("() => window.__flnb?.events > 0", timeout=60_000)
    eventually(page, "window.__flnb.state", "finished")
