"""Recordings on disk: written while they come, readable one file when they are closed."""

from __future__ import annotations

import errno
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import RunFileError, bus, encoding, load_run, log, pump, record, schema, step
from flnb_telemetry.formats import folder, parquet, writing

from tests.telemetry.conftest import Collector

pytest.importorskip("pyarrow")

if TYPE_CHECKING:
    from pathlib import Path


def emit(program: Any, count: int, plan: int = 0) -> None:
    """Emit ops at times of the program, in the order of their nodes."""
    lane = bus.lanes.lane  # type: ignore[union-attr]
    code = schema.OP | plan << schema.PLAN_SHIFT
    for _ in range(count):
        program.node += 1
        program.t += 1000
        lane.pending += (code, program.t, program.t + 500, 0, program.node, lane.context, 0, 0)


def settled(run: Any) -> None:
    """Make the recording write what it has, as it does every two seconds."""
    pump.flush()
    run._store_all(run.folder)


def test_a_recording_to_a_file_is_the_one_in_memory(program: Any, tmp_path: Path) -> None:
    path, plan = tmp_path / "a.flnb", program.plan("exp")
    with record("disk", path=path) as run, record("memory") as other:
        for i in range(3):
            with step(total=3), bus.scope("net"):
                emit(program, 50, plan)
                block = program.alloc(4096 * i, 4096)
                log(loss=1.0 / (1 + i))
            settled(run)
            assert run.ops["exp"].count == 50 * (i + 1)  # of the parts, and of what waits
            emit(program, 5, program.plan(f"new {i}"))
            assert run.ops[f"new {i}"].count == 5
        program.free(block, 8192, 4096)
        assert path.is_dir()
        running = load_run(path)
        assert (running.state, running.ops["exp"].count) == ("recording", 150)
    assert path.is_file()
    assert [item.name for item in tmp_path.iterdir()] == ["a.flnb"]
    for one in (run, load_run(path)):
        assert (one.name, one.state, one.error, one.events) == ("disk", "finished", None, other.events)
        assert {key: one.meta[key] for key in ("path", "limit", "batch_events", "batch_seconds", "grad_interval")} == {
            "path": str(path), "limit": None, "batch_events": 1 << 18, "batch_seconds": 2.0, "grad_interval": 0.5
        }  # fmt: skip
        for kind in schema.KINDS:
            there, here = other.table(kind), one.table(kind)
            assert there.keys() == here.keys()
            for name in there:
                np.testing.assert_array_equal(here[name], there[name])
                assert here[name].dtype == there[name].dtype
        assert repr(one.ops.by("scope", "op")) == repr(other.ops.by("scope", "op"))
        one.save(tmp_path / "copy.flnb")
        copy = load_run(tmp_path / "copy.flnb")
        assert copy.memory.timeline().allocated.tolist() == other.memory.timeline().allocated.tolist() != []


def test_events_leave_the_memory_and_groups_of_rows_are_joined(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "ROWS", 100)
    monkeypatch.setattr(writing, "GROUP", 250)
    path = tmp_path / "a.flnb"
    with record(path=path) as run:
        for _ in range(10):
            emit(program, 120)
            pump.flush()
            run._writer.wait()
            assert sum(len(rows) for _, rows in run._batches) < 100
        assert len(list(path.glob("*.op.parquet"))) == 10
    assert [len(table["t0"]) for table in load_run(path).chunks("op")] == [360, 360, 360, 120]
    assert run.table("op")["node"].tolist() == list(range(1, 1201))


def test_the_pump_writes_what_waits_without_further_events(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "SECONDS", 0.0)
    monkeypatch.setattr(folder.Folder, "patience", 0.01)
    path, written = tmp_path / "a.flnb", threading.Event()
    write = folder.Folder.write

    def seen(self: Any, *arguments: Any) -> None:
        write(self, *arguments)
        if arguments[1]:  # events, not the names at the beginning
            written.set()

    monkeypatch.setattr(folder.Folder, "write", seen)
    with record(path=path):
        emit(program, 3)
        assert written.wait(10)
        assert load_run(path).events >= 1


def test_what_is_at_the_path_is_not_overwritten(run: Any, tmp_path: Path) -> None:
    path, other = tmp_path / "a.flnb", tmp_path / "mine"
    run.save(path)
    with pytest.raises(FileExistsError, match=r"path='.*a\.flnb' exists already; choose another path, or give replace"):
        record(path=path).begin()
    assert load_run(path).events == run.events
    other.mkdir()
    (other / "thesis.tex").write_text("precious")
    with pytest.raises(FileExistsError, match="exists already and is a folder, but no recording; choose another path"):
        record(path=other, replace=True).begin()
    with pytest.raises(FileExistsError, match="exists already and is a file, but no recording; choose another path"):
        record(path=other / "thesis.tex", replace=True).begin()
    assert (other / "thesis.tex").read_text() == "precious"
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*nowhere' for path='.*a\.flnb'; make it first"):
        record(path=tmp_path / "nowhere" / "a.flnb").begin()
    with record(path=path, replace=True), pytest.raises(FileExistsError, match="is being recorded now"):
        record(path=path, replace=True).begin()
    assert load_run(path).events == 0
    with pytest.raises(RunFileError, match="mine' is a folder but no recording; expected one that"):
        load_run(other)


class SlowDisk:
    """Batches are written when `writes` is set; `waits` is set while one waits for that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits, self.writes = threading.Event(), threading.Event()
        write = writing.writer.write

        def slow(to: Any, columns: Any) -> None:
            self.waits.set()
            assert self.writes.wait(30)
            write(to, columns)

        monkeypatch.setattr(writing.writer, "write", slow)
        monkeypatch.setattr(folder, "ROWS", 100)


def test_other_sinks_receive_events_while_a_batch_is_written(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, other, path = SlowDisk(monkeypatch), Collector(), tmp_path / "a.flnb"
    with record(path=path) as run:
        pump.attach(other)
        emit(program, 110)
        pump.flush()
        assert disk.waits.wait(30)
        emit(program, 60)
        pump.flush()
        assert len(other.rows()) == 170
        assert run.ops[""].count == 170  # those that are being written are not lost from sight
        emit(program, 40)
        pump.flush(patience=0.01)  # two batches wait: the pump does, too, so that memory stays bounded
        emit(program, 5)
        pump.flush(patience=0.01)
        assert len(other.rows()) == 170
        disk.writes.set()
        pump.flush()
        pump.detach(other)
        assert len(other.rows()) == run.ops[""].count == 215
    assert load_run(path).events == run.events == 215


def test_the_end_waits_for_the_batch_that_is_being_written_and_a_forked_child_does_not(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path, block = SlowDisk(monkeypatch), tmp_path / "a.flnb", record(path=tmp_path / "a.flnb")
    run = block.__enter__()
    emit(program, 110)
    pump.flush()
    assert disk.waits.wait(30)
    child = os.fork()
    if child == 0:
        run.finish()
        os._exit(0 if path.is_dir() else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    emit(program, 10)
    end = threading.Thread(target=block.__exit__, args=(None, None, None))
    end.start()
    end.join(0.05)
    assert end.is_alive()
    disk.writes.set()
    end.join(30)
    assert (run.state, load_run(path).events) == ("finished", 120)


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", ["part", "journal"])
def test_a_full_disk_is_reported_and_what_was_written_stays(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path = tmp_path / "a.flnb"
    append = folder.Folder._append

    def short(self: Any, line: Any) -> None:
        if "parts" in line:
            self._files[1].write(json.dumps(line).encode()[:20])  # the part of the line that had space
            os.ftruncate(self._files[1].fileno(), self._files[1].tell() - 20)
            full()
        append(self, line)

    block, other = record(path=path), Collector()
    run = block.__enter__()
    pump.attach(other)
    emit(program, 100)
    settled(run)
    with monkeypatch.context() as patch:
        patch.setattr(folder, "ROWS", 10)
        if what == "part":
            patch.setattr(writing.writer, "write", full)
        else:
            patch.setattr(folder.Folder, "_append", short)
        emit(program, 50)
        pump.flush()
        run._writer.wait()
    emit(program, 50)  # the program goes on
    pump.detach(other)
    with pytest.warns(UserWarning, match=r"stopped recording early.*No space left.*the first 100 events are in it"):
        block.__exit__(None, None, None)
    assert len(other.rows()) == 200
    for one in (run, load_run(path)):
        assert one.state == "failed"
        assert one.error is not None
        assert one.error.startswith(
            f"interrupted: OSError: [Errno 28] flnb.record: {str(path)!r} could not be written (No space"
        )
        assert len(one.table("op")["t0"]) == 100
        assert (one.events, one.dropped) == (100, 50)  # those of its batch; later ones are not counted
    assert path.is_dir()


def test_a_folder_that_cannot_become_a_file_stays_and_opens(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.flnb"
    block = record(path=path)
    block.__enter__()
    emit(program, 10)
    monkeypatch.setattr(parquet, "write", full)
    with pytest.warns(RuntimeWarning, match=r"could not be made one file \(No space left .*\); it stays a folder"):
        block.__exit__(None, None, None)
    monkeypatch.undo()
    run = load_run(path)
    assert (run.state, run.error, run.events) == ("finished", None, 10)
    run.save(tmp_path / "b.flnb")
    assert load_run(tmp_path / "b.flnb").events == 10


def test_values_that_are_no_numbers_are_refused(run: Any, tmp_path: Path) -> None:
    for value in ("many", -(2**70), 1.5, True):
        run.meta["min_block"] = value
        run.save(tmp_path / "a.flnb")
        with pytest.raises(RunFileError, match=r"the manifest's meta do not have the form that run.save writes"):
            load_run(tmp_path / "a.flnb")


def test_events_that_are_damaged_are_named_when_they_are_read(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    run.save(path)
    back = load_run(path)
    content = bytearray(path.read_bytes())
    at = content.index(b"op.parquet") + 10
    content[at + 40 : at + 80] = bytes(40)
    path.write_bytes(content)  # the file that `back` has open
    with pytest.raises(RunFileError, match=r"the events 'op' of '.*a\.flnb' is damaged"):
        back.table("op")
    assert back.table("step").keys() == run.table("step").keys()


def test_a_file_that_is_replaced_after_it_was_opened_is_still_read(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    run.save(path)
    back = load_run(path)
    path.unlink()
    assert repr(back.ops) == repr(run.ops)


def test_float_values_come_back(program: Any, tmp_path: Path) -> None:
    with record(path=tmp_path / "a.flnb"):
        program.gradient(3, 0.25)
        bus.emit(schema.METRIC, program.t, 1, encoding.float_bits(-2.5))
    run = load_run(tmp_path / "a.flnb")
    assert run.table("grad_stat")["norm"].tolist() == [0.25]
    assert run.table("metric")["value"].tolist() == [-2.5]
