"""A dashboard and a view of a finished run in Notebook 7, whose page is another than JupyterLab's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import KERNEL, TOKEN, choose_tab
from tests.browser.pixels import pixels_of
from tests.browser.test_truth import run_cell

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab

if not os.environ.get("FLNB_REQUIRE_BROWSER"):  # then it must be there
    pytest.importorskip("notebook")

CELLS = [
    "import flnb\nflnb.dashboard(height=420)",
    """w = flnb.Variable(flnb.ones((64, 64)))
with flnb.record("in Notebook 7") as run:
    for _ in range(5):
        with flnb.step():
            flnb.tanh(w @ w).sum().backward()""",
    "flnb.widgets.Ops(run, height=300)",
]


@pytest.mark.timeout(120)
def test_a_live_dashboard_and_a_view_are_shown(lab: Lab, page: Page, screenshots: Path) -> None:
    lab.write("seven.ipynb", *CELLS)
    stacks: list[str] = []
    page.on("pageerror", lambda error: stacks.append(error.stack or str(error)))
    page.set_viewport_size({"width": 1200, "height": 1000})
    page.goto(f"{lab.url}notebooks/seven.ipynb?token={TOKEN}")
    page.wait_for_function(f"() => {KERNEL}?.connectionStatus === 'connected'", timeout=60_000)
    assert page.evaluate("() => window.jupyterapp.name") == "Jupyter Notebook"
    run_cell(page, 0)
    whole = page.locator(".fl-root").first
    whole.wait_for(timeout=60_000)
    run_cell(page, 1)
    page.wait_for_function("() => window.__flnb.state === 'finished' && window.__flnb.step === 4")
    whole.scroll_into_view_if_needed()
    choose_tab(page, "Ops")
    whole.locator("tr[data-name=tanh]:visible").wait_for()
    choose_tab(page, "Timeline")
    page.wait_for_function("() => window.__flnb.view?.rows?.some(row => row.kind === 'op' && row.events > 10)")
    assert pixels_of(page, whole.locator("canvas:visible").first)["colours"] > 5
    page.screenshot(path=screenshots / "notebook7.png")
    run_cell(page, 2)
    page.locator(".fl-root").nth(1).locator("tr[data-name=tanh]:visible").wait_for()
    # Notebook's settings log an error of their own; a widget's code is in a blob.
    assert [stack for stack in stacks if "blob:" in stack or "/static/notebook/" not in stack] == []
    page.evaluate("async () => { await window.jupyterapp.shell.currentWidget.sessionContext.shutdown() }")
