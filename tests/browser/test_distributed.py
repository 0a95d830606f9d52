"""Ranks in JupyterLab, on real MPI processes: a stuck cell is interrupted, the ranks go on, nothing is left behind.

The tests of this module are the chapters of one story in one browser tab; they run in the order of the file.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.distributed.test_cluster import assert_nothing_is_left, left_behind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab

pytest.importorskip("ipyparallel")
pytest.importorskip("mpi4py")

CELLS = [
    "%load_ext flnb\nimport flnb\ncluster = flnb.distributed.Cluster(3, kind='mpi')",
    "%%ranks\nimport time\nimport flnb\nfrom flnb import distributed\n"
    "print('begins')\n"
    "if distributed.rank() == 0:\n    time.sleep(100)\n"
    "distributed.all_reduce(flnb.ones(4))",
    "%%ranks\ndistributed.all_reduce(flnb.ones(1)).item() + distributed.rank()",
]


@pytest.fixture(scope="module")
def notebook(lab: Lab, page: Page) -> Iterator[Page]:
    """A page with the cells above, of which the first was run."""
    before = left_behind()
    lab.write("ranks.ipynb", *CELLS)
    lab.open(page, "ranks.ipynb")
    run(page, 0)
    output(page, 0, "3 ranks, MPI processes")
    yield page
    page.evaluate("async () => { await window.jupyterapp.shell.currentWidget.sessionContext.shutdown() }")
    assert_nothing_is_left(before)


def run(page: Page, cell: int) -> None:
    """Run a cell and do not wait for it."""
    page.evaluate(
        """cell => {
            window.jupyterapp.shell.currentWidget.content.activeCellIndex = cell;
            void window.jupyterapp.commands.execute('notebook:run-cell');
        }""",
        cell,
    )


def output(page: Page, cell: int, text: str) -> None:
    """Wait until a cell's output contains a text."""
    outputs = page.locator(".jp-CodeCell").nth(cell).locator(".jp-OutputArea-output")
    outputs.filter(has_text=text).first.wait_for(timeout=60_000)


@pytest.mark.timeout(240)
def test_the_stop_button_ends_a_cell_that_is_stuck_in_a_collective_call(notebook: Page, screenshots: Path) -> None:
    page = notebook
    run(page, 1)
    for rank in range(3):
        output(page, 1, f"rank {rank}: begins")
    page.wait_for_timeout(1500)  # two ranks wait for the third
    began = time.monotonic()
    page.locator(".jp-Toolbar-item[data-jp-item-name=interrupt]").click()
    output(page, 1, "KeyboardInterrupt: rank 0: line 6, time.sleep(100)")
    took = time.monotonic() - began
    print("KeyboardInterrupt after", round(took, 2), "s")
    assert took < 2
    page.screenshot(path=screenshots / "ranks-interrupted.png")


@pytest.mark.timeout(120)
def test_the_ranks_go_on_after_the_interrupt(notebook: Page, screenshots: Path) -> None:
    page = notebook
    run(page, 2)
    for rank in range(3):
        output(page, 2, f"rank {rank}: {3.0 + rank}")
    page.screenshot(path=screenshots / "ranks-after.png")
    assert not page.flnb_errors
