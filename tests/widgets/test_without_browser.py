"""A notebook that runs where no browser is (nbconvert, a schedule): pictures of its views stay in the file."""

from __future__ import annotations

import base64
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("anywidget")
CELLS = (
    "import flnb\nflnb.dashboard()",
    'with flnb.record("kept", grad_interval=0) as run:\n'
    "    x = flnb.Variable(flnb.ones((64, 64)))\n    (flnb.exp(x) @ x).sum().backward()",
    "flnb.view(run)",
    "run.tape",
    "flnb.plot.memory(run)",
    "flnb.program(f) if [f := flnb.jit(lambda x: x * 2.0 + 1.0), f(run and flnb.ones(3)), f(flnb.ones(3))] else None",
)


INK = """async data => {
    const image = new Image();
    image.src = data;
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), {width: image.width, height: image.height});
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const pixels = new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return pixels.filter(pixel => pixel !== pixels[0]).length;
}"""
"""Counts the pixels of a picture, a data URL, that differ from its corner."""


@pytest.fixture(scope="module")
def notebook() -> Any:
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    nbclient.NotebookClient(made, timeout=120, kernel_name="python3").execute()
    return made


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_dashboard_leaves_the_last_runs_picture_behind(notebook: Any) -> None:
    picture, widget = notebook.cells[0].outputs
    assert "application/vnd.jupyter.widget-view+json" in widget.data
    html = picture.data["text/html"]
    assert "kept" in html
    assert "<svg" in html
    assert "<script" not in html


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_exported_page_shows_a_picture_of_every_view_offline(notebook: Any, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    nbconvert = pytest.importorskip("nbconvert")
    chromium = os.environ.get("FLNB_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs chromium")
    body, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    (tmp_path / "notebook.html").write_text(body, encoding="utf-8")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(offline=True).new_page()
        page.goto((tmp_path / "notebook.html").as_uri(), wait_until="domcontentloaded")
        counts = []
        for cell in page.locator(".jp-CodeCell").all():
            outputs = [one for one in cell.locator(".jp-OutputArea-output").all() if one.bounding_box()["height"] > 4]
            urls = ["data:image/png;base64," + base64.b64encode(one.screenshot()).decode() for one in outputs]
            counts.append(sum(page.evaluate(INK, url) for url in urls))
        browser.close()
    for source, pixels in zip(CELLS, counts, strict=True):
        assert (pixels > 300) == (not source.startswith("with")), (source, pixels)
