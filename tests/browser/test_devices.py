"""Devices under a dashboard: the emulated one, of which order and counts are shown and no times.

The first tests show a recording that has ended; the last ones are a notebook whose device works under a live dashboard.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry.analysis.devices import EMULATED

import flnb
from tests.browser.conftest import ROOT, choose_tab, photograph
from tests.browser.stage import Stage
from tests.browser.waiting import eventually, redrawn

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Locator, Page

    from tests.browser.conftest import Lab

if shutil.which("g++") is None and "CI" not in os.environ:
    pytest.skip("g++ is not installed", allow_module_level=True)

CELLS = [
    f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom pathlib import Path\nimport flnb\n"
    "Path('stop-devices').unlink(missing_ok=True)\nflnb.dashboard(height=680)",
    "from tests.testing.cuda.training import trained\n"
    "run = trained(until=lambda: Path('stop-devices').exists())\n"
    "print('done', len(run.devices) > 100)",
]


@pytest.fixture(scope="module")
def run() -> Any:
    from tests.testing.cuda.training import trained

    return trained(steps=3, seed=17)


@pytest.fixture(scope="module")
def stage(page: Page) -> Stage:
    return Stage(page)


def probe(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate("() => window.__flnb.view")
    return found


def opened(page: Page) -> None:
    page.locator("[role=tab]", has_text="Devices").click()
    page.wait_for_function("() => window.__flnb.view?.rows > 0")
    redrawn(page)


@pytest.mark.timeout(180)
def test_a_recording_shows_the_order_in_which_an_emulated_device_ran(stage: Stage, run: Any) -> None:
    page = stage.page
    stage.view(run)
    opened(page)
    eventually(page, page.locator(".fl-badge").inner_text, EMULATED)
    eventually(page, page.locator(".fl-devicenote .fl-sub").inner_text, "equal slots · random order, seed 17")
    found, shown = run.devices, probe(page)
    assert (shown["axis"], shown["rows"], shown["streams"]) == ("order", len(found), 2)
    assert shown["steps"] == [0, 1, 2]
    page.locator(".fl-timeline canvas").focus()
    names = []
    for _ in range(8):
        page.keyboard.press("]")
        page.wait_for_function("names => window.__flnb.view.task?.seq !== names.at(-1)?.seq", arg=names)
        names.append(probe(page)["task"])
    rows = [found.task["seq"].tolist().index(task["seq"]) for task in names]
    assert np.diff(rows).tolist() == [1] * 7
    assert [task["ran"] for task in names] == found.task["slot"][rows].tolist()
    kernels = [run.catalog.kernels.items[number].name for number in found.task["kernel"][rows]]
    assert [task["name"] for task in names] == [name or "copy to the device" for name in kernels]
    last = run.catalog.kernels.items[found.task["kernel"][rows[-1]]]
    launch = f"[{', '.join(map(str, last.grid))}] × [{', '.join(map(str, last.block))}]"
    page.locator(".fl-callside", has_text=launch).wait_for()
    assert not page.locator(".fl-callside dt", has_text="Time").count(), "its durations are not real"


@pytest.mark.timeout(120)
def test_a_freed_block_names_the_event_that_it_waits_for(stage: Stage, screenshots: Path) -> None:
    from tests.testing.cuda.training import trained

    run, page = trained(steps=3, order="lazy"), stage.page
    task, block = run.devices.task, run.devices.block
    row = np.flatnonzero((block["until"] > 0) & (block["event"] > 0))[0]
    inside = (task["t1"] > block["end"][row]) & (task["t1"] < block["until"][row])
    wanted = task["seq"][inside][0]
    stage.view(run)
    opened(page)
    page.locator(".fl-timeline canvas").focus()
    for _ in range(len(task["seq"])):
        before = (probe(page)["task"] or {"seq": 0})["seq"]
        page.keyboard.press("[" if before > wanted else "]")
        page.wait_for_function("before => (window.__flnb.view.task?.seq ?? 0) !== before", arg=before)
        if probe(page)["task"]["seq"] == wanted:
            break
    assert probe(page)["task"]["seq"] == wanted
    eventually(page, "window.__flnb.view.waiting", [f"batch.from_numpy waits for e{block['event'][row]}"])
    redrawn(page)
    page.screenshot(path=screenshots / "devices-waits.png")
    page.locator("[aria-label='Block map as a table']").click()
    rows = page.locator("section[aria-label='Block map'] .fl-data tbody tr")
    eventually(page, rows.count, probe(page)["blocks"])
    page.locator("[aria-label='Block map as a table']").click()


@pytest.mark.timeout(120)
def test_occupancy_is_shown_where_a_driver_has_told_it(
    stage: Stage, run: Any, tmp_path: Path, screenshots: Path
) -> None:
    run.save(tmp_path / "run.flnb")
    told, page = flnb.load_run(tmp_path / "run.flnb"), stage.page
    launched = [bool(kernel.grid) for kernel in told.catalog.kernels.items]
    assert any(launched)
    for at, kernel in enumerate(told.catalog.kernels.items):
        if launched[at]:  # as a GPU's driver tells it
            needs = {"registers": 96, "static": 33_792, "resident": 2, "most": 2048, "limit": "registers"}
            told.catalog.kernels.items[at] = kernel._replace(**needs, block=(256,))
    for shown, occupancy in ((run, "–"), (told, "25.0 %")):
        stage.view(shown)
        opened(page)
        page.locator(".fl-timeline canvas").focus()
        for _ in range(len(shown.devices)):
            page.keyboard.press("]")
            redrawn(page)
            if "Dynamic" in page.locator(".fl-callside").inner_text():
                break
        eventually(page, page.locator(".fl-occupancy span").last.inner_text, occupancy)
        page.screenshot(path=screenshots / f"devices-occupancy-{'known' if '%' in occupancy else 'unknown'}.png")
    eventually(page, page.locator(".fl-warpnote").inner_text, "16 of 64 warps, 2 blocks; registers limit it")


@pytest.mark.timeout(120)
def test_the_table_has_the_same_tasks(stage: Stage, run: Any) -> None:
    page = stage.page
    stage.view(run)
    opened(page)
    page.locator("[aria-label='Devices as a table']").click()
    rows = page.locator("section[aria-label=Devices] .fl-data tbody tr")
    eventually(page, rows.count, len(run.devices))
    first = [cell.strip() for cell in rows.first.locator("td").all_inner_texts()]
    assert first[0] == str(run.devices.task["seq"][0])
    assert "Ran as" in page.locator("section[aria-label=Devices] thead").inner_text()
    page.locator("[aria-label='Devices as a table']").click()


@pytest.mark.timeout(120)
def test_a_run_without_a_device_has_no_such_tab(stage: Stage) -> None:
    with flnb.record("host only") as run:
        flnb.exp(flnb.ones((64, 64)))
    stage.view(run)
    redrawn(stage.page)
    assert not stage.page.locator("[role=tab]", has_text="Devices").is_visible()
    assert not stage.page.flnb_errors


@pytest.fixture(scope="module")
def notebook(lab: Lab, page: Page) -> Page:
    """A page whose emulated device works under a live dashboard."""
    lab.write("devices.ipynb", *CELLS)
    page.set_viewport_size({"width": 1400, "height": 1000})
    lab.open(page, "devices.ipynb")
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    for number in range(2):
        page.evaluate(
            """number => {
                window.jupyterapp.shell.currentWidget.content.activeCellIndex = number;
                void window.jupyterapp.commands.execute('notebook:run-cell');
            }""",
            number,
        )
        dashboard(page).wait_for(timeout=60_000)
    return page


def dashboard(page: Page) -> Locator:
    return page.locator(".fl-root").first


@pytest.mark.timeout(240)
def test_a_live_dashboard_follows_the_device(notebook: Page) -> None:
    page = notebook
    choose_tab(page, "Devices", timeout=90_000)
    page.wait_for_function("() => window.__flnb.view?.steps.length > 3", timeout=30_000)
    before = probe(page)["steps"]
    page.wait_for_function("last => window.__flnb.view.steps.at(-1) > last", arg=before[-1], timeout=30_000)
    assert len(probe(page)["steps"]) <= 8
    page.keyboard.press("]")
    page.wait_for_function("() => window.__flnb.selection?.kind === 'task'")
    eventually(page, "window.__flnb.paused", True)  # else the window of steps goes on


@pytest.mark.timeout(180)
def test_pictures(notebook: Page, lab: Lab, screenshots: Path) -> None:
    page = notebook
    photograph(page, dashboard(page), screenshots, "devices")
    (lab.folder / "stop-devices").touch()
    page.locator(".jp-OutputArea-output", has_text="done True").wait_for(timeout=60_000)
    assert not page.flnb_errors
