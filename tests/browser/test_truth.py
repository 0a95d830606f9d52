"""The live dashboard shows what is so: whole tapes, the one op where a NaN begins, the parts that ran.

The tests of this module are the chapters of one story in one browser tab; they run in the order of the file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.conftest import run_cell
from tests.browser.waiting import eventually, redrawn

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab

CELLS = [
    "import time, flnb\nw = flnb.Variable([0.5, -0.25, 0.125, 1.0])\nw.name = 'w'\nflnb.dashboard(height=520)",
    # each gradient comes 0.3 s after the one before
    'with flnb.record("slow") as run, flnb.step():\n'
    "    x = w\n"
    "    for _ in range(4):\n"
    "        x = flnb.tanh(x * w + 0.1)\n"
    "        x.register_hook(lambda g: time.sleep(0.3))\n"
    "    x.sum().backward()\n"
    "print('run.tape', len(run.tape.nodes))",
    'with flnb.record("nan") as run:\n'
    "    for i in range(30):\n"
    "        with flnb.step():\n"
    "            x = w\n"
    "            for k in range(40):\n"
    "                with flnb.scope(f'layer{k}'):\n"
    "                    x = flnb.tanh(x * w)\n"
    "                if k == 20 and i == 12:\n"
    "                    x = x + flnb.sqrt(w * 0.0)\n"
    "            x.sum().backward()\n"
    "            time.sleep(0.01)\n"
    "print('run.tape', run.tape.index)",
    'with flnb.record("parts"):\n'
    "    with flnb.use_memory_manager('native'):\n"
    "        for _ in range(20): flnb.ones((64, 64)) + 1.0\n"
    "print('done')",
]


@pytest.fixture(scope="module")
def notebook(lab: Lab, page: Page) -> Page:
    """A page with the cells above, of which the first is run."""
    lab.write("truth.ipynb", *CELLS)
    page.set_viewport_size({"width": 1400, "height": 1000})
    lab.open(page, "truth.ipynb")
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    run_cell(page, 0)
    page.locator(".fl-root").first.wait_for(timeout=60_000)
    return page


def recorded(page: Page, name: str) -> None:
    """Run the cell that records this and look at the tape when it has ended."""
    run_cell(page, next(i for i, cell in enumerate(CELLS) if f'record("{name}")' in cell))
    page.locator(".fl-run", has_text=name).first.wait_for(state="attached", timeout=20_000)
    page.wait_for_function("() => window.__flnb.state === 'finished'", timeout=60_000)
    page.locator(".fl-root [role=tab]", has_text="Tape").first.click()
    page.locator(".fl-root").first.scroll_into_view_if_needed()
    redrawn(page)


def header(page: Page) -> str:
    """The line in the header of the Tape view."""
    return str(page.locator("section.fl-panel[aria-label=Tape]:visible .fl-sub").first.inner_text())


def table(page: Page) -> list[list[str]]:
    """The Tape view as a table: the rows without the heads."""
    button = page.locator("[aria-label='Tape as a table']:visible").first
    button.click()
    shown = page.locator("section.fl-panel[aria-label=Tape]:visible tbody tr")
    shown.first.wait_for()
    rows: Any = shown.evaluate_all("rows => rows.map(row => [...row.cells].map(cell => cell.textContent))")
    button.click()
    return [list(map(str, row)) for row in rows]


@pytest.mark.timeout(240)
def test_gradients_that_come_slowly_are_one_tape(notebook: Page, screenshots: Path) -> None:
    page = notebook
    recorded(page, "slow")
    page.locator(".jp-OutputArea-output pre", has_text="run.tape 13").wait_for()
    eventually(page, "window.__flnb.view.count", 13)
    eventually(page, lambda: header(page), lambda said: "13 nodes" in said)
    page.locator("button[title='Open all modules']:visible").first.click()
    ops = [*["multiply", "add", "tanh"] * 4, "sum"]
    rows = eventually(page, lambda: table(page), lambda rows: [row[1] for row in rows] == ops)
    assert all(row[7] not in ("–", "NaN") for row in rows), "a norm is missing"
    page.screenshot(path=screenshots / "truth-slow.png")


@pytest.mark.timeout(240)
def test_a_nan_between_two_samples_is_marked_and_in_view(notebook: Page, screenshots: Path) -> None:
    page = notebook
    recorded(page, "nan")
    page.locator(".jp-OutputArea-output pre", has_text="run.tape 12").wait_for()
    eventually(page, lambda: header(page), lambda said: said.startswith("step 12 · NaN begins at sqrt"))
    aside = page.locator("aside:visible").first
    text = eventually(page, aside.inner_text, lambda text: text.upper().startswith("NAN BEGINS AT"))
    assert "sqrt" in text.splitlines()[1]
    colours = page.locator("aside:visible").first.evaluate(
        "side => ['.fl-rowlist .fl-unitright', '.fl-sub, .fl-dim, .fl-none'].map("
        "name => getComputedStyle(side.querySelector(name)).color)"
    )
    assert colours[0] != colours[1], "the first of the list is red"
    canvas = page.locator("canvas[aria-label^='Tape graph']:visible").first.bounding_box()
    assert canvas is not None
    boxes = "window.__flnb.view.targets.filter(box => box.name === 'sqrt')"
    found = eventually(page, boxes, lambda boxes: len(boxes) == 2)  # its forward and its backward
    for box in found:
        assert canvas["x"] <= box["x"]
        assert box["x"] + box["width"] <= canvas["x"] + canvas["width"]
    eventually(page, lambda: [row[1] for row in table(page) if row[7] == "NaN begins"], ["sqrt"])
    page.screenshot(path=screenshots / "truth-nan.png")
    newest = page.locator("section.fl-panel[aria-label=Tape]:visible button[title^='Show the newest']").first
    if newest.is_visible():  # another backward was measured after it
        newest.click()
        page.wait_for_function(
            "() => !document.querySelector('canvas[aria-label^=\"Tape graph\"]').ariaLabel.includes('step 12')"
        )
        eventually(page, lambda: header(page), lambda said: "NaN" not in said)


@pytest.mark.timeout(240)
def test_the_header_names_the_parts_that_ran(notebook: Page, screenshots: Path) -> None:
    page = notebook
    recorded(page, "parts")
    parts = r"cpu · native · .* · oneDNN 3\.\S+, \w+, \d+ threads? \(OpenMP\); NumPy \S+, "
    eventually(page, page.locator(".fl-meta").first.text_content, lambda meta: re.match(parts, meta or ""))
    page.screenshot(path=screenshots / "truth-parts.png")
    assert page.flnb_errors == []  # type: ignore[attr-defined]
