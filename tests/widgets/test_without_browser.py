"""A notebook that runs where no browser is (nbconvert, a schedule): the picture of the run stays in the file."""

from __future__ import annotations

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("anywidget")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_dashboard_leaves_the_last_runs_picture_behind() -> None:
    cells = ["import flnb\nflnb.dashboard()", 'with flnb.record("kept"):\n    flnb.add(flnb.ones((8, 8)), 1.0)']
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert "application/vnd.jupyter.widget-view+json" in output.data
    html = output.data["text/html"]
    assert "kept" in html
    assert "<svg" in html
    assert "<script" not in html
