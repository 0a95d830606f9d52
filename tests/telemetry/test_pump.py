"""The pump: feeds every sink what is its, counts what was lost, and puts back what it changed."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from flnb_telemetry import bus, intern, pump, record, schema, step
from flnb_telemetry.lane import NOBODY, event_ns
from flnb_telemetry.recording import Recording

from tests.telemetry.conftest import Collector


def test_a_patient_sink_is_fed_when_a_buffer_fills_at_a_flush_and_at_the_end(sink: Any) -> None:
    sink.live = False
    session = pump.attach(sink, buffer=64 * 100, interval=0.002)
    lane = bus.lanes.lane
    for i in range(50):
        lane.emit(schema.OP, i)
    time.sleep(0.05)
    assert lane.undrained == 50 * 64
    assert not sink.parts
    lane.emit(schema.OP, 50)
    deadline = time.monotonic() + 5
    while lane.undrained and time.monotonic() < deadline:
        time.sleep(0.002)
    assert len(sink.rows()) == 51
    lane.emit(schema.OP, 51)
    pump.flush()
    assert len(sink.rows()) == 52
    lane.emit(schema.OP, 52)
    pump.detach(sink)
    assert len(sink.rows()) == session.events == 53


def test_rounds_are_rare_while_no_buffer_could_be_full_before_the_next(sink: Any) -> None:
    session = pump.attach(sink)
    lane = bus.lanes.lane
    assert session._pause() == pump.CALM * pump.INTERVAL
    sink.grad_interval = 0.1
    assert session._pause() == 0.1
    sink.grad_interval, sink.patience = None, 0.0
    assert session._pause() == pump.INTERVAL
    sink.patience = None
    with session._working:  # the pump leaves these records where they are
        lane.pending += (0,) * (lane.limit - schema.WORDS * pump.FASTEST // 10)
        assert session._pause() == pytest.approx(0.1)
        lane.pending += (0,) * (lane.limit - len(lane.pending))
        assert session._pause() == pump.INTERVAL
        lane.pending.clear()
    pump.detach(sink)


def test_a_flush_waits_for_a_slow_sink_only_as_long_as_it_was_told(sink: Any) -> None:
    writing, written = threading.Event(), threading.Event()

    class Slow(Collector):
        def feed(self, lane: int, records: Any) -> None:
            writing.set()
            assert written.wait(20)
            super().feed(lane, records)

    slow = Slow()
    pump.attach(sink, interval=60)
    pump.attach(slow, interval=60)
    bus.emit(schema.OP, 1)
    pump.flush(0.001)
    assert writing.wait(20)
    assert len(sink.rows()) == 1  # it was fed before the slow one
    assert not slow.parts
    written.set()
    pump.flush()
    assert len(slow.rows()) == 1
    pump.detach(slow)


def test_drops_are_told_once_and_add_up_with_a_tiny_buffer(sink: Any) -> None:
    session = pump.attach(sink, buffer=1024, interval=60)
    for round_ in range(3):
        for i in range(100):
            bus.emit(schema.OP, round_ * 100 + i)
        pump.flush()
    pump.detach(sink)
    told = sink.rows(schema.DROPPED)
    assert len(sink.rows()) + told[:, 2].sum() == 300
    assert told[:, 2].tolist() == [84, 84, 84]
    assert told[:, 1].tolist() == [16, 116, 216]
    assert told[:, 3].tolist() == [99, 199, 299]
    assert session.events == 3 * 17


def test_drops_at_the_very_end_are_told_too(sink: Any) -> None:
    pump.attach(sink, buffer=128, interval=60)
    for i in range(10):
        bus.emit(schema.OP, i)
    pump.detach(sink)
    assert sink.rows(schema.DROPPED)[:, 2].tolist() == [8]


def test_lanes_of_ended_threads_are_let_go_and_their_drops_kept(sink: Any) -> None:
    session = pump.attach(sink, buffer=128, interval=60)
    for _ in range(5):
        thread = threading.Thread(target=lambda: [bus.emit(schema.OP, i) for i in range(4)])
        thread.start()
        thread.join()
    pump.flush()
    assert bus.lanes.last is NOBODY
    pump.flush()  # the lane used last stays for a while: a new thread may have the ended one's ident
    assert not session.lanes  # this thread has none: it has emitted nothing
    assert sink.rows(schema.DROPPED)[:, 2].tolist() == [2] * 5
    assert len(sink.rows()) == 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_starts_with_telemetry_off_and_can_record(sink: Any) -> None:
    pump.attach(sink)
    bus.emit(schema.OP, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads, which is the point here
        child = os.fork()
    if child == 0:
        try:
            assert bus.lanes is None
            assert pump.session is None
            own = Collector()
            pump.attach(own)
            bus.emit(schema.OP, 2)
            intern.strings.id_of("only in the child")
            pump.detach(own)
            os._exit(0 if own.rows()[:, 1].tolist() == [2] else 3)
        except BaseException:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    bus.emit(schema.OP, 3)
    pump.detach(sink)
    assert sink.rows()[:, 1].tolist() == [1, 3]


def test_a_sink_that_raises_stops_alone() -> None:
    class Broken(Collector):
        def feed(self, lane: int, records: Any) -> None:
            raise RuntimeError("full disk")

    broken, whole = Broken(), Collector()
    pump.attach(broken)
    pump.attach(whole)
    bus.emit(schema.OP, 1)
    pump.flush()
    bus.emit(schema.OP, 2)
    with pytest.warns(UserWarning, match=r"Broken stopped recording early: RuntimeError\('full disk'\)"):
        pump.detach(broken)
    pump.detach(whole)
    assert whole.rows()[:, 1].tolist() == [1, 2]


def test_what_is_no_sink_is_refused_before_the_pump_starts() -> None:
    with pytest.raises(
        TypeError, match=r"attach: expected a sink, such as .*, got 3, which has no grad_interval, live"
    ):
        pump.attach(3)  # type: ignore[arg-type]
    assert pump.session is None
    with pytest.raises(TypeError, match=r"detach: expected a sink, such as .*, got 3, which has no grad_interval"):
        pump.detach(3)  # type: ignore[arg-type]


def test_a_sink_that_raises_although_it_is_due_stops_alone() -> None:
    class Full(Collector):
        patience = 0.0

        def feed(self, lane: int, records: Any) -> None:
            if len(records) or self.failure is not None:  # from then on at every call, as a recording on a full disk
                raise OSError("full disk")

    full, whole = Full(), Collector()
    session = pump.attach(full, interval=0.001)
    pump.attach(whole)
    bus.emit(schema.OP, 1)
    deadline = time.monotonic() + 20
    while full.failure is None and time.monotonic() < deadline:
        time.sleep(0.001)
    bus.emit(schema.OP, 2)
    pump.flush()
    assert session.thread.is_alive()
    with pytest.warns(UserWarning, match=r"Full stopped recording early: OSError\('full disk'\)"):
        pump.detach(full)
    pump.detach(whole)
    assert whole.rows()[:, 1].tolist() == [1, 2]


def test_a_second_sink_gets_what_comes_after_it_and_what_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "announcers", [lambda lane: lane.emit(schema.SEGMENT_ALLOC, 5, 1, 0, 4096)])
    first, second = Collector(), Collector()
    pump.attach(first)
    bus.emit(schema.OP, 1)
    pump.attach(second)
    bus.emit(schema.OP, 2)
    pump.detach(first)
    assert bus.lanes is not None
    bus.emit(schema.OP, 3)
    pump.detach(second)
    assert first.rows()[:, 1].tolist() == [1, 2]
    assert second.rows()[:, 1].tolist() == [2, 3]
    assert len(first.rows(schema.SEGMENT_ALLOC)) == len(second.rows(schema.SEGMENT_ALLOC)) == 1


def test_gradients_are_wanted_at_once_and_then_at_intervals(sink: Any) -> None:
    sink.grad_interval = 0.05
    pump.attach(sink, interval=0.005)
    assert bus.want_grad_stats
    bus.want_grad_stats = False
    time.sleep(0.01)
    assert not bus.want_grad_stats
    deadline = time.monotonic() + 2
    while not bus.want_grad_stats and time.monotonic() < deadline:
        time.sleep(0.005)
    assert bus.want_grad_stats
    pump.detach(sink)
    assert not bus.want_grad_stats


def test_sinks_share_the_passes_whose_gradients_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live view beside a recording must not add its own measured passes to those of the recording."""
    session = pump.Session(1 << 16, 1.0)
    session.sinks = [Recording("often", grad_interval=0.2), Recording("rare", grad_interval=0.5), Recording("no")]
    session.sinks[2].grad_interval = None
    wanted = []
    for tenth in range(1, 13):
        monkeypatch.setattr(pump, "clock", lambda now=tenth * 100_000_000: now)
        monkeypatch.setattr(bus, "want_grad_stats", False)
        session._want_grad_stats()
        wanted += [tenth] if bus.want_grad_stats else []
    assert wanted == [1, 3, 5, 7, 9, 11]


def test_telemetry_knows_what_it_costs(sink: Any) -> None:
    session = pump.attach(sink)
    assert 20 < event_ns() < 100_000
    for _ in range(1000):
        bus.emit(schema.OP, 1)
    pump.flush()
    expected = (1000 * event_ns() + session.pump_ns) / (time.perf_counter_ns() - session.started)
    assert session.share() == pytest.approx(min(1.0, expected), rel=0.2)


def test_the_switch_interval_is_put_back() -> None:
    import sys

    before = sys.getswitchinterval()
    sink = Collector()
    pump.attach(sink)
    assert sys.getswitchinterval() <= before
    pump.detach(sink)
    assert sys.getswitchinterval() == before


def test_recordings_in_two_threads_neither_end_nor_shorten_each_other(program: Any) -> None:
    """They overlap; each begins, ends and counts its steps by itself, and has the buffer that it asked for."""
    small, large = record("small", buffer=64), record("large", buffer="1MiB")
    begun, ended = threading.Event(), threading.Event()
    runs: dict[str, Any] = {}

    def rank() -> None:
        with bus.own_steps(), large as run:
            begun.set()
            assert ended.wait(10)
            for _ in range(3):
                with step():
                    for _ in range(100):
                        bus.lanes.lane.emit(schema.OP, time.perf_counter_ns())
            runs["large"] = run

    thread = threading.Thread(target=rank)
    with small as runs["small"]:
        thread.start()
        assert begun.wait(10)
        with step(7):
            program.op()
    session = pump.session
    ended.set()
    thread.join()
    assert session is not None
    assert session.capacity == 1 << 20
    assert runs["small"].state == runs["large"].state == "finished"
    assert runs["small"].steps["index"].tolist() == [7]
    assert runs["large"].steps["index"].tolist() in ([7, 0, 1, 2], [0, 1, 2])  # the first may see its beginning
    assert (len(runs["small"].table("op")["t0"]), runs["small"].dropped) == (1, 0)
    assert runs["large"].dropped == 0
    assert len(runs["large"].table("op")["t0"]) >= 300
    assert pump.session is bus.lanes is None


def test_a_sink_need_not_be_hashable() -> None:
    @dataclass
    class Sink:
        grad_interval: float | None = 0.5
        live: bool = False
        patience: float | None = None
        failure: BaseException | None = None
        count: int = 0

        def feed(self, lane: int, records: schema.Records) -> None:
            self.count += len(records)

    sink = Sink()
    pump.attach(sink)
    bus.emit(schema.OP, 1)
    pump.detach(sink)
    assert sink.count == 1
    assert pump.session is None


def test_a_sink_that_goes_leaves_nothing_behind(sink: Any) -> None:
    first = Collector()
    first.grad_interval = 60
    session = pump.attach(sink)
    pump.attach(first)
    pump.detach(first)
    assert not session._grad_due


def test_work_that_a_stopped_thread_has_taken_is_done_by_the_thread_that_asks(
    sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since 3.13 a queue hands an item to the thread that waits for it, even if the interpreter has stopped it."""
    session, done = pump.attach(sink), []
    asked = session._asked
    with monkeypatch.context() as stopped:
        stopped.setattr(session, "_asked", SimpleNamespace(get=asked.get, put=lambda _: None, empty=lambda: True))
        stopped.setattr(sys, "is_finalizing", lambda: True)
        session.ask(lambda: done.append(1))
    pump.detach(sink)
    assert done == [1]
