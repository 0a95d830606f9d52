"""Recordings on disk however they end: their process is killed or forks, the interpreter ends, they are collected."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from flnb_telemetry import load_run, pump, record
from flnb_telemetry.formats import folder

from tests.telemetry.test_folder import emit, settled

pytest.importorskip("pyarrow")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


KILLED = """
import os, signal, sys
from flnb_telemetry import bus, pump, record, schema
from flnb_telemetry.intern import Plan, plans
number = plans.id_of(Plan("exp", "elementwise", (2,), "float32", 8))
with record("long", path=sys.argv[1]) as run:
    lane = bus.lanes.lane
    for i in range(3):
        for j in range(1000):
            t = run.start + 1000 * (1000 * i + j)
            lane.pending += (schema.OP | number << schema.PLAN_SHIFT, t, t + 500, 0, j, lane.context, 0, 0)
        pump.flush()
        if i < 2:
            run._store_all(run.folder)
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    sys.stdin.readline()
"""


def test_a_killed_process_loses_the_last_batch_and_that_is_stated(tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert load_run(path).state == "recording"  # seen from another process
        with pytest.raises(FileExistsError, match="is being recorded now; end that recording"):
            record(path=path, replace=True).begin()
        assert load_run(path).state == "recording"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
    run = load_run(path)
    assert run.state == "failed"
    assert run.error == (
        "interrupted: the process ended without closing the recording; what it had not written yet is missing, at most "
        "about 262 k events of the last 2 s"
    )
    assert repr(run).splitlines()[1] == run.error
    assert run.ops["exp"].count == 2000
    assert run.seconds == pytest.approx(2e-3, abs=1e-5)
    with open(path / folder.JOURNAL, "ab") as journal:
        journal.write(b'{"parts": {"op"')  # the process was killed while it wrote
    (path / "000003.op.parquet").write_bytes(b"PAR1")
    assert load_run(path).ops["exp"].count == 2000
    (path / "000002.op.parquet").write_bytes(b"")  # a machine without power
    run = load_run(path)
    assert run.ops["exp"].count == run.dropped == 1000
    assert run.error is not None
    assert run.error.endswith("; 1000 events in damaged parts are missing")
    run.save(tmp_path / "rest.flnb")
    assert load_run(tmp_path / "rest.flnb").ops["exp"].count == 1000
    whole = (path / folder.JOURNAL).read_bytes()
    (path / folder.JOURNAL).write_bytes(whole.splitlines(keepends=True)[0])
    run = load_run(path)
    assert (run.events, run.error) == (
        0, "interrupted: journal.jsonl is cut off: the events in 3 further files are missing"
    )  # fmt: skip
    with record(path=path, replace=True):
        pass
    assert load_run(path).events == 0


def test_a_forked_process_leaves_its_parent_s_recording_alone(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    with record(path=path) as run:
        emit(program, 10)
        settled(run)
        child = os.fork()
        if child == 0:
            try:
                run.finish()
                os._exit(0 if load_run(path).state == "recording" else 3)
            except BaseException:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert load_run(path).state == "recording"
        emit(program, 5)
    assert load_run(path).events == 15


def test_a_recording_collected_on_the_pump_s_thread_ends_without_waiting_for_it(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the garbage collector may do it, while a thread that holds the lock of `attach` waits for the pump."""
    path = tmp_path / "a.flnb"
    monkeypatch.setattr(pump, "_lock", threading.RLock())  # tests that raise Ctrl-C at every line leave it locked

    class Cycle:
        def __init__(self) -> None:
            self.body = self.recorded()
            next(self.body)

        def recorded(self) -> Iterator[None]:
            with record(path=path):
                yield  # the collector raises GeneratorExit here

    cycle = Cycle()
    emit(program, 10)
    ended, session = weakref.ref(cycle), pump.session
    assert session is not None
    before = set(threading.enumerate())

    def collect() -> None:
        gc.collect()
        assert pump.is_pump()

    gc.disable()
    try:
        del cycle
        with pump._lock:  # as `attach` holds it
            session.ask(collect)
        assert ended() is None
    finally:
        gc.enable()
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
    assert pump.session is None
    run = load_run(path)
    assert (run.state, run.error, run.events) == ("failed", "GeneratorExit", 10)


UNENDED = """
import sys
from flnb_telemetry import bus, pump, record, schema
block = record("unended", path=sys.argv[1])
run = block.__enter__()
lane = bus.lanes.lane
lane.pending += (schema.OP, run.start, run.start + 500, 0, 1, lane.context, 0, 0)
pump.flush()
run._store_all(run.folder)
lane.pending += (schema.OP, run.start, run.start + 500, 0, 1, lane.context, 0, 0)
class Held:
    def __del__(self, end=block.end, sys=sys):
        assert sys.is_finalizing()
        end(None)
held = Held()  # is deleted when no other thread runs any more
del block
"""


def test_a_recording_that_ends_with_the_interpreter_waits_for_no_thread(tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    done = subprocess.run([sys.executable, "-c", UNENDED, str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert load_run(path).events == 1  # the first batch


def test_a_sink_detached_on_the_pump_s_thread_gets_what_was_emitted(program: Any, sink: Any) -> None:
    session = pump.attach(sink)
    emit(program, 3)
    with pump._lock:
        session.ask(lambda: pump.detach(sink))
    session.thread.join(30)
    assert len(sink.rows()) == 3
    assert pump.session is None


AT_EXIT = """
import atexit, sys
from flnb_telemetry import bus, record, schema
block = record("ends at exit", path=sys.argv[1])
run = block.__enter__()
lane = bus.lanes.lane
lane.pending += (schema.OP, run.start, run.start + 500, 0, 1, lane.context, 0, 0)
atexit.register(block.__exit__, None, None, None)
"""


def test_a_recording_that_ends_at_exit_is_whole(tmp_path: Path) -> None:
    """No module can be imported any more that registers itself with `threading`, as pandas does."""
    path = tmp_path / "a.flnb"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", AT_EXIT, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    run = load_run(path)
    assert (run.state, run.error, run.events) == ("finished", None, 1)
    assert path.is_file()
