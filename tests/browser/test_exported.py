"""A notebook that nbconvert exports: without a network or a kernel, every view of flnb is a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.pixels import pixels_of

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
nbconvert = pytest.importorskip("nbconvert")

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Locator, Page

CELLS = (
    "import flnb\nflnb.dashboard()",
    'with flnb.record("kept", grad_interval=0) as run:\n'
    "    x = flnb.Variable(flnb.ones((64, 64)))\n    (flnb.exp(x) @ x).sum().backward()",
    "flnb.view(run)",
    "run.tape",
    "flnb.plot.memory(run)",
    "import ipywidgets\nipywidgets.VBox([flnb.widgets.Timeline(run), ipywidgets.HBox([flnb.widgets.Ops(run)])])",
    "flnb.memory.tune(run)",
    "flnb.program(f) if [f := flnb.jit(lambda x: x * 2.0 + 1.0), f(run and flnb.ones(3)), f(flnb.ones(3))] else None",
)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_exported_page_shows_a_picture_of_every_view_offline(page: Page, tmp_path: Path) -> None:
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    nbclient.NotebookClient(made, timeout=120, kernel_name="python3").execute()
    body, _ = nbconvert.HTMLExporter().from_notebook_node(made)
    (tmp_path / "notebook.html").write_text(body, encoding="utf-8")
    page.context.set_offline(True)
    try:
        page.goto((tmp_path / "notebook.html").as_uri(), wait_until="domcontentloaded")
        counts = [ink_of(page, cell) for cell in page.locator(".jp-CodeCell").all()]
    finally:
        page.context.set_offline(False)
    for source, pixels in zip(CELLS, counts, strict=True):
        assert (pixels > 300) == (not source.startswith("with")), (source, pixels)


def ink_of(page: Page, cell: Locator) -> int:
    """How many pixels of a cell's outputs differ from their background."""
    outputs = [
        one
        for one in cell.locator(".jp-OutputArea-output").all()
        if (one.bounding_box() or {"height": 0})["height"] > 4
    ]
    return sum(pixels_of(page, one)["ink"] for one in outputs)
