"""A notebook that runs where no browser is (nbconvert, a schedule): the picture of the run stays in the file."""

from __future__ import annotations

from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("anywidget")
CELLS = (
    "import flnb\nflnb.dashboard()",
    'with flnb.record("kept"):\n    flnb.add(flnb.ones((8, 8)), 1.0)',
)


def notebook() -> Any:
    """A notebook of these cells that has run."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    nbclient.NotebookClient(made, timeout=120, kernel_name="python3").execute()
    return made


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_dashboard_leaves_the_last_runs_picture_behind() -> None:
    picture, widget = notebook().cells[0].outputs
    assert "application/vnd.jupyter.widget-view+json" in widget.data
    html = picture.data["text/html"]
    assert "kept" in html
    assert "<svg" in html
    assert "<script" not in html
