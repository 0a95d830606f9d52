"""`flnb.view` and the out-of-memory card in JupyterLab: any moment, any block, another capacity, a remedy's button.

The tests of this module are the chapters of one story in one browser tab; they run in the order of the file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import COUNT, change_theme, resize, run_cell
from tests.browser.waiting import eventually, redrawn

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Lab

CELLS = [
    """import time, flnb, flnb.nn as nn
from flnb.memory import Caching, HostDevice, Native

class Block(nn.Module):
    def __init__(self, i, o):
        self.conv, self.norm, self.relu = nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm(o), nn.ReLU()

    def forward(self, x):
        return self.relu(self.norm(self.conv(x)))

class Net(nn.Module):
    def __init__(self):
        self.stem, self.block1, self.block2, self.block3 = Block(1, 8), Block(8, 16), Block(16, 16), Block(16, 16)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(1024, 10))

    def forward(self, x):
        return self.head(self.block3(self.block2(self.block1(self.stem(x)))))

flnb.manual_seed(0)
manager = Native(HostDevice("64MiB"))
flnb.set_memory_manager(manager)
images = flnb.random.normal((64, 1, 8, 8))

def step():
    with flnb.step():
        net.zero_grad()
        net(images).sum().backward()

with flnb.record("blocks", grad_interval=0) as run:
    net = Net()
    for _ in range(3):
        step()
    scratch = flnb.zeros((512, 512)) + 1.0
    kept = flnb.memory.block_of(scratch._values())
    manager.user_lock(kept)
    del scratch
    for _ in range(20):
        flnb.zeros((512,)) + 1.0
        time.sleep(0.005)
    manager.user_unlock(kept)
    step()""",
    "flnb.view(run, model=net, step=step)",
    "flnb.view(run, flnb.memory.rerun(run, 'buddy'))",
    """with flnb.record("too much"):
    flnb.set_memory_manager(Caching(HostDevice("48MiB")))
    kept = [flnb.zeros((3 << 18,))]
    gaps = [flnb.zeros((3 << 18,))]
    probe = flnb.zeros((3 << 18,))
    gaps.append(flnb.zeros((3 << 18,)))
    kept += [flnb.zeros((8 << 18,)), flnb.zeros((18 << 18,))]
    gaps.clear()
    flnb.zeros((9 << 18,))""",
]


@pytest.fixture(scope="module")
def notebook(lab: Lab, page: Page) -> Page:
    """A page with the cells above, the first two run."""
    lab.write("view.ipynb", *CELLS)
    lab.open(page, "view.ipynb")
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    page.wait_for_function(f"() => {COUNT} === {len(CELLS)}")
    run_cell(page, 0, wait=True)
    run_cell(page, 1, wait=True)
    page.wait_for_function("() => window.__flnb?.whole", timeout=60_000)
    root(page).scroll_into_view_if_needed()
    root(page).get_by_role("tab", name="Memory").click()
    redrawn(page)
    return page


def root(page: Page) -> Locator:
    return page.locator(".fl-root").first


def canvas(page: Page, name: str) -> dict[str, float]:
    box: Any = root(page).locator(f"canvas[aria-label{name}]:visible").first.bounding_box()
    return box  # type: ignore[no-any-return]


def test_a_view_that_runs_hides_its_picture(notebook: Page) -> None:
    picture = "document.querySelector('.jp-RenderedImage img')"
    eventually(notebook, f"{picture}?.naturalWidth > 600", True)
    eventually(notebook, f"getComputedStyle({picture}).display", "none")
    assert root(notebook).is_visible()


def value(page: Page, expression: str) -> Any:
    return page.evaluate(f"() => window.__flnb.{expression}")


@pytest.mark.timeout(240)
def test_any_moment_of_the_run(notebook: Page) -> None:
    page = notebook
    box = canvas(page, '^="Memory by category"')
    seen = []
    for share in (0.3, 0.5, 0.8):
        before = value(page, "cursor")
        page.mouse.click(box["x"] + share * box["width"], box["y"] + 80)
        eventually(page, "window.__flnb.cursor", lambda now, before=before: now != before)
        state = value(page, "view")
        assert sum(state["categories"]) + state["waste"] == state["allocated"]
        seen.append((value(page, "cursor"), state["allocated"]))
    assert [t for t, _ in seen] == sorted({t for t, _ in seen})
    assert len({allocated for _, allocated in seen}) > 1
    root(page).locator("canvas:focus").press("ArrowLeft")
    eventually(page, "window.__flnb.cursor", lambda now: now < seen[-1][0])  # at the event before


@pytest.mark.timeout(120)
def test_a_block_tells_its_tensor_its_op_its_node_and_its_life(notebook: Page) -> None:
    page = notebook
    root(page).get_by_role("button", name="Peak").click()
    root(page).locator('canvas[aria-label*="segments with"]:visible').first.focus()
    for _ in range(40):  # from block to block, to one that an op of the tape made
        before = value(page, "selection")
        page.keyboard.press("ArrowRight")
        eventually(page, "window.__flnb.selection", lambda now, before=before: now != before)
        if value(page, "selection?.node") and value(page, "selection?.scope"):
            break
    side = root(page).get_by_label("Selected block")
    side.get_by_text("Life").wait_for()
    for what in ("Tensor", "Op", "Scope", "Tape node", "Requested", "Age", value(page, "selection.op")):
        eventually(page, side.inner_text, lambda text, what=what: what in text)
    side.get_by_role("button", name="Tape").click()
    eventually(page, "window.__flnb.tab", "tape")
    root(page).get_by_role("tab", name="Memory").click()
    box = canvas(page, '*="segments with"')
    page.mouse.click(box["x"] + 200, box["y"] + 14)
    eventually(page, "window.__flnb.selection?.kind", lambda kind: kind in ("block", "segment"))
    page.keyboard.press("Escape")
    eventually(page, "window.__flnb.selection", None)


@pytest.mark.timeout(120)
def test_what_is_pending_under_a_lock_is_marked(notebook: Page) -> None:
    page = notebook
    page.keyboard.press("f")
    box = canvas(page, '^="Memory by category"')
    seen = []
    for share in range(5, 100, 5):
        before = value(page, "cursor")
        page.mouse.click(box["x"] + 48 + share / 100 * (box["width"] - 58), box["y"] + 80)
        eventually(page, "window.__flnb.cursor", lambda now, before=before: now != before)
        seen.append(tuple(value(page, "view.locked").values()))
    assert {(0, 0), (1, 1)} <= set(seen), "in one stretch of the run: its array is gone, the lock holds it"
    assert (1, 0) not in seen, "it was locked with an array for microseconds only, and never again"
    root(page).get_by_text("pending", exact=True).first.wait_for()


@pytest.mark.timeout(180)
def test_a_smaller_device_is_proposed_for_and_the_step_run_so(notebook: Page, screenshots: Path) -> None:
    page = notebook
    line = root(page).get_by_role("slider", name="Capacity")
    chart = canvas(page, '^="Memory by category"')
    box: Any = line.bounding_box()
    page.mouse.move(box["x"] + 150, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, chart["y"] + 0.45 * chart["height"], steps=6)
    page.mouse.up()
    panel = root(page).get_by_role("region", name="What if the device had less")
    panel.get_by_role("button", name="Apply").wait_for()
    proposed = panel.locator("td:nth-child(2)")
    remedies = {"recompute", "offload"}
    eventually(page, proposed.all_inner_texts, lambda texts: remedies & {text.strip() for text in texts})
    asked = line.get_attribute("aria-valuetext")
    line.press("ArrowUp")
    eventually(page, lambda: line.get_attribute("aria-valuetext"), lambda now: now != asked)
    panel.get_by_role("button", name="Apply").click()
    panel.get_by_text("measured").wait_for()
    rows = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in panel.locator("tr:has(th[scope=row])").all()
    }
    predicted, measured = (float(rows[name][0].split()[0]) for name in ("predicted", "measured"))
    assert measured == pytest.approx(predicted, rel=0.02)
    root(page).screenshot(path=screenshots / "view-capacity.png")
    line.press("Delete")
    panel.wait_for(state="hidden")
    assert not page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(240)
def test_pictures_in_both_themes_and_widths(notebook: Page, screenshots: Path) -> None:
    page = notebook
    line = root(page).get_by_role("slider", name="Capacity")
    for _ in range(5):
        line.press("PageDown")
    root(page).get_by_role("region", name="What if the device had less").get_by_role("button", name="Apply").wait_for()
    for theme in ("Light", "Dark"):
        change_theme(page, theme)
        for width in (1200, 900):
            resize(page, root(page), width)
            for by in ("Scope", "Op", "Category"):
                root(page).get_by_role("radio", name=by, exact=True).click()
                redrawn(page)
                root(page).screenshot(path=screenshots / f"view-{by.lower()}-{theme.lower()}-{width}.png")
            overflow = root(page).evaluate("element => element.scrollWidth - element.clientWidth")
            assert overflow <= 1
    change_theme(page, "Light")
    page.set_viewport_size({"width": 1400, "height": 1000})


@pytest.mark.timeout(120)
def test_two_managers_stand_beside_each_other(notebook: Page, screenshots: Path) -> None:
    page = notebook
    run_cell(page, 2, wait=True)
    page.wait_for_function("() => window.__flnbPair?.whole", timeout=60_000)
    pair = page.locator(".fl-compare")
    pair.scroll_into_view_if_needed()
    box: Any = pair.locator('canvas[aria-label^="Memory by category"]').first.bounding_box()
    before = page.evaluate("() => window.__flnbPair.cursors")
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 60)
    here, there = eventually(page, "window.__flnbPair.cursors", lambda now: now != before)
    assert here == pytest.approx(there)
    pair.screenshot(path=screenshots / "view-pair.png")
    assert not page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(120)
def test_a_remedy_is_applied_by_its_button(notebook: Page, screenshots: Path) -> None:
    page = notebook
    run_cell(page, 3, wait=True)
    card = page.locator(".flnb-oom")
    card.wait_for()
    card.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    card.screenshot(path=screenshots / "oom-card.png")
    before = page.evaluate(f"() => {COUNT}")
    remedy = card.locator("tr", has=page.locator("button")).filter(has_text="del probe")
    remedy.get_by_role("button", name="Apply").focus()
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => {COUNT} === {before + 1}")
    page.wait_for_function("() => document.querySelector('.flnb-oom button').isConnected")
    cells = page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.content.widgets.map(cell => cell.model.sharedModel.getSource())"
    )
    assert cells[4] == "del probe", "below the cell that failed"
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.content.widgets[4].model.executionCount !== null", timeout=20_000
    )
    said = remedy.get_by_role("status").filter(has_text="Run the cell that failed again. Line to paste before the one")
    said.wait_for()
    text = said.inner_text()
    assert text.startswith("caching has ")
    live, _, failed = (float(number) for number in re.findall(r"(\S+) MiB", text))
    assert live == pytest.approx(failed - 3, abs=0.11), "what the kernel counted"
    remedy.get_by_role("button", name="In a cell").click()
    page.wait_for_function(f"() => {COUNT} === {before + 2}")
    assert said.inner_text() == text, "it stays"
    card.screenshot(path=screenshots / "oom-card-applied.png")
    assert not page.flnb_errors  # type: ignore[attr-defined]
