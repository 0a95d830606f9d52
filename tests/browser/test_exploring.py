"""Exploring in JupyterLab: a report that selects in the dashboard, an op in a cell, tensors that show themselves.

The tests of this module are the chapters of one story in one browser tab; they run in the order of the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import COUNT, change_theme
from tests.browser.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.conftest import Lab

CELLS = [
    "import numpy as np, flnb, flnb.nn as nn\nflnb.dashboard()",
    "net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))\n"
    'with flnb.record("explored", inputs=True) as run:\n'
    "    flnb.tanh(net(flnb.random.normal((5, 1, 8, 8)))).sum().backward()",
    "class Faulty(flnb.backends.NumpyBackend):\n"
    "    def tanh(self, x, out=None):\n"
    "        return np.multiply(np.tanh(x), 1.01, out)\n"
    "images = flnb.random.normal((5, 1, 8, 8))\n"
    'flnb.compare_backends(lambda: flnb.tanh(net(images)), ["numpy", Faulty])',
    "images",
    "net",
    "flnb.ones((2, 3)) @ flnb.ones((2, 3))",
]


@pytest.fixture(scope="module")
def notebook(lab: Lab, page: Page) -> Page:
    """A page with the cells above, all run."""
    lab.write("exploring.ipynb", *CELLS)
    lab.open(page, "exploring.ipynb")
    page.evaluate("async () => { await window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.wait_for_function("() => window.__flnb?.state === 'finished'", timeout=60_000)
    return page


@pytest.mark.timeout(240)
def test_a_click_on_an_op_of_a_report_selects_it_in_the_dashboard(notebook: Page) -> None:
    page = notebook
    failed = page.locator(".jp-OutputArea-output tr", has_text="failed")
    eventually(page, failed.count, 1)
    failed.locator("button").click()
    page.wait_for_function("() => window.__flnb.tab === 'tape' && window.__flnb.selection?.kind === 'node'")
    assert page.evaluate("() => window.__flnb.selection.op") == "tanh"
    page.wait_for_function(
        """() => {
            const [box] = window.__flnb.view.targets.filter(({ row, name }) => row === 'forward' && name === 'tanh');
            const canvas = document.querySelector('.fl-root [role=tabpanel]:not([hidden]) canvas');
            const { left, right, top } = canvas.getBoundingClientRect();
            return box && left <= box.x && box.x + box.width <= right && 0 <= top && top < innerHeight;
        }"""
    )
    page.locator(".jp-OutputArea-output tr", has_text="maximum").locator(
        "button"
    ).click()  # of relu, whose node has all
    page.wait_for_function("() => window.__flnb.selection?.op === 'maximum' && window.__flnb.tab === 'ops'")
    page.locator(".jp-OutputArea-output tr", has_text="matmul").locator("button").click()  # in a module
    page.wait_for_function("() => window.__flnb.tab === 'tape' && window.__flnb.selection?.scope === 'sequential.3'")
    assert page.evaluate("() => window.__flnb.selection.node > 0")
    failed.locator("button").click()
    page.wait_for_function("() => window.__flnb.tab === 'tape' && window.__flnb.selection?.kind === 'node'")
    assert not page.flnb_errors


@pytest.mark.timeout(120)
def test_an_op_of_the_dashboard_opens_in_a_cell_and_repeats_its_bits(notebook: Page, screenshots: Path) -> None:
    page = notebook
    before = page.evaluate(f"() => {COUNT}")
    page.locator(".fl-root [role=tab]", has_text="Ops").first.click()
    page.locator(".fl-opener").click()
    page.wait_for_function(f"() => {COUNT} === {before + 1}")
    page.locator(".fl-sheet", has_text="in the new cell below").wait_for()
    page.screenshot(path=screenshots / "exploring-sheet.png")
    page.locator(".fl-sheet button", has_text="Close").click()
    made = page.locator(".jp-InputArea-editor", has_text="flnb.explore.inputs_of")
    eventually(page, made.text_content, lambda text: "tanh" in (text or ""))
    made.click()
    page.evaluate("async () => { await window.jupyterapp.commands.execute('notebook:run-cell') }")
    page.locator(".jp-OutputArea-output", has_text="the same bits as recorded: True").wait_for()


@pytest.mark.timeout(120)
def test_tensors_and_modules_show_themselves(notebook: Page, screenshots: Path) -> None:
    page = notebook
    shown = page.locator(".jp-OutputArea-output img[alt^='image']")
    eventually(page, shown.count, lambda count: count >= 5)
    shown.first.scroll_into_view_if_needed()
    tree = page.locator(".jp-OutputArea-output summary", has_text="Conv2d")
    tree.click()
    weight = page.locator(".jp-OutputArea-output summary", has_text="weight float32[4,1,3,3]")
    weight.wait_for()
    eventually(page, weight.text_content, lambda text: "gradient norm" in (text or ""))
    page.screenshot(path=screenshots / "exploring-light.png")
    change_theme(page, "Dark")
    page.screenshot(path=screenshots / "exploring-dark.png")
    change_theme(page, "Light")  # the next tests find the settings as they were
    assert not page.flnb_errors


@pytest.mark.timeout(120)
def test_an_error_of_flnb_shows_the_line_of_the_cell_alone(notebook: Page) -> None:
    page = notebook
    error = page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]').last
    error.filter(has_text="frames of flnb and IPython left out: %tb shows all").wait_for()
    text = error.inner_text()
    assert "inner extents must agree" in text
    assert "----> 1 flnb.ones((2, 3)) @ flnb.ones((2, 3))" in text
    assert "flnb/ops" not in text
