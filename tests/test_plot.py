"""Figures hold the recording's numbers, and a missing program is said."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import bus, intern, palette, record, schema, step
from flnb_telemetry.analysis.roofline import Peaks

import flnb
from flnb import plot
from flnb.plot import figures
from tests.plotted import jitted, op, plotted


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(bus, "announcers", [])
    return plotted()


def test_op_times_are_bars_by_family(run: Any) -> None:
    figure = plot.op_times(run)
    bars = {bar.name: dict(zip(bar.y, bar.x, strict=True)) for bar in figure.data}
    assert bars == {"matmul": {"conv2d": 2.0}, "elementwise": {"add": 1.0, "log\\odd": 0.5}}
    colours = {bar.name: bar.marker.color for bar in figure.data}
    assert colours == {"matmul": palette.FAMILY["matmul"][0], "elementwise": palette.FAMILY["elementwise"][0]}
    assert "57.1 %" in figure.data[0].hovertext[0]
    assert figure.layout.xaxis.title.text == "total time, ms"
    short = plot.op_times(run, top=1)
    assert [bar.name for bar in short.data] == ["matmul"]
    assert short.layout.title.subtitle.text == "the slowest 1, without 2 faster ops"


def test_figures_are_transparent_and_grey_so_that_both_themes_show_them(run: Any) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    own, anyones = plot.memory(run), graph_objects.Figure(layout={"template": plot.TEMPLATE})
    for figure in (own, anyones):
        layout = figure.layout.template.layout
        assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
        assert layout.font.color == layout.annotationdefaults.arrowcolor == figures.INK
        assert layout.xaxis.automargin, "or long labels are cut"
        assert layout.xaxis.gridcolor == layout.yaxis.gridcolor == figures.AXIS["gridcolor"]


def test_long_op_times_are_in_seconds() -> None:
    with record() as run:
        op("conv2d", "matmul", time.perf_counter_ns(), 2_500_000_000)
    figure = plot.op_times(run)
    assert figure.layout.xaxis.title.text == "total time, s"
    assert figure.data[0].x == (2.5,)


def test_memory_is_stacked_by_category_under_reserved(run: Any) -> None:
    figure = plot.memory(run)
    by_name = {trace.name: trace for trace in figure.data}
    assert list(by_name) == ["parameter", "gradient", "reserved"]
    assert max(by_name["parameter"].y) == 3.0
    assert max(by_name["gradient"].y) == 3.0
    assert by_name["parameter"].y[-1] == 0.0
    assert set(by_name["reserved"].y) == {8.0}
    line = run.memory.timeline()
    np.testing.assert_allclose(np.add(by_name["parameter"].y, by_name["gradient"].y) * 2**20, line.allocated)
    assert figure.layout.annotations[0].text == "peak 6.00 MiB"
    assert figure.layout.annotations[0].y == 6.0
    assert figure.layout.yaxis.range == (0, 1.18 * 8)


def test_memory_is_stacked_by_what_allocated_it() -> None:
    with flnb.use_backend("numpy"), flnb.use_memory_manager("caching"), flnb.record() as run:
        with flnb.scope("first"):
            a = flnb.ones((64, 64))
        kept = []
        for i in range(10):
            with flnb.scope(f"block{i}"):
                kept.append(flnb.exp(flnb.ones((64 * (i + 2), 64))))
        kept.clear()
        del a
    line = run.memory.timeline()
    for by, named in (("scope", {f"block{i}" for i in range(2, 10)}), ("op", {"exp", "full"})):
        figure = plot.memory(run, by=by)
        areas = figure.data[:-1]
        np.testing.assert_allclose(np.sum([area.y for area in areas], axis=0) * 2**20, line.allocated)
        assert {area.name for area in areas} - {"3 others"} == named
        assert (areas[-1].name == "3 others") == (by == "scope"), "first, block0 and block1"
        assert figure.data[-1].name.startswith("reserved")
    with pytest.raises(ValueError, match=r"plot\.memory: by='module', expected one of category, scope, op, line"):
        plot.memory(run, by="module")


def test_memory_is_stacked_by_lines_where_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "announcers", [])
    lines = ["net.py:3: x = relu(x)", ""]
    with record() as run:
        t = time.perf_counter_ns()
        bus.emit(schema.SEGMENT_ALLOC, t, 1, 0, 64 << 20)
        for i, line in enumerate(lines):
            context = intern.contexts.id_of(intern.Context("net", schema.FORWARD, line=line))
            bus.emit(schema.ALLOC, t + i, 1 + i, i << 24, (1 + i) << 20, (1 + i) << 20, 1, context)
    areas = plot.memory(run, by="line").data[:-1]
    assert [(area.name, max(area.y)) for area in areas] == [("(unknown line)", 2.0), (lines[0], 1.0)]


def test_the_bands_keep_their_height_under_a_large_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "announcers", [])
    with record() as run:
        t = time.perf_counter_ns()
        bus.emit(schema.SEGMENT_ALLOC, t, 1, 0, 64 << 20)
        bus.emit(schema.ALLOC, t, 1, 0, 2 << 20, 2 << 20, 1)
        bus.emit(schema.FREE_COMPLETED, t + 1000, 1, 0, 2 << 20, 0, 1)
    figure = plot.memory(run)
    assert figure.layout.yaxis.range == (0, 1.18 * 2)
    assert figure.data[-1].name == "reserved 64.0 MiB, above"
    (peak,) = figure.layout.annotations
    assert (peak.text, peak.ax, peak.xanchor) == ("peak 2.00 MiB", 32, "left")  # not on the axis


@pytest.mark.parametrize(
    ("steps", "told", "points", "said"),
    [
        (150, True, 150, "a step"),
        (450, True, 150, "3 steps"),
        (300, False, 200, "12 allocations and frees"),
        (20, True, 161, None),
    ],
)
def test_hundreds_of_steps_are_their_peaks(
    monkeypatch: pytest.MonkeyPatch, steps: int, told: bool, points: int, said: str | None
) -> None:
    monkeypatch.setattr(bus, "announcers", [])
    with record() as run:
        bus.emit(schema.SEGMENT_ALLOC, run.start + 1, 1, 0, 64 << 20)
        bus.emit(schema.ALLOC, run.start + 1, 1, 0, 1 << 20, 1 << 20, 1)
        for i in range(steps):
            with step() if told else nullcontext():
                t = time.perf_counter_ns()
                for part in range(4):  # the second finds the first, the third and fourth come and go
                    number, size = 2 + 4 * i + part, (1 + part) << 20
                    bus.emit(schema.ALLOC, t + 10 * part, number, 0, size, size, 1)
                    bus.emit(schema.FREE_COMPLETED, t + 10 * part + (9 if part else 15), number, 0, size, 0, 1)
                while time.perf_counter_ns() < t + 100:
                    pass
    figure = plot.memory(run)
    bands = figure.data[0]
    assert len(bands.x) == points
    subtitle = figure.layout.title.subtitle.text
    assert subtitle == (said and f"each point: the most live in {said}")
    if said:
        assert set(bands.y) == {5.0}, "the peak of each stretch"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two matrix products of 1024 FLOPs and 896 bytes, an elementwise op of 32 and 256, and a move."""
    monkeypatch.setattr(bus, "announcers", [])
    plans = {
        "matmul": intern.Plan("matmul", "matmul", (8, 4), "float32", 128, 1024, ((8, 16), (16, 4))),
        "exp": intern.Plan("exp", "elementwise", (8, 4), "float32", 128, 32, ((8, 4),)),
        "flip": intern.Plan("flip", "movement", (8, 4), "float32", 128, 0, ((8, 4),)),
    }
    with record("computed") as run:
        t = time.perf_counter_ns()
        assert bus.lanes is not None
        for name, spent in (("matmul", 512), ("matmul", 512), ("exp", 64), ("flip", 272)):
            code = schema.OP | intern.plans.id_of(plans[name]) << schema.PLAN_SHIFT
            bus.lanes.lane.emit(code, t, t + spent, 0, 0, bus.lanes.lane.context, 0, 0)
    return run


def test_a_roofline_holds_the_ops_under_the_peaks(computed: Any) -> None:
    figure = plot.roofline(computed, Peaks(flops=4e9, memory=1e9, cache=8e9))
    matmul, exp, memory, cache = figure.data
    assert (matmul.name, matmul.x, matmul.y) == ("matmul", (1024 / 896,), (2.0,))
    assert (exp.name, exp.x, exp.y) == ("elementwise", (32 / 256,), (0.5,))
    assert matmul.marker.color == palette.FAMILY["matmul"][0]
    assert matmul.marker.size[0] > exp.marker.size[0]
    assert matmul.hovertext[0] == (
        "<b>matmul</b><br>8×16, 16×4 → 8×4 float32<br>512 ns a call, 2 calls, 75.3 % of the time<br>"
        "2.00 GFLOP/s, 1.14 FLOPs per byte"
    )
    assert (memory.name, cache.name) == ("memory, 1.00 GB/s", "cache, 8.00 GB/s")
    assert (memory.x, memory.y) == ((0.0625, 4.0, 16.0), (0.0625, 4.0, 4.0))
    assert (cache.x, cache.y) == ((0.0625, 0.5, 16.0), (0.5, 4.0, 4.0))
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")
    (peak,) = figure.layout.annotations
    assert peak.text == "matrix product 4.00 GFLOP/s"
    rest = figure.layout.title.subtitle.text
    assert rest == "20.0 % of the op time computes nothing in floating point and is not shown"


def test_a_roofline_measures_the_peaks_itself(computed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "measure_peaks", lambda: Peaks(1e9, 2e9, 3e9))
    assert plot.roofline(computed).layout.annotations[0].text == "matrix product 1.00 GFLOP/s"


def test_fragmentation_states_its_formulas(run: Any) -> None:
    figure = plot.fragmentation(run, request=3 << 20)
    found = run.memory.fragmentation(3 << 20)
    ratio, unusable, internal = figure.data
    np.testing.assert_array_equal(ratio.y, found.ratio)
    np.testing.assert_array_equal(unusable.y, found.unusable)
    np.testing.assert_array_equal(internal.y, found.internal)
    assert unusable.name == "unusable(3.00 MiB)"
    assert unusable.y[-1] == 1.0
    text = " ".join(note.text for note in figure.layout.annotations)
    assert "unusable(r) = sum(free blocks < r) / sum(free)" in text
    assert figure.layout.title.subtitle.text.startswith("reserved / live is 1.33× at the peak, ")
    assert figure.layout.legend.yanchor == "bottom", "above the axes, clear of the right one's ticks"
    assert figure.layout.yaxis2.tickvals == (0, 0.25, 0.5, 0.75, 1)


def test_a_ratio_of_thousands_while_little_is_live_does_not_flatten_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "announcers", [])  # the blocks of other tests have numbers, too
    with flnb.record("little, then much") as recorded:
        t = time.perf_counter_ns()
        bus.emit(schema.SEGMENT_ALLOC, t, 1, 0, 64 << 20)
        for i, nbytes in enumerate((1 << 10, 32 << 20)):
            bus.emit(schema.ALLOC, t + 10_000 * (i + 1), i + 1, i << 20, nbytes, nbytes, 1)
        while time.perf_counter_ns() < t + 1_000_000:
            pass
        bus.emit(schema.FREE_COMPLETED, t + 1_000_000, 1, 0, 1 << 10, 0, 1)
    figure = plot.fragmentation(recorded)
    assert np.nanmax(figure.data[0].y) > 10_000
    assert figure.layout.yaxis.range[1] < 20
    assert "× beyond the axis" in figure.layout.title.subtitle.text


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("plotly", plot.memory),
        ("plotly", plot.op_times),
        ("plotly", plot.roofline),
        ("graphviz", plot.tape),
        ("graphviz", lambda _: plot.graph(jitted())),
    ],
)
def test_a_missing_extra_is_named(run: Any, monkeypatch: pytest.MonkeyPatch, module: str, call: Any) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(ImportError, match=rf"needs {module}; install it with: pip install 'flnb\[lab\]'"):
        call(run)


def test_figures_of_an_empty_run() -> None:
    with record() as run:
        pass
    if not len(run.table("alloc")["t"]):
        assert [trace.name for trace in plot.memory(run).data] == ["reserved"]
    assert len(plot.op_times(run).data) == 0
    assert [trace.mode for trace in plot.roofline(run, Peaks(4e9, 1e9, 8e9)).data] == ["lines", "lines"]
    plot.fragmentation(run)
    assert "digraph" in plot.tape(run).source


def test_a_replay_is_curves_over_calls_and_bars_of_the_headline() -> None:
    trace = flnb.memory.Trace.of_calls([1, 2, -1, 3], [3 << 20, 2 << 20, 4 << 20])
    found = flnb.memory.replay(trace, ["native", "caching"])
    figure = plot.replay(found)
    curves = {part.name: part.y.tolist() for part in figure.data if part.type == "scatter"}
    assert curves == {"live": [3, 5, 2, 6], "native": [3, 5, 2, 6], "caching": [20, 20, 20, 20]}
    bars = {bar.name: bar.x for bar in figure.data if bar.type == "bar"}
    assert bars == {"native": (0,), "caching": (20 - 6,)}
    assert [bar.text for bar in figure.data if bar.type == "bar"] == [("0 B",), ("14.0 MiB",)]
    assert [shape.y0 for shape in figure.layout.shapes[:2]] == [6, 6]
    assert {note.text for note in figure.layout.annotations} == {"live", "packed offline, optimal"}


def test_a_long_replay_keeps_its_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "POINTS", 4)
    sizes = [1 << 20] * 9 + [64 << 20]
    trace = flnb.memory.Trace.of_calls([sign * k for k in range(1, 11) for sign in (1, -1)], sizes)
    live = plot.replay(flnb.memory.replay(trace, ["native"])).data[0]
    assert live.x.tolist() == [0, 5, 10, 15]
    assert live.y.tolist() == [1, 1, 1, 64]


@pytest.fixture
def stepped() -> Any:
    """Three steps of ops in nested scopes."""
    with flnb.use_backend("numpy"), flnb.record("stepped") as run:
        for _ in range(3):
            with flnb.step(), flnb.scope("outer"):
                x = flnb.ones((32, 32))
                with flnb.scope("inner"):
                    for _ in range(20):
                        x = flnb.exp(x * 0.0)
                flnb.sum(x)
    return run


def test_timeline_draws_every_op_once_and_merges_what_is_narrow(stepped: Any) -> None:
    figure = plot.timeline(stepped)
    op = stepped.table("op")
    rows = figure.layout.yaxis.ticktext
    at = rows.index("op")
    mine = [trace for trace in figure.data if trace.y[0] == at]
    told = sum(int(text.split(" in ")[0]) if " in " in text else 1 for trace in mine for text in trace.hovertext)
    assert told == len(op["t0"])
    assert {trace.name for trace in mine} <= {stepped.catalog.plans.items[plan].family for plan in op["plan"].tolist()}
    begin = min(op["t0"][0], stepped.table("scope")["t"].min(initial=op["t0"][0]))
    starts = min(min(trace.base) for trace in mine)
    assert starts == pytest.approx((op["t0"][0] - begin) / 1e6)


def test_timeline_says_which_steps_there_are(stepped: Any) -> None:
    step = stepped.table("step")["index"]
    last = int(step[-1])
    one = plot.timeline(stepped, steps=(last, last))
    assert one.layout.xaxis.range[1] == pytest.approx(
        (stepped.table("step")["t1"][-1] - stepped.table("step")["t0"][-1]) / 1e6
    )
    with pytest.raises(ValueError, match=rf"got steps=\(990, 999\); steps of the recording: {step[0]} to {last}"):
        plot.timeline(stepped, steps=(990, 999))
    with pytest.raises(TypeError, match="expected the first and the last step to draw"):
        plot.timeline(stepped, steps=7)  # type: ignore[arg-type]
    with flnb.record("nothing") as empty:
        pass
    with pytest.raises(ValueError, match="'nothing' has no ops"):
        plot.timeline(empty)
    with pytest.raises(TypeError, match=r"plot\.timeline: expected a recording .*, got int"):
        plot.timeline(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", set(plot.__all__) - {"TEMPLATE", "graph", "modes", "replay"})
def test_what_is_no_recording_is_a_type_error_that_names_the_function(name: str) -> None:
    with pytest.raises(TypeError, match=rf"flnb\.plot\.{name}: expected a recording .*load_run\(path\)\), got int"):
        getattr(plot, name)(3)


def test_other_wrong_arguments_of_plots() -> None:
    with pytest.raises(TypeError, match=r"flnb\.plot\.replay: got int, expected the result of flnb\.memory\.replay"):
        plot.replay(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"flnb\.plot\.modes: got int, expected a dict from a name to a recording"):
        plot.modes(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"flnb\.plot\.modes: expected a recording .*, got int"):
        plot.modes({"eager": 3})  # type: ignore[dict-item]


def test_two_runs_stand_below_each_other_on_one_scale(stepped: Any) -> None:
    with flnb.use_backend("numpy"), flnb.record("short") as short, flnb.step(), flnb.scope("outer"):
        flnb.exp(flnb.ones((32, 32)))
    both, alone = plot.timeline(stepped, short), [plot.timeline(stepped), plot.timeline(short)]
    titles = [figure.layout.yaxis.ticktext for figure in alone]
    assert list(both.layout.yaxis.ticktext) == [f"A: {name}" for name in titles[0]] + [
        f"B: {name}" for name in titles[1]
    ]
    assert both.layout.yaxis.tickvals == (
        *range(len(titles[0])),
        *range(len(titles[0]) + 1, len(titles[0]) + 1 + len(titles[1])),
    )
    assert both.layout.xaxis.range[1] == max(figure.layout.xaxis.range[1] for figure in alone)
    for figure, y, below in (
        (alone[0], titles[0].index("op"), 0),
        (alone[1], titles[1].index("op"), len(titles[0]) + 1),
    ):
        ends = [
            max(float((bar.base + bar.x).max()) for bar in one.data if bar.y[0] == at)
            for one, at in ((figure, y), (both, y + below))
        ]
        assert ends[0] == ends[1]  # the time of each run counts from its own beginning
    families = [bar.name for bar in both.data if bar.showlegend]
    assert len(families) == len(set(families))
    with pytest.raises(TypeError, match=r"plot\.timeline: expected a recording .*, got tuple"):
        plot.timeline(stepped, (1, 2))  # type: ignore[arg-type]


def test_timeline_of_a_run_without_scopes_begins_with_its_first_op() -> None:
    with flnb.record("plain") as run:
        flnb.exp(flnb.ones(8))
    run.tables["scope"] = {key: column[:0] for key, column in run.table("scope").items()}
    op = run.table("op")
    assert plot.timeline(run).layout.xaxis.range == (0, pytest.approx((op["t1"].max() - op["t0"].min()) / 1e6))
