"""A notebook that runs where no browser is, such as nbconvert: each view is a picture that also GitHub shows.

GitHub removes scripts and SVG elements from HTML, and shows neither widgets nor plotly's figures. It shows PNG.
"""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import numpy as np
import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
for package in ("anywidget", "plotly", "resvg_py", "PIL"):
    pytest.importorskip(package)
VIEWS = (
    "flnb.view(run)",
    "flnb.view(run, other)",
    *(f"flnb.widgets.{name}(run)" for name in ("Memory", "Tape", "Timeline", "Ops", "Metrics")),
    "ipywidgets.VBox([flnb.widgets.Memory(run), flnb.widgets.Ops(run)])",
    "run.tape",
    "program",
    'flnb.memory.tune(run, "best-fit")',
    "flnb.plot.op_times(run)",
    "flnb.plot.timeline(run)",
    "run",
    "run.memory",
    "run.memory.peak",
    "manager",
)
"""Cells that show something with a picture."""
SETUP = """import flnb, ipywidgets
net = flnb.nn.Sequential(flnb.nn.Linear(64, 32), flnb.nn.ReLU())
def recorded(name):
    with flnb.record(name, grad_interval=0) as run:
        for i in range(3):
            with flnb.step():
                net(flnb.ones((64, 64))).sum().backward()
                flnb.log(loss=1 / (i + 1))
    return run
run, other = recorded("kept"), recorded("other")
manager = flnb.memory.Caching()
with flnb.use_memory_manager(manager):
    kept = flnb.ones((64, 64))
program = flnb.jit(lambda x: flnb.sum(flnb.exp(x)))
for _ in range(2):
    program(flnb.ones(64))"""
COUNTS = {"run": 3, "run.memory": 2, VIEWS[7]: 2}
"""How many pictures a cell leaves, where there is more than one: of metrics, memory and ops; in a box."""


@pytest.fixture(scope="module")
def notebook() -> Any:
    """A notebook that has run: a dashboard, recordings, and a cell for each view."""
    sources = ("import flnb\nflnb.dashboard()", SETUP, *VIEWS)
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLOTLY_RENDERER", "plotly_mimetype+notebook")  # plotly's HTML, too
        nbclient.NotebookClient(made, timeout=120, kernel_name="python3").execute()
    return made


def shown_by_github(output: Any) -> list[bytes]:
    """The PNG pictures that remain of an output: of HTML, which is preferred, those outside of scripts."""
    data = output.get("data", {})
    html = data.get("text/html")
    found = [data["image/png"]] if "image/png" in data and html is None else []
    if html is not None:
        html = re.sub(r"<(script|style|svg)\b.*?</\1>", "", html, flags=re.DOTALL)
        found = re.findall(r'<img [^>]*src="data:image/png;base64,([^"]+)"', html)
    return [base64.b64decode(each) for each in found]


def assert_legible(picture: bytes) -> None:
    """The picture is drawn on paper of its own, and most that is drawn contrasts with it, on a dark page too."""
    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("RGBA")
    shown = Image.alpha_composite(Image.new("RGBA", image.size, (24, 24, 24, 255)), image)
    light = np.asarray(shown.convert("L"))
    assert (light < 252).sum() > 500, "blank"
    assert (light > 252).mean() > 0.2, "without paper"
    assert (light < 180).sum() > 300, "too pale for white paper"
    assert len(shown.getcolors(1 << 22)) > 3


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_every_view_leaves_a_picture_that_github_shows(notebook: Any) -> None:
    dashboard, setup, *cells = notebook.cells
    assert setup.outputs == []
    for cell in (dashboard, *cells):
        pictures = [picture for output in cell.outputs for picture in shown_by_github(output)]
        assert len(pictures) == COUNTS.get(cell.source, 1), cell.source
        for picture in pictures:
            assert_legible(picture)
            assert len(picture) < 200_000


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_dashboard_leaves_the_last_runs_picture_behind(notebook: Any) -> None:
    picture, widget = notebook.cells[0].outputs
    assert "application/vnd.jupyter.widget-view+json" in widget.data
    assert set(picture.data) == {"image/png", "text/plain"}
    assert "loss" in picture.metadata["image/png"]["alt"]
    assert picture.metadata["image/png"]["width"] == 656


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_nbconvert_shows_the_pictures(notebook: Any) -> None:
    from nbconvert import HTMLExporter

    html, _ = HTMLExporter().from_notebook_node(notebook)
    assert html.count("data:image/png;base64,") >= len(VIEWS)
    assert html.count("plotly-graph-div") == 0
    for name in re.findall(r"flnb-picture-[0-9a-f]{32}", html):
        assert base64.b64encode(name.encode()).decode() in html, "a widget's picture"
