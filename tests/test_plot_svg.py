"""Pictures of plotly figures: what is drawn stands where the figure says, and notebooks carry it beside the figure."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import flnb
from flnb import plot

go = pytest.importorskip("plotly.graph_objects")
from flnb.plot.svg import svg  # noqa: E402

pytestmark = pytest.mark.usefixtures("numpy_session")
SVG = "{http://www.w3.org/2000/svg}"


def drawn(figure: Any, tag: str) -> list[ElementTree.Element]:
    """The elements with a tag in a figure's picture, which is well-formed."""
    return list(ElementTree.fromstring(svg(figure)).iter(f"{SVG}{tag}"))


def texts(figure: Any) -> list[str]:
    return [element.text or "" for element in drawn(figure, "text")]


@pytest.fixture(scope="module")
def run() -> Any:
    with flnb.record("a <b> & </svg>", grad_interval=0) as recorded:
        x = flnb.Variable(flnb.ones((64, 64)))
        for _ in range(3):
            with flnb.step():
                (flnb.exp(x) @ x).sum().backward()
    return recorded


@pytest.mark.parametrize("name", ["op_times", "memory", "fragmentation", "roofline", "timeline"])
def test_every_figure_of_a_run_has_a_picture(run: Any, name: str) -> None:
    figure = getattr(plot, name)(run)
    root = ElementTree.fromstring(svg(figure))
    assert "a <b> & </svg>" in root.get("aria-label", "")
    width, height = (float(root.get(key, 0)) for key in ("width", "height"))
    for element in root.iter(f"{SVG}text"):
        x, y = float(element.get("x", "nan")), float(element.get("y", "nan"))
        assert 0 <= x <= width, element.text
        assert 0 <= y <= height, element.text
    assert sum(1 for element in root.iter() if element.tag[len(SVG) :] in ("rect", "polyline", "polygon", "circle")) > 2
    assert not texts(figure)[-1].startswith("not in this picture")
    for trace in figure.data:
        if trace.name and trace.showlegend is not False:
            assert trace.name[:24] in texts(figure)


def test_bars_are_as_long_as_their_values_and_the_slowest_is_on_top(run: Any) -> None:
    figure = plot.op_times(run)
    bars = [bar for bar in drawn(figure, "rect") if float(bar.get("height", 0)) > 5 and bar.get("stroke") is None]
    values = [float(value) for trace in figure.data for value in trace.x]
    lengths = [float(bar.get("width", 0)) for bar in bars]
    assert np.allclose(np.array(lengths) / max(lengths), np.array(values) / max(values), atol=0.01)
    top = min(bars, key=lambda bar: float(bar.get("y", 0)))
    assert float(top.get("width", 0)) == max(lengths)


def test_bars_stand_on_their_labels_and_are_of_one_thickness_whichever_trace_they_belong_to() -> None:
    rows = [{"x": [3.0], "y": ["a"]}, {"x": [1.0, 2.0], "y": ["b", "d"]}, {"x": [2.0], "y": ["c"]}]
    figure = go.Figure([go.Bar(**row, orientation="h") for row in rows])
    bars = [bar for bar in drawn(figure, "rect") if float(bar.get("width", 0)) > 20]
    assert len({bar.get("height") for bar in bars}) == 1
    labels = {text.text: float(text.get("y", 0)) - 4 for text in drawn(figure, "text")}
    middles = [float(bar.get("y", 0)) + float(bar.get("height", 0)) / 2 for bar in bars]
    assert np.allclose(middles, [labels[name] for name in "abdc"], atol=0.2)
    begins = {float(bar.get("x", 0)) for bar in bars}
    assert begins == {next(float(line.get("x1", 0)) for line in drawn(figure, "line"))}, (
        "at zero, where the axis begins"
    )
    beside = go.Figure([go.Bar(x=["a", "b"], y=[1, 2]), go.Bar(x=["a", "b"], y=[2, 1])])
    pairs = [float(bar.get("x", 0)) for bar in drawn(beside, "rect") if float(bar.get("height", 0)) > 20]
    assert len(set(pairs)) == 4, "those of one place stand beside each other"


def test_plots_in_a_row_have_one_scale_and_names_without_room_are_slanted() -> None:
    names = [f"a long name {i}" for i in range(6)]
    sides = [
        go.Bar(x=names, y=[height] * 6, name=name, xaxis=x, yaxis=y, legendgroup=name, showlegend=x == "x")
        for height, x, y in ((1, "x", "y"), (2, "x2", "y2"))
        for name in ("one", "two")
    ]
    figure = go.Figure(sides, {"barmode": "relative", "xaxis": {"domain": [0, 0.5]}, "yaxis2": {"matches": "y"}})
    figure.update_layout(xaxis2={"domain": [0.5, 1], "anchor": "y2"})
    bars = [bar for bar in drawn(figure, "rect") if float(bar.get("height", 0)) > 20]
    heights = sorted(round(float(bar.get("height", 0)), 1) for bar in bars)
    assert np.allclose(heights[12:], 2 * np.array(heights[:12]), atol=0.3), "twice the value is twice as high"
    assert min(float(bar.get("y", 0)) for bar in bars) > 40, "a stack of two ends below the top"
    labels = [text for text in drawn(figure, "text") if text.text in names]
    assert len(labels) == 12
    assert all("rotate(-35" in text.get("transform", "") for text in labels)


def test_the_legend_shows_what_is_drawn_dashes_markers_and_hatches() -> None:
    waits = {"color": "#086d74", "pattern": {"shape": "/", "fgcolor": "#123456"}}
    figure = go.Figure(
        [
            go.Bar(x=[30.0], y=[0], orientation="h", name="waiting", marker=waits),
            go.Bar(x=[10.0], y=[1], orientation="h", name="transferring", marker={"color": "#086d74"}),
            go.Scatter(x=[0, 30], y=[0, 1], mode="lines", line={"dash": "dot"}, name="the last came"),
            go.Scatter(x=[5], y=[0], mode="markers", marker={"symbol": "diamond"}, name="asked"),
            go.Scatter(x=[0, 30], y=[0, 1], stackgroup="live", fillcolor="#123456", name="live"),
        ]
    )
    hatches = [path for path in drawn(figure, "path") if path.get("stroke") in ("#123456", "#086d74")]
    assert len(hatches) == 2, "the bar and its entry in the legend"
    assert all(path.get("d", "").count("M") > 1 for path in hatches)
    filled = [bar.get("fill") for bar in drawn(figure, "rect")]
    assert filled.count("#086d74") == 2, "transfers are solid"
    assert filled.count("none") == 2, "waiting is hatched and outlined"
    assert sum(line.get("stroke-dasharray") == "2 3" for line in drawn(figure, "line")) == 1
    diamonds = [each for each in drawn(figure, "polygon") if len(each.get("points", "").split()) == 4]
    assert len([each for each in diamonds if each.get("stroke")]) == 2


def test_no_text_of_a_picture_is_on_another(run: Any) -> None:
    flnb.manual_seed(0)
    stored = flnb.memory.replay(run, ["caching", "buddy", "native"])
    with flnb.record("ranks") as ranks:
        flnb.distributed.run_threads(3, lambda: [_stepped() for _ in range(3)])
    figures = [plot.op_times(run, top=1), plot.memory(run), plot.fragmentation(run), plot.roofline(run)]
    for figure in (*figures, plot.timeline(run), plot.timeline(ranks), plot.collectives(ranks), plot.replay(stored)):
        boxes = []
        for text in drawn(figure, "text"):
            if "rotate" in text.get("transform", ""):
                continue
            x, y, wide = float(text.get("x", 0)), float(text.get("y", 0)), 5.5 * len(text.text or "")
            left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor", "start")] * wide
            boxes.append((left, left + wide, y - 9, y, text.text))
        for at, (left, right, top, bottom, words) in enumerate(boxes):
            for other in boxes[at + 1 :]:
                apart = right <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
                assert apart, f"{figure.layout.title.text}: {words!r} is on {other[4]!r}"


def _stepped() -> None:
    with flnb.step():
        flnb.distributed.all_reduce(flnb.ones(3))


def test_texts_inside_bars_are_drawn_where_they_fit() -> None:
    bars = {"base": [0, 50], "x": [40, 1], "y": [0, 0], "text": ["wide", "narrow"], "textposition": "inside"}
    figure = go.Figure(go.Bar(**bars, orientation="h", marker={"color": "#123456"}), {"barmode": "overlay"})
    figure.update_yaxes(tickvals=[0], ticktext=["thread 1, phase"])
    assert "wide" in texts(figure)
    assert "narrow" not in texts(figure)
    label = next(element for element in drawn(figure, "text") if element.text == "thread 1, phase")
    assert float(label.get("x", 0)) - 6.5 * len("thread 1, phase") > 0


def test_labels_of_an_axis_may_be_numbers_such_as_ranks() -> None:
    figure = go.Figure(go.Bar(x=[1.0, 2.0], y=[0, 1], orientation="h"))
    figure.update_yaxes(tickvals=[0, 1], ticktext=[7, 8])
    assert {"7", "8"} <= set(texts(figure))


def test_points_stand_at_their_values_on_linear_logarithmic_and_reversed_axes() -> None:
    layout: dict[str, Any] = {
        "xaxis": {"type": "log", "range": [0, 2]},
        "yaxis": {"range": [10, 0]},
        "showlegend": False,
    }
    figure = go.Figure(go.Scatter(x=[1, 10, 100], y=[0, 5, 10], mode="markers"), layout)
    circles = drawn(figure, "circle")
    xs, ys = (np.array([float(circle.get(key, 0)) for circle in circles]) for key in ("cx", "cy"))
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert ys[0] < ys[1] < ys[2]
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.2)
    assert {"1", "10", "100"} <= set(texts(figure))


def test_stacks_gaps_steps_heat_maps_and_other_traces() -> None:
    stacked = go.Figure(
        [go.Scatter(y=[1, 1], stackgroup="a", name=name) for name in "uv"], {"yaxis": {"range": [0, 2]}}
    )
    tops = [
        min(float(point.split(",")[1]) for point in area.get("points", "").split())
        for area in drawn(stacked, "polygon")
    ]
    bottom = max(float(point.split(",")[1]) for point in drawn(stacked, "polygon")[0].get("points", "").split())
    assert bottom - tops[0] == pytest.approx(tops[0] - tops[1], abs=0.2)
    gap = go.Figure(go.Scatter(y=[1, 2, None, 3, 4], mode="lines"))
    assert [len(line.get("points", "").split()) for line in drawn(gap, "polyline")] == [2, 2]
    step = go.Figure(go.Scatter(y=[1, 2, 3], mode="lines", line_shape="hv"))
    assert len(drawn(step, "polyline")[0].get("points", "").split()) == 5
    heat = go.Figure(go.Heatmap(z=[[0, 1], [float("nan"), 0]], colorscale=[[0, "#000000"], [1, "rgb(255, 0, 0)"]]))
    assert [cell.get("fill") for cell in drawn(heat, "rect")] == ["#000000", "#ff0000", "#000000"]
    assert texts(go.Figure(go.Pie(values=[1, 2])))[-1] == "not in this picture: pie"


def test_names_and_colours_cannot_leave_their_elements() -> None:
    bad = '</text><script>alert(1)</script>"'
    figure = go.Figure(
        go.Bar(x=["</svg>", bad], y=[1, 2], name=bad, text=[bad, bad], marker_color="red"),
        {"title": bad, "showlegend": True},
    )
    figure.data[0]._props["marker"]["color"] = f'red"{bad}'  # past plotly's own check
    root = ElementTree.fromstring(svg(figure))
    assert {element.tag for element in root.iter()} <= {f"{SVG}{tag}" for tag in ("svg", "rect", "text", "line")}


def test_a_notebook_carries_the_picture_beside_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    import plotly.io as pio
    from IPython.core.interactiveshell import InteractiveShell

    from flnb import show

    shell, sent = InteractiveShell(), []
    show.register(shell)
    monkeypatch.setattr(pio.renderers, "default", "plotly_mimetype")
    monkeypatch.setattr(pio.renderers, "render_on_display", True)
    monkeypatch.setattr("IPython.display.publish_display_data", lambda data, metadata: sent.append(data))
    figure = go.Figure(go.Scatter(y=[1, 2]))
    assert shell.display_formatter.ipython_display_formatter(figure) is True
    data = sent[0]
    assert data["application/vnd.plotly.v1+json"]["data"][0]["type"] == "scatter"
    assert "image/png" not in data, "JupyterLab would draw the figure only after a click"
    assert data["text/html"].startswith("<img ")
    assert 'src="data:image/png;base64,iVBOR' in data["text/html"]
    monkeypatch.setattr(pio.renderers, "default", "plotly_mimetype+notebook")
    assert shell.display_formatter.ipython_display_formatter(figure) is True
    assert "<script" not in sent[1]["text/html"], "viewers without scripts would choose it"
