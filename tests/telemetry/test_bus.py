"""The bus: nothing lost silently, every thread its own lane, and the right context whenever recording begins."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import bus, encoding, intern, pump, schema
from flnb_telemetry.lane import Lane


@pytest.mark.parametrize("capacity", [64, 128, 1024, 8192, 640_000])
def test_lane_keeps_its_capacity_and_counts_the_rest_exactly(capacity: int) -> None:
    lane = Lane(1, capacity)
    fits = capacity // 64
    for i in range(fits + 37):
        lane.emit(schema.OP, 1000 + i, i)
    rows = lane.drain()
    assert rows[:-1, 2].tolist() == list(range(fits))
    assert rows[-1].tolist() == [schema.DROPPED, 1000 + fits, 37, 1000 + fits + 36, 0, 0, 0, 0]
    lane.emit(schema.OP, 1, 99)
    assert lane.drain().tolist() == [[schema.OP, 1, 99, 0, 0, 0, 0, 0]]
    assert lane.undrained == 0


def test_drain_between_writes_gives_each_record_once() -> None:
    lane = Lane(1, 4096)
    parts = []
    rng = np.random.default_rng(0)
    for i in range(5000):
        lane.emit(schema.OP, 0, i)
        if rng.random() < 0.05:
            parts.append(lane.drain())
    rows = np.concatenate([*parts, lane.drain()])
    dropped = rows[:, 0] == schema.DROPPED
    seen = rows[~dropped, 2].tolist()
    assert rows[dropped, 2].sum() == 5000 - len(seen) > 0
    assert seen == sorted(set(seen))


def test_a_drain_beside_a_writing_thread_loses_and_repeats_nothing() -> None:
    lane = Lane(1)
    writer = threading.Thread(target=lambda: [lane.emit(schema.OP, i, i, i) for i in range(50_000)])
    parts = []
    writer.start()
    while writer.is_alive():
        parts.append(lane.drain())
    rows = np.concatenate([*parts, lane.drain()])
    assert rows[:, 3].tolist() == list(range(50_000))


def test_times_in_seconds_and_numbers_of_all_sizes_arrive() -> None:
    lane = Lane(1)
    for i in range(600):  # more than one batch
        lane.pending += (schema.OP | encoding.FLOAT_TIMES | 7 << 24, 0.25 + i, 0.5 + i, i, -i, 1 << 62, -(1 << 62), 3)
    lane.emit(schema.ALLOC, 123_456_789_012_345, (1 << 53) - 1, 1 << 47)
    rows = lane.drain()
    assert rows[:600, 0].tolist() == [schema.OP | 7 << 24] * 600
    assert rows[:600, 1].tolist() == [250_000_000 + 10**9 * i for i in range(600)]
    assert rows[599].tolist()[2:] == [599_500_000_000, 599, -599, 1 << 62, -(1 << 62), 3]
    assert rows[600].tolist() == [schema.ALLOC, 123_456_789_012_345, (1 << 53) - 1, 1 << 47, 0, 0, 0, 0]


def test_a_row_of_several_ops_arrives_as_one_record_for_each() -> None:
    codes = tuple(schema.OP | encoding.FLOAT_TIMES | plan << 24 for plan in (7, 8, 9))
    three, two = encoding.row_code(codes), encoding.row_code(codes[:2])
    assert encoding.row_code(codes) == three != two
    lane = Lane(1)
    lane.pending += (codes[0], 0.5, 1.0, 11, 12, 13, 14, 15)
    for i in range(600):  # more than one batch
        lane.pending += (three, i + 0.25, i + 0.5, 0, 5, 6, i + 0.75, i + 1.0)
        lane.pending += (two, i + 0.25, i + 0.5, 0, 5, 6, i + 0.75, 0)
    rows = lane.drain()
    times = [(i * 10**9 + t0, i * 10**9 + t0 + 250_000_000) for i in range(600) for t0 in (250_000_000, 500_000_000)]
    assert rows[0].tolist() == [schema.OP | 7 << 24, 500_000_000, 10**9, 11, 12, 13, 14, 15]
    assert (rows[1:, 0] >> 24).tolist() == [7, 8, 9, 7, 8] * 600
    assert (rows[1:, 0] & 0xFFFFFF).tolist() == [schema.OP] * 3000
    first_two = rows[1:].reshape(600, 5, 8)[:, [0, 1], 1:3].reshape(-1, 2)
    assert first_two.tolist() == [list(t) for t in times]
    assert rows[3, 1:].tolist() == [750_000_000, 10**9, 0, 5, 6, 0, 0]


def test_a_row_of_several_ops_that_is_lost_counts_as_many() -> None:
    code = encoding.row_code(tuple(schema.OP | encoding.FLOAT_TIMES | plan << 24 for plan in (7, 8, 9)))
    lane = Lane(1, 64)
    lane.emit(schema.OP, 1)
    for _ in range(4):
        lane.pending += (code, 0.25, 0.5, 0, 5, 6, 0.75, 1.0)
    assert lane.drain()[-1, :3].tolist() == [schema.DROPPED, 250_000_000, 12]


def test_a_value_that_is_no_int64_drops_its_record_alone() -> None:
    lane = Lane(1, 4096)
    lane.emit(schema.OP, 4)
    lane.emit(schema.ALLOC, 5, 1, 1 << 64)
    lane.emit(schema.ALLOC, 6, 1, 64.0)
    lane.emit(schema.OP, 7)
    assert lane.drain()[:, :4].tolist() == [
        [schema.OP, 4, 0, 0], [schema.DROPPED, 5, 1, 5], [schema.DROPPED, 6, 1, 6], [schema.OP, 7, 0, 0]
    ]  # fmt: skip


def test_threads_write_to_lanes_of_their_own_and_nothing_is_lost(sink: Any) -> None:
    pump.attach(sink, interval=0.002)

    def work(number: int) -> None:
        for i in range(20_000):
            bus.emit(schema.OP, time.perf_counter_ns(), number, i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pump.detach(sink)
    lanes = {}
    for lane, part in sink.parts:
        ops = part[(part[:, 0] & 0xFF) == schema.OP]
        for number in np.unique(ops[:, 2]).tolist():
            lanes.setdefault(number, set()).add(lane)
    assert all(len(found) == 1 for found in lanes.values())
    assert len(set.union(*lanes.values())) == 4
    lost = int(sink.rows(schema.DROPPED)[:, 2].sum())
    assert len(sink.rows()) + lost == 80_000
    for number in range(4):
        order = sink.rows()[sink.rows()[:, 2] == number, 3]
        assert (np.diff(order) > 0).all()


def test_a_scope_entered_before_the_recording_is_in_its_contexts(sink: Any) -> None:
    with bus.scope("net"), bus.phase("forward"):
        pump.attach(sink)
        with bus.scope("conv"):
            bus.emit(schema.OP, 1, 0, 0, 0, bus.lanes.lane.context)
        bus.emit(schema.OP, 2, 0, 0, 0, bus.lanes.lane.context)
    bus.emit(schema.OP, 3, 0, 0, 0, bus.lanes.lane.context)
    pump.detach(sink)
    contexts = [intern.contexts.items[number][:4] for number in sink.rows()[:, 5]]
    assert contexts == [("net.conv", 1, "", 0), ("net", 1, "", 0), ("", 0, "", 0)]


def test_a_scope_left_after_the_recording_ended_is_left(sink: Any) -> None:
    pump.attach(sink)
    with bus.scope("outer"):
        pump.detach(sink)
        assert bus.threads.here.path == "outer"
    assert bus.threads.here.path == ""


def test_ever_new_scopes_do_not_pile_up() -> None:
    for i in range(bus.MOST_PATHS + 5):
        with bus.scope(f"step {i}"), bus.scope("inner"):
            assert bus.threads.here.path == f"step {i}.inner"
    assert len(bus._paths) <= bus.MOST_PATHS
    assert len(bus._paths[""]) <= bus.MOST_PATHS
    assert bus.threads.here.path == ""


def test_scopes_and_phases_are_restored_by_exceptions_and_work_as_decorators(sink: Any) -> None:
    @bus.scope("f")
    @bus.phase("optimizer")
    def path() -> tuple[str, int]:
        return bus.threads.here.path, bus.threads.here.phase

    pump.attach(sink)
    with pytest.raises(ZeroDivisionError), bus.scope("a"), bus.phase("backward"):
        _ = 1 // 0
    assert (bus.threads.here.path, bus.threads.here.phase) == ("", 0)
    assert path() == ("f", 3)
    with bus.scope("a"):
        assert path() == ("a.f", 3)
    pump.detach(sink)
    entered = sink.rows(schema.SCOPE)
    assert ((entered[:, 0] >> 8) & 1).tolist() == [1, 0, 1, 0, 1, 1, 0, 0]
    assert set((entered[:, 0] >> 8).tolist()) == {schema.ENTER_BLOCK, 0}  # none is a module's
    with pytest.raises(
        ValueError, match="unknown phase 'sideways'; expected one of other, forward, backward, optimizer"
    ):
        bus.phase("sideways").__enter__()


def test_steps_count_by_themselves_and_metrics_belong_to_them(sink: Any) -> None:
    pump.attach(sink)
    bus.log(loss=3.0)
    bus.mark_step()
    with bus.step(total=9):
        bus.log(loss=2.5, accuracy=np.float32(0.5))
        bus.mark_step()  # an optimizer's, inside an explicit step: no step of its own
    with bus.step(index=7):
        pass
    with bus.step():
        bus.log(loss=1)
    pump.detach(sink)
    steps = sink.rows(schema.STEP)
    assert steps[:, 3].tolist() == [0, 1, 7, 8]
    assert steps[:, 4].tolist() == [0, 9, 0, 0]
    assert (steps[:, 2] >= steps[:, 1]).all()
    metrics = schema.columns(schema.KINDS["metric"], sink.rows(schema.METRIC))
    assert [intern.strings.items[n] for n in metrics["name"]] == ["loss", "loss", "accuracy", "loss"]
    assert metrics["step"].tolist() == [0, 1, 1, 8]
    assert metrics["value"].tolist() == [3.0, 2.5, 0.5, 1.0]


def test_a_step_that_is_no_number_is_an_error(sink: Any) -> None:
    pump.attach(sink)
    with pytest.raises(TypeError, match=r"flnb.step: index must be an int, got 'first'"):
        bus.step(index="first").__enter__()  # type: ignore[arg-type]
    pump.detach(sink)
    assert not len(sink.rows(schema.STEP))


def test_a_metric_logged_before_or_after_the_optimizer_belongs_to_its_step(sink: Any) -> None:
    pump.attach(sink)
    for i in range(3):
        with bus.phase("backward"):
            pass
        bus.log(before=i)
        bus.mark_step()
        bus.log(after=i)
    pump.detach(sink)
    metrics = schema.columns(schema.KINDS["metric"], sink.rows(schema.METRIC))
    assert metrics["step"].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_metric_logged_after_a_step_block_belongs_to_that_step(sink: Any) -> None:
    pump.attach(sink)
    for i in range(2):
        with bus.step(), bus.phase("backward"):
            pass
        bus.log(after=i)
    pump.detach(sink)
    metrics = schema.columns(schema.KINDS["metric"], sink.rows(schema.METRIC))
    assert metrics["step"].tolist() == [0, 1]


def test_log_refuses_what_is_no_number_and_costs_nothing_while_off(sink: Any) -> None:
    bus.log(loss=object())  # nobody records: not even looked at
    pump.attach(sink)
    with pytest.raises(TypeError, match=r"flnb.log: loss is ndarray, expected one number; reduce it first"):
        bus.log(loss=np.ones(3))
    with pytest.raises(TypeError, match=r"flnb.log: name is str"):
        bus.log(name="adam")
