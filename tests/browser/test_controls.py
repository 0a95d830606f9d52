"""Controls in JupyterLab: sliders that replay a trace, views in boxes with linked traits, a menu for a running loop.

The tests of this module are the chapters of one story in one browser tab; they run in the order of the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import COUNT
from tests.browser.waiting import eventually, redrawn

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab

CELLS = [
    """import threading, flnb, ipywidgets
from benchmarks.tune import example
from flnb.widgets import Memory, Metrics, Ops, Timeline

tuner = flnb.memory.tune(example(50_000), flnb.memory.Caching, seconds=0.1, split_limit=["1MiB", "4MiB"])
tuner""",
    """net = flnb.nn.Linear(256, 256)
with flnb.record("boxed") as run:
    for i in range(4):
        with flnb.step():
            net(flnb.ones((256, 256))).sum().backward()
            flnb.log(loss=1 / (1 + i))
ops, memory, timeline = Ops(run, height=300), Memory(run, height=300), Timeline(run, height=300)
links = [ipywidgets.link((ops, "selection"), (other, "selection")) for other in (memory, timeline)]
ops.selection = {"kind": "op", "label": "sum", "op": "sum"}  # before any of them is drawn
ipywidgets.VBox([ops, memory, timeline])""",
    """managers = {"caching": "caching", "best-fit": "best-fit"}
menu = ipywidgets.Dropdown(options=list(managers), description="manager")
served = ipywidgets.Label()
ended = threading.Event()

def swap(change):
    flnb.set_memory_manager(managers[change.new])

def loop():
    with flnb.record("swapped"):
        while not ended.wait(0.005):
            with flnb.step():
                flnb.ones((128, 128)) + 1.0
            name = flnb.dispatch.state.current().manager.name
            if served.value != name:
                served.value = name

menu.observe(swap, "value")
thread = threading.Thread(target=loop, daemon=True)
thread.start()
ipywidgets.VBox([menu, served])""",
    "flnb.dashboard(follow='swapped')",
    """ended.set()
thread.join(10)
flnb.set_memory_manager("caching")
print("ended:", not thread.is_alive(), "selection:", ops.selection)""",
]
RUN = """number => {
    const lab = window.jupyterapp;
    lab.shell.currentWidget.content.activeCellIndex = number;
    return lab.commands.execute('notebook:run-cell');
}"""
REDRAWN = """text => new Promise(resolve => {
    const began = performance.now();
    const look = () => {
        const now = [...document.querySelectorAll('.legendtext')].map(one => one.textContent).join();
        if (now !== text && now) resolve(performance.now() - began);
        else if (performance.now() - began > 20000) resolve(-1);
        else requestAnimationFrame(look);
    };
    look();
})"""


@pytest.fixture(scope="module")
def notebook(lab: Lab, page: Page) -> Page:
    """A page with the cells above, the first two run."""
    lab.write("controls.ipynb", *CELLS)
    lab.open(page, "controls.ipynb")
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    page.wait_for_function(f"() => {COUNT} === {len(CELLS)}")
    for number in range(2):
        page.evaluate(RUN, number)
    return page


def legend(page: Page) -> str:
    found: Any = page.evaluate("() => [...document.querySelectorAll('.legendtext')].map(one => one.textContent).join()")
    return str(found)


@pytest.mark.timeout(240)
def test_a_move_of_a_slider_redraws_the_figure(notebook: Page, screenshots: Path) -> None:
    page = notebook
    page.locator(".legendtext").first.wait_for()
    handle = page.locator(".noUi-handle").first
    handle.focus()
    took = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        before = legend(page)
        page.keyboard.press(key)
        took.append(page.evaluate(REDRAWN, before))
    assert min(took) > 0, "the figure was not redrawn within 20 s"
    print(f"from the slider's move to the redrawn figure, 50,000 calls: {', '.join(f'{ms:.0f} ms' for ms in took)}")
    page.get_by_text("Paste to use it").scroll_into_view_if_needed()
    pasted = page.locator("pre", has_text="set_memory_manager").last
    eventually(page, pasted.inner_text, lambda text: 'flnb.set_memory_manager("caching:split_limit=' in text)
    page.screenshot(path=screenshots / "controls-tune.png")


@pytest.mark.timeout(120)
def test_views_in_a_box_share_a_selection_by_linked_traits(notebook: Page, screenshots: Path) -> None:
    page = notebook
    ops, memory, timeline = (page.locator(".fl-root.fl-alone").nth(number) for number in range(3))
    ops.scroll_into_view_if_needed()
    for view in (ops, memory, timeline):
        view.locator(".fl-status", has_text="sum").wait_for()
    timeline.scroll_into_view_if_needed()  # out of sight it is not drawn
    timeline.get_by_text("The bars of sum stand out").wait_for()
    ops.scroll_into_view_if_needed()
    ops.get_by_text("matmul", exact=True).first.click()
    memory.locator(".fl-status", has_text="matmul").wait_for()
    timeline.scroll_into_view_if_needed()
    timeline.get_by_text("The bars of matmul stand out").wait_for()
    redrawn(page)
    page.screenshot(path=screenshots / "controls-views.png")
    assert not page.flnb_errors  # type: ignore[attr-defined]


@pytest.mark.timeout(120)
def test_a_menu_swaps_the_manager_under_a_running_loop_and_the_dashboard_marks_it(notebook: Page) -> None:
    page = notebook
    page.evaluate(RUN, 3)
    page.evaluate(RUN, 2)
    page.wait_for_function("() => window.__flnb?.state === 'recording' && window.__flnb.step > 2")
    served = page.locator(".widget-label").last
    page.locator(".widget-dropdown select").last.scroll_into_view_if_needed()
    for name in ("best-fit", "caching", "best-fit"):
        page.locator(".widget-dropdown select").last.select_option(name)
        page.wait_for_function("([element, name]) => element.textContent === name", arg=[served.element_handle(), name])
    page.locator(".fl-root").last.scroll_into_view_if_needed()  # out of sight it is not drawn
    for swap in ("best-fit → caching", "caching → best-fit"):
        page.locator(f".fl-meta[title*='manager {swap}']").wait_for(state="attached")  # while the loop runs
    page.evaluate(RUN, 4)
    page.get_by_text("ended: True selection: {'kind': 'op', 'label': 'matmul'").wait_for()
    assert not page.flnb_errors  # type: ignore[attr-defined]
