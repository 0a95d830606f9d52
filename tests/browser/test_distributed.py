"""Ranks in JupyterLab, on real MPI processes: a stuck cell is interrupted, the ranks go on, nothing is left behind.

The tests of this module are the chapters of one story in one browser tab; they run in the order of the file.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import choose_tab
from tests.browser.conftest import run_cell as run
from tests.browser.test_collectives import WHY, dashboard
from tests.browser.waiting import redrawn
from tests.distributed.test_cluster import assert_nothing_is_left, left_behind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab

pytest.importorskip("ipyparallel")
pytest.importorskip("mpi4py")

SLOW = 2
CELLS = [
    "%load_ext flnb\nimport flnb\ncluster = flnb.distributed.Cluster(3, kind='mpi')",
    "%%ranks\nimport time\nimport flnb\nfrom flnb import distributed\n"
    "print('begins')\n"
    "if distributed.rank() == 0:\n    time.sleep(100)\n"
    "distributed.all_reduce(flnb.ones(4))",
    "%%ranks\ndistributed.all_reduce(flnb.ones(1)).item() + distributed.rank()",
    "from pathlib import Path\nfor name in ('slow', 'stop'):\n    Path(name).unlink(missing_ok=True)\n"
    "flnb.dashboard(height=560)",
    # rank 2 loads slowly as soon as there is a file of that name
    "%%ranks\nfrom pathlib import Path\nfrom flnb import nn\n"
    "model = distributed.DataParallel(nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96)), bucket=40_000)\n"
    "optimizer = flnb.optim.SGD(model.parameters(), lr=0.01)\n"
    "stop = 0.0\n"
    "while not stop:\n"
    "    with flnb.step():\n"
    "        with flnb.scope('data.take'):\n"
    f"            time.sleep(0.15 if distributed.rank() == {SLOW} and Path('slow').exists() else 0.02)\n"
    "            x = flnb.ones((64, 96))\n"
    "        (model(x) ** 2).mean().backward()\n"
    "        optimizer.step()\n"
    "        optimizer.zero_grad()\n"
    "    stop = distributed.all_reduce(flnb.full((1,), float(Path('stop').exists()))).item()\n"
    "print('stopped by', stop)",
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


def output(page: Page, cell: int, text: str) -> None:
    """Wait until a cell's output contains a text."""
    outputs = page.locator(".jp-CodeCell").nth(cell).locator(".jp-OutputArea-output")
    outputs.filter(has_text=text).first.wait_for(timeout=60_000)


def wait_in_view(page: Page, condition: str) -> None:
    """Wait for what a dashboard shows: it draws only where it can be seen, and JupyterLab scrolls to running cells."""
    from playwright.sync_api import TimeoutError

    for _ in range(20):
        dashboard(page).scroll_into_view_if_needed()
        with suppress(TimeoutError):
            page.wait_for_function(condition, timeout=2_000)
            return
    raise AssertionError(f"not so within 40 s: {condition}; shown is {page.evaluate('() => window.__flnb')}")


@pytest.mark.timeout(240)
def test_the_stop_button_ends_a_cell_that_is_stuck_in_a_collective_call(notebook: Page, screenshots: Path) -> None:
    page = notebook
    run(page, 1)
    for rank in range(3):
        output(page, 1, f"rank {rank}: begins")
    page.wait_for_timeout(1500)  # two ranks wait for the third
    began = time.monotonic()
    page.locator(".jp-Toolbar-item[data-jp-item-name=interrupt]").click()
    output(page, 1, "KeyboardInterrupt: rank 0: line 7, time.sleep(100)")
    took = time.monotonic() - began
    print("KeyboardInterrupt after", round(took, 2), "s")
    assert took < 30, "the cell would have ended by itself"
    page.screenshot(path=screenshots / "ranks-interrupted.png")


@pytest.mark.timeout(120)
def test_the_ranks_go_on_after_the_interrupt(notebook: Page, screenshots: Path) -> None:
    page = notebook
    run(page, 2)
    for rank in range(3):
        output(page, 2, f"rank {rank}: {3.0 + rank}")
    page.screenshot(path=screenshots / "ranks-after.png")
    assert not page.flnb_errors


@pytest.mark.timeout(240)
def test_a_process_that_loads_slowly_is_named_with_that_reason(notebook: Page, lab: Lab, screenshots: Path) -> None:
    page = notebook
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    run(page, 3)
    dashboard(page).wait_for(timeout=30_000)
    run(page, 4)
    choose_tab(page, "Collectives")
    wait_in_view(page, "() => window.__flnb.view?.steps.length > 3")
    wait_in_view(page, "() => window.__flnb.view?.ranks === 3")  # drawn anew, it is empty
    began = time.monotonic()
    (lab.folder / "slow").touch()
    named = dashboard(page).locator(WHY, has_text=f"Rank {SLOW} was last").filter(has_text="in data.take")
    named.wait_for(timeout=20_000)
    took = time.monotonic() - began
    redrawn(page)
    page.screenshot(path=screenshots / "ranks-late.png")
    print("named after", round(took, 2), "s")
    (lab.folder / "stop").touch()
    for rank in range(3):
        output(page, 4, f"rank {rank}: stopped by ")
    assert not page.flnb_errors
