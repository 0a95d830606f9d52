"""The timeline's lanes of streams: what devices ran when, live, of finished recordings and of a trace of PyTorch's."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import bus, device_words, intern, pump, record, schema
from flnb_telemetry.device_words import Kernel
from flnb_telemetry.foreign.kineto import load_trace
from flnb_telemetry.live.bars import PAIR, SHIFT, T0, T1
from flnb_telemetry.live.recording import LiveRecording
from flnb_telemetry.live.streams import FIRST
from flnb_telemetry.live.threads import KINDS, Key

import flnb

if TYPE_CHECKING:
    from pathlib import Path

    from flnb_telemetry.live.view import Live

TASK = KINDS.index("task")


class Device:
    """Queues launches and copies in streams, and reports when they ran."""

    def __init__(self, program: Any) -> None:
        self.program, self.number, self.ran = program, 0, dict[tuple[str, int], list[tuple[int, int]]]()

    def queue(self, stream: int, length: int, *, op: str = "", bound: int = 50, place: str = "cuda:0") -> None:
        assert bus.lanes is not None
        self.number += 1
        context = intern.contexts.id_of(("net", 1, place, stream, ""))
        t = self.program.t
        if op:
            self.program.op(op, 400, family="matmul")
        if self.number % 3:
            kernel = intern.kernels.id_of(Kernel(f"k{self.number % 2}"))
            code = device_words.LAUNCH | kernel << schema.PLAN_SHIFT
            bus.lanes.lane.emit(code, t + 100, t + 200, self.number, 0, 0, 0, context)
        else:
            code = device_words.COPY | device_words.TO_DEVICE << schema.AUX_SHIFT
            bus.lanes.lane.emit(code, t + 100, t + 200, self.number, 4096, 1, 0, context)
        before = self.ran.setdefault((place, stream), [])
        begin = max(t + 1000, before[-1][1] if before else 0)
        before.append((begin, begin + length))
        bus.emit(device_words.RAN, begin, begin + length, self.number, bound, t + 5000)
        self.program.t = t + 600


def busy(program: Any) -> Device:
    device = Device(program)
    for i in range(12):
        device.queue(i % 3, 2000 + 100 * i, op="matmul" if i % 2 else "")
        if i == 5:
            pump.flush()  # the rest is a batch of its own
    device.queue(7, 500, bound=-1, place="cuda:1")  # emulated: its times say nothing
    return device


def lanes(live: Live) -> dict[str, list[tuple[int, int]]]:
    """Begin and end (ns) of what each stream ran, by the name of its lane."""
    rows = live.timeline.rows
    places = rows.stream_names()
    keys = [key for key in rows.row_keys() if key.kind == TASK]
    assert [key.lane for key in keys] == [FIRST + i for i in range(len(keys))]
    found = {}
    for key in keys:
        bars = rows.rows[key].window(0, 1 << 62, 1)
        found[f"{places[key.lane]} stream {key.depth}"] = list(zip(bars[T0].tolist(), bars[T1].tolist(), strict=True))
    return found


def test_each_stream_has_a_lane_with_what_its_device_ran(program: Any, new_browser: Any, live: Any) -> None:
    live.begin()
    with record("streams") as run:
        device = busy(program)
    wanted = {f"{place} stream {stream}": ran for (place, stream), ran in device.ran.items() if place == "cuda:0"}
    pump.flush()
    live.frame(keyframe=True)
    finished = LiveRecording(run)
    assert lanes(live) == lanes(finished) == wanted
    content = new_browser().take(next(finished.frames()))
    rows = [row for row in content["timeline"]["rows"] if row["thread"] >= FIRST]
    assert [(row["kind"], f"{row['name']} stream {row['depth']}") for row in rows] == [
        ("task", name) for name in wanted
    ]


def test_a_task_is_named_by_the_op_that_queued_it_or_by_its_kernel_or_copy(program: Any) -> None:
    with record("names") as run:
        busy(program)
    finished = LiveRecording(run)
    pairs = finished.timeline.rows.rows[Key(FIRST, TASK)].window(0, 1 << 62, 1)[PAIR]
    plans = [run.catalog.plans.items[plan] for plan in (pairs & (1 << SHIFT) - 1).tolist()]
    contexts = {run.catalog.contexts.items[context] for context in (pairs >> SHIFT).tolist()}
    assert [(plan.op, plan.family) for plan in plans] == [
        ("k1", "elementwise"), ("matmul", "matmul"), ("k1", "elementwise"), ("matmul", "matmul"),
    ]  # fmt: skip
    assert {(context.scope, context.device, context.stream) for context in contexts} == {("net", "cuda:0", 0)}
    found = finished.answer({"type": "timeline", "id": 1, "search": "matmul", "after": 0})
    assert found is not None
    assert found["search"]["count"] == 12  # six ops, and what each asked of a device
    copied = finished.timeline.rows.rows[Key(FIRST + 2, TASK, 2)].window(0, 1 << 62, 1)[PAIR]
    named = {run.catalog.plans.items[plan].op for plan in (copied & (1 << SHIFT) - 1).tolist()}
    assert named == {"copy to the device", "matmul"}


def test_streams_of_a_trace_of_pytorch_have_lanes(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for i in range(6):
        about = {"correlation": i + 1, "device": 0, "stream": 7 + 13 * (i % 2)}
        host = {"ph": "X", "pid": 10, "tid": 10, "ts": 100 + 10 * i}
        events.append(host | {"cat": "cpu_op", "name": "aten::mm", "dur": 8})
        events.append(
            host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 102 + 10 * i, "dur": 2, "args": about}
        )
        times = {"ts": 200 + 30 * i, "dur": 25}
        events.append(
            {"ph": "X", "pid": 0, "tid": about["stream"], "cat": "kernel", "name": "gemm", "args": about} | times
        )
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": [{"id": 0, "name": "H"}]}))
    found = lanes(LiveRecording(load_trace(path)))
    assert list(found) == ["cuda:0 stream 7", "cuda:0 stream 20"]
    for at, ran in enumerate(found.values()):
        begins = np.array([begin for begin, _ in ran])
        assert [end - begin for begin, end in ran] == [25_000] * 3
        assert np.diff(begins).tolist() == [60_000] * 2
        assert begins[0] - next(iter(found.values()))[0][0] == 30_000 * at


def test_timeline_has_a_row_for_each_stream_of_a_device() -> None:
    with flnb.record("device") as run:
        y = flnb.ones(3)
        assert bus.lanes is not None
        t = time.perf_counter_ns()
        for number, stream in ((1, 0), (2, 7), (3, 7), (4, 9)):
            context = intern.contexts.id_of(("net", 1, "cuda:0", stream, ""))
            code = device_words.LAUNCH | intern.kernels.id_of(Kernel("axpy")) << schema.PLAN_SHIFT
            bus.lanes.lane.emit(code, t, t + 500, number, 0, 0, 0, context)
            bound = -1 if stream == 9 else 50  # -1: an emulated device, which has no times
            bus.emit(device_words.RAN, t + 1_000_000 * number, t + 1_000_000 * number + 400_000, number, bound, t)
    assert y.shape == (3,)
    pytest.importorskip("plotly")
    figure = flnb.plot.timeline(run)
    rows = list(figure.layout.yaxis.ticktext)
    assert rows[-2:] == ["cuda:0, stream 0", "cuda:0, stream 7"]
    begin = run.table("op")["t0"][0]
    for row, numbers in (("cuda:0, stream 0", [1]), ("cuda:0, stream 7", [2, 3])):
        (bars,) = (trace for trace in figure.data if trace.y[0] == rows.index(row))
        assert bars.base == pytest.approx([(t - begin) / 1e6 + number for number in numbers])
        assert bars.x == pytest.approx([0.4] * len(numbers))
        assert bars.hovertext == tuple(["axpy 400 µs<br>net"] * len(numbers))
    assert figure.layout.xaxis.range[1] == pytest.approx((t - begin) / 1e6 + 3.4)
