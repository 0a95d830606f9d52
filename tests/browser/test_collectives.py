"""Ranks of a notebook under a live dashboard: the one whose loading becomes slow is named with that reason, at once.

The tests of this module are the chapters of one story in one browser tab; they run in the order of the file. Its ranks
are threads; `test_distributed.py` has MPI processes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

import flnb
from flnb import distributed
from tests.browser.conftest import choose_tab, photograph, resize, run_cell
from tests.browser.stage import Stage
from tests.browser.waiting import eventually, redrawn

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Lab

SLOW = 2
CELLS = [
    "import time\nfrom pathlib import Path\nimport flnb\nfrom flnb import distributed, nn\n"
    "for name in ('slow', 'stop', 'hang'):\n    Path(name).unlink(missing_ok=True)\n"
    "flnb.dashboard(height=680)",
    # rank 2 loads slowly as soon as there is a file of that name
    "def train():\n"
    "    layers = [nn.Linear(96, 96) for _ in range(6)]\n"
    "    model = distributed.DataParallel(nn.Sequential(*layers), bucket=80_000)\n"
    "    optimizer = flnb.optim.SGD(model.parameters(), lr=0.01)\n"
    "    stop = 0.0\n"
    "    while stop == 0.0:\n"
    "        with flnb.step():\n"
    "            with flnb.scope('data.take'):\n"
    f"                time.sleep(0.1 if distributed.rank() == {SLOW} and Path('slow').exists() else 0.002)\n"
    "                x = flnb.ones((64, 96))\n"
    "            loss = (model(x) ** 2).mean()\n"
    "            loss.backward()\n"
    "            optimizer.step()\n"
    "            optimizer.zero_grad()\n"
    "        stop = distributed.all_reduce(flnb.full((1,), float(Path('stop').exists()))).item()\n"
    f"    while distributed.rank() == {SLOW} and Path('hang').exists():\n"
    "        time.sleep(0.05)\n"
    "    distributed.barrier()\n"
    "    model.close()\n"
    "with flnb.record('ranks') as run:\n"
    "    distributed.run_threads(4, train)\n"
    "print('done', run.collectives.who()[0]['scope'])",
    "def mismatched():\n"
    "    for _ in range(3):\n"
    "        with flnb.step():\n"
    "            distributed.all_reduce(flnb.ones(1024))\n"
    "    distributed.all_reduce(flnb.ones(1024, dtype='int32' if distributed.rank() == 1 else 'float32'))\n"
    "with flnb.record('mismatch'):\n"
    "    distributed.run_threads(4, mismatched)",
]
BUCKETS = {"18\u202f720": "3 … 5 · 5 params", "18\u202f624": "1 … 3 · 4 params", "18\u202f528": "0, 1 · 3 params"}
"""What each of the three holds, the last gradients first; any of them may be the one that was waited for most."""
WHY = ".fl-why"


@pytest.fixture(scope="module")
def notebook(lab: Lab, page: Page) -> Page:
    """A page whose ranks train under a live dashboard."""
    lab.write("collectives.ipynb", *CELLS)
    page.set_viewport_size({"width": 1400, "height": 1000})
    lab.open(page, "collectives.ipynb")
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    run_cell(page, 0)
    dashboard(page).wait_for(timeout=60_000)
    assert not dashboard(page).locator("[role=tab]", has_text="Collectives").is_visible(), "there are no ranks yet"
    run_cell(page, 1)
    choose_tab(page, "Collectives")
    page.wait_for_function("() => window.__flnb.view?.steps.length > 3", timeout=20_000)
    dashboard(page).scroll_into_view_if_needed()
    return page


def dashboard(page: Page) -> Locator:
    return page.locator(".fl-root").first


def probe(page: Page) -> dict[str, Any]:
    """What the view tells of itself."""
    found: dict[str, Any] = page.evaluate("() => window.__flnb.view")
    return found


@pytest.mark.timeout(240)
def test_the_slowed_rank_is_named_with_its_reason(notebook: Page, lab: Lab) -> None:
    page = notebook
    eventually(page, "window.__flnb.view?.ranks", 4)
    (lab.folder / "slow").touch()
    named = dashboard(page).locator(WHY, has_text=f"Rank {SLOW} was last").filter(has_text="in data.take")
    named.wait_for(timeout=20_000)
    first = dashboard(page).locator(".fl-late tbody tr").first.locator("td")
    eventually(page, lambda: [cell.strip() for cell in first.all_inner_texts()][::4], [str(SLOW), "data.take"])


@pytest.mark.timeout(120)
def test_keys_go_from_call_to_call_and_to_the_late_rank(notebook: Page) -> None:
    page = notebook
    dashboard(page).locator(".fl-timeline canvas").focus()
    page.keyboard.press("r")
    page.wait_for_function("() => window.__flnb.selection?.kind === 'collective' && window.__flnb.view.call")
    eventually(page, "window.__flnb.paused", True)  # else the window of steps goes on
    eventually(page, "window.__flnb.view.call.late", SLOW)
    here = probe(page)["call"]["seq"]
    page.keyboard.press("j")
    page.wait_for_function("here => window.__flnb.view.call.seq > here", arg=here)
    page.keyboard.press("k")
    page.wait_for_function("here => window.__flnb.view.call.seq === here", arg=here)
    dashboard(page).locator(".fl-statusleft", has_text="all_reduce").wait_for()
    facts = dashboard(page).locator(".fl-callside .fl-pairs")
    eventually(
        page,
        facts.inner_text,
        lambda text: any(elements in text and held in text for elements, held in BUCKETS.items()),
    )
    achieved = dashboard(page).locator(".fl-achieved")
    for _ in range(20):  # known of calls for which a rank stood still until their end
        redrawn(page)
        if achieved.count():
            break
        page.keyboard.press("k")
    achieved.filter(has_text="measured peak").wait_for()


@pytest.mark.timeout(120)
def test_wheel_and_drag_move_the_one_time_range(notebook: Page) -> None:
    page = notebook
    place = probe(page)["place"]
    shown = probe(page)["shown"]
    middle = place["x"] + place["width"] / 2, place["y"] + 120
    page.mouse.move(*middle)
    page.mouse.wheel(0, -300)
    page.wait_for_function(
        "old => window.__flnb.view.shown.t1 - window.__flnb.view.shown.t0 < 0.8 * (old.t1 - old.t0)", arg=shown
    )
    zoomed = probe(page)["shown"]
    page.mouse.down()
    page.mouse.move(middle[0] + 100, middle[1], steps=4)
    page.mouse.up()
    page.wait_for_function("old => window.__flnb.view.shown.t0 < old.t0", arg=zoomed)
    panned = probe(page)["shown"]
    assert panned["t1"] - panned["t0"] == pytest.approx(zoomed["t1"] - zoomed["t0"])
    page.keyboard.press("r")


@pytest.mark.timeout(120)
def test_the_table_has_the_same_calls(notebook: Page) -> None:
    page = notebook
    dashboard(page).locator("[aria-label='Collectives as a table']").click()
    rows = dashboard(page).locator("section[aria-label=Collectives] .fl-data tbody tr")
    eventually(page, lambda: rows.count() - min(2000, probe(page)["rows"]), 0)
    eventually(page, rows.all_inner_texts, lambda texts: any("in data.take" in text for text in texts))
    dashboard(page).locator("[aria-label='Collectives as a table']").click()


@pytest.mark.timeout(180)
def test_pictures(notebook: Page, screenshots: Path) -> None:
    page = notebook
    photograph(page, dashboard(page), screenshots, "collectives")
    resize(page, dashboard(page), 1200)


@pytest.mark.timeout(120)
def test_a_rank_that_does_not_come_is_named_while_the_call_hangs(notebook: Page, lab: Lab, screenshots: Path) -> None:
    page = notebook
    page.keyboard.press("Escape")
    dashboard(page).locator(".fl-recbar button", has_text="Live").click()
    (lab.folder / "hang").touch()
    (lab.folder / "stop").touch()
    stuck = dashboard(page).locator(".fl-stucktext", has_text=f"rank {SLOW} has not come")
    stuck.wait_for(timeout=20_000)
    dashboard(page).locator(WHY, has_text=f"Rank {SLOW} has not come").wait_for()
    redrawn(page)
    dashboard(page).screenshot(path=screenshots / "collectives-stuck.png")
    (lab.folder / "hang").unlink()
    page.wait_for_function("() => window.__flnb.state === 'finished'", timeout=30_000)
    stuck.wait_for(state="hidden")
    page.locator(".jp-OutputArea-output", has_text="done data.take").wait_for(timeout=20_000)
    assert not page.flnb_errors


@pytest.mark.timeout(120)
def test_a_call_that_does_not_match_shows_which_ranks_called_what(notebook: Page, screenshots: Path) -> None:
    page = notebook
    run_cell(page, 2)
    page.locator(".fl-run", has_text="mismatch").first.wait_for(state="attached", timeout=20_000)
    page.wait_for_function("() => window.__flnb.state === 'failed'", timeout=30_000)
    choose_tab(page, "Collectives")
    dashboard(page).scroll_into_view_if_needed()
    eventually(page, dashboard(page).locator(WHY).inner_text, lambda why: why.startswith("Rank 1 made another call"))
    rows = dashboard(page).locator("section[aria-label='What each rank does'] .fl-scroll tbody tr")
    waits, differs = ["waits", "all_reduce float32[1024]"], ["✕ differs", "all_reduce int32[1024]"]
    calls = [waits, differs, waits, waits]
    eventually(page, lambda: [row.split("\t")[1:3] for row in rows.all_inner_texts()], calls)
    redrawn(page)
    dashboard(page).screenshot(path=screenshots / "collectives-mismatch.png")


def few_steps() -> None:
    for number in range(6):
        with flnb.step():
            with flnb.scope("data.take"):
                time.sleep(0.08 if distributed.rank() == 17 and number > 2 else 0.001)
            distributed.all_reduce(flnb.ones(1000))


@pytest.mark.timeout(180)
def test_of_many_ranks_there_is_a_summary_and_a_lane_of_the_worst(page: Page, screenshots: Path) -> None:
    """Of a recording that has ended; it is shown without a kernel."""
    with flnb.record("many ranks") as run:
        distributed.run_threads(36, few_steps)
    stage = Stage(page)
    stage.view(run)
    page.locator("[role=tab]", has_text="Collectives").click()
    page.locator("section[aria-label='All ranks']").wait_for()
    eventually(page, "window.__flnb.view?.ranks", 36)
    why = eventually(page, page.locator(WHY).inner_text, lambda why: why.startswith("Rank 17 was last"))
    assert "in data.take" in why
    rows = page.locator(".fl-late tbody tr")
    eventually(page, rows.count, 8)
    eventually(page, rows.first.inner_text, lambda row: row.startswith("17"))
    rows.first.click()
    page.wait_for_function("() => window.__flnb.view.selected >= 0")
    redrawn(page)
    page.screenshot(path=screenshots / "collectives-many.png")
