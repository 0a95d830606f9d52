"""The Timeline of a run that goes on in a notebook, with events that are no longer in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import choose_tab
from tests.browser.test_timeline import HEADING, RIGHT

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab

CELLS = [
    "import time, flnb\nfrom flnb import nn, optim\nfrom flnb_telemetry.live.timeline import LiveTimeline\n"
    "LiveTimeline.__init__.__defaults__ = (600,)  # few events in memory, so that a short run has older ones\n"
    "flnb.dashboard(height=680)",
    """with flnb.use_backend("numpy"):
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
    optimizer = optim.SGD(model.parameters(), lr=1e-2)
    x, y = flnb.randn(128, 64), flnb.asarray([i % 10 for i in range(128)])
    with flnb.record("training", path="training.flnb"):
        for _ in range(600):
            with flnb.step():
                optimizer.zero_grad()
                loss = flnb.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
            time.sleep(0.02)
print("done")""",
]


@pytest.mark.timeout(240)
def test_in_a_notebook_the_lanes_follow_the_run(lab: Lab, page: Page, screenshots: Path) -> None:
    lab.write("timeline.ipynb", *CELLS)
    page.set_viewport_size({"width": 1400, "height": 1000})
    lab.open(page, "timeline.ipynb")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.locator(".fl-root").first.wait_for(timeout=90_000)
    page.wait_for_function("() => window.__flnb?.step > 2", timeout=90_000)
    choose_tab(page, "Timeline")
    page.wait_for_function("() => window.__flnb.view?.steps.length > 1", timeout=30_000)
    last = page.evaluate("() => window.__flnb.view.steps.at(-1)")
    page.wait_for_function("last => window.__flnb.view.steps.at(-1) !== last", arg=last, timeout=30_000)
    page.wait_for_function("() => window.__flnb.view.steps.at(-1).startsWith('after step ')")  # what has no step yet
    page.wait_for_function(  # of the steps in sight but the newest few, every op is there
        """() => {
            const {rows, steps} = window.__flnb.view;
            return rows.some(row => row.kind === "op" && row.events >= 10 * (steps.length - 2)) && steps.length > 4;
        }"""
    )
    page.screenshot(path=screenshots / "timeline-notebook.png")
    older(page, screenshots)
    assert not page.flnb_errors  # type: ignore[attr-defined]


def older(page: Page, screenshots: Path) -> None:
    """Zoom into a step that the kernel must read from the recording's folder, and click on an op of it."""
    page.wait_for_function("() => window.__flnb.step > 60", timeout=60_000)
    canvas = page.locator(".fl-timeline canvas")
    canvas.focus()
    page.keyboard.press("f")  # from the newest six steps to the whole run
    page.wait_for_function("() => window.__flnb.view.shown.t0 === 0")
    view = page.evaluate("() => window.__flnb.view")
    middle = view["place"]["x"] + HEADING + (view["place"]["width"] - HEADING - RIGHT) / 2
    page.mouse.click(middle, view["place"]["y"] + 8)
    page.wait_for_function("() => window.__flnb.cursor !== null")
    page.keyboard.press("[")  # the cursor goes to the middle of a step; W and S zoom about it
    page.wait_for_function("() => window.__flnb.selection?.kind === 'step'")
    for _ in range(40):
        length = page.evaluate("() => window.__flnb.view.shown.t1 - window.__flnb.view.shown.t0")
        if length < 20:
            break
        page.keyboard.press("w")
        page.wait_for_function("t => window.__flnb.view.shown.t1 - window.__flnb.view.shown.t0 < t", arg=length)
    page.wait_for_function(  # events that were read have numbers above those in memory
        """() => {
            const {said, rows} = window.__flnb.view;
            const every = !said.includes("reading") && !said.includes("levels");
            return every && rows.some(row => row.kind === "op" && row.events > 15);
        }"""
    )
    view, cursor = page.evaluate("() => [window.__flnb.view, window.__flnb.cursor]")
    share = (1e3 * cursor - view["shown"]["t0"]) / (view["shown"]["t1"] - view["shown"]["t0"])
    x = view["place"]["x"] + HEADING + share * (view["place"]["width"] - HEADING - RIGHT)
    op = [row["kind"] for row in view["rows"]].index("op")
    y = view["place"]["y"] + view["tops"][0][op]
    for right in sorted(range(-600, 601, 6), key=abs):  # a step may have long pauses without any op
        page.mouse.move(x + right, y)
        if canvas.evaluate("canvas => canvas.style.cursor") == "pointer":
            page.mouse.click(x + right, y)
            break
    else:
        pytest.fail(f"no op in {view['shown']}")
    page.wait_for_function("() => window.__flnb.view.selected !== null")
    page.wait_for_timeout(1500)
    assert page.evaluate("() => window.__flnb.view.selected.number") >= 2**32
    page.screenshot(path=screenshots / "timeline-older.png")
