"""The notebook about ranks opens in JupyterLab and runs there to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.distributed.test_cluster import assert_nothing_is_left, left_behind

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab

CODE = "window.jupyterapp.shell.currentWidget.content.widgets.filter(cell => cell.model.type === 'code')"


@pytest.mark.timeout(300)
def test_all_cells_run(lab: Lab, page: Page, screenshots: Path, pytestconfig: pytest.Config) -> None:
    before = left_behind()
    (lab.folder / "distributed.ipynb").write_text(
        (pytestconfig.rootpath / "notebooks" / "distributed.ipynb").read_text()
    )
    lab.open(page, "distributed.ipynb")
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    errors = f"{CODE}.filter(cell => cell.model.outputs.toJSON().some(output => output.output_type === 'error'))"
    page.wait_for_function(f"() => {CODE}.at(-1).model.executionCount || {errors}.length", timeout=200_000)
    assert page.evaluate(f"() => {errors}.map(cell => cell.model.sharedModel.source)") == []
    late = page.locator(".jp-CodeCell", has_text="run.collectives.who()").first
    late.locator(".jp-OutputArea").scroll_into_view_if_needed()
    late.locator(".js-plotly-plot .main-svg").first.wait_for()
    page.screenshot(path=screenshots / "distributed-late.png")
    page.locator(".jp-OutputArea-output", has_text="CollectiveError: rank 0 ran").first.scroll_into_view_if_needed()
    page.screenshot(path=screenshots / "distributed-faults.png")
    page.locator(".jp-OutputArea-output", has_text="1024 ranks:").first.scroll_into_view_if_needed()
    page.screenshot(path=screenshots / "distributed-simulated.png")
    assert not page.flnb_errors
    page.evaluate("async () => { await window.jupyterapp.shell.currentWidget.sessionContext.shutdown() }")
    assert_nothing_is_left(before)
