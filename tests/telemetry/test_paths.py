"""Recordings on disk where something goes wrong: foreign files, odd paths, Ctrl-C, a full disk, a moved folder."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import zipfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from flnb_telemetry import RunFileError, load_run, pump, record, recorder, recording, worker
from flnb_telemetry.formats import folder, journal, parquet, writing
from flnb_telemetry.formats.listing import runs

from tests.telemetry.conftest import Collector
from tests.telemetry.test_folder import emit, full, settled

pytest.importorskip("pyarrow")

if TYPE_CHECKING:
    from pathlib import Path


def names(place: Path) -> list[str]:
    return sorted(item.name for item in place.iterdir())


@pytest.mark.parametrize("content", ["zip", "zip of another format", "nothing"])
def test_replace_deletes_no_foreign_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "archive.zip"
    with open(path, "wb") as file:
        if content != "nothing":
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("manifest.json", '{"format": "another"}' if "format" in content else "[1")
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="is a file, but no recording; choose another path"):
        record(path=path, replace=True).begin()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"2024.parquet": b"1"},
        {"000001.op.parquet": b"1"},
        {"lock": b"", "journal.jsonl": b"", "data.parquet": b"1"},
        {"lock": b"", "journal.jsonl": b"", "manifest.json": b'{"format": "another"}'},
    ],
)
def test_replace_deletes_no_foreign_folder(tmp_path: Path, files: dict[str, bytes]) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    for name, content in files.items():
        (place / name).write_bytes(content)
    with pytest.raises(FileExistsError, match="is a folder, but no recording; choose another path"):
        record(path=place, replace=True).begin()
    assert {name: (place / name).read_bytes() for name in names(place)} == files


def test_replace_deletes_no_link_to_nothing(tmp_path: Path) -> None:
    link = tmp_path / "a.flnb"
    link.symlink_to(tmp_path / "gone")
    with pytest.raises(FileExistsError, match="is a link to nothing; choose another path, or delete the link"):
        record(path=link, replace=True).begin()
    assert link.is_symlink()


def test_a_recording_opens_before_its_first_events(tmp_path: Path) -> None:
    path, copy = tmp_path / "a.flnb", tmp_path / "killed.flnb"
    with record("early", path=path):
        found = load_run(path)
        assert (found.name, found.state, found.error, found.events) == ("early", "recording", None, 0)
        shutil.copytree(path, copy)
    killed = load_run(copy)
    assert (killed.state, killed.events) == ("failed", 0)
    assert str(killed.error).startswith("interrupted: the process ended without closing the recording")
    with record(path=copy, replace=True):
        pass


def test_events_are_written_within_the_seconds_that_are_promised(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the pump asks: events that it would not see again in time are written now."""
    now = [100.0]
    monkeypatch.setattr(folder, "monotonic", lambda: now[0])
    with record(path=tmp_path / "a.flnb") as run:
        assert run.folder is not None
        patience = run.patience
        assert patience is not None
        age = 0.0
        while not run.folder.due([(1, [1])]):  # type: ignore[list-item]
            now[0] += patience
            age += patience
        assert age <= folder.SECONDS


def test_the_program_may_change_its_folder(program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(tmp_path)
    with record(path="a.flnb") as run:
        emit(program, 3)
        settled(run)
        os.chdir(other)
        emit(program, 4)
    assert (run.events, load_run(tmp_path / "a.flnb").events) == (7, 7)
    assert names(other) == []


def test_a_path_need_not_be_utf_8(program: Any, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"r\xe9sum\xe9.flnb")
    with record(path=path) as run:
        emit(program, 5)
        settled(run)
        assert load_run(path).events == 5
    assert (run.error, load_run(path).events) == (None, 5)
    assert [(one.state, one.events) for one in runs(tmp_path)] == [("complete", 5)]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"name": 7}, TypeError, r"record\(name=7\): expected a string"),
        ({"grad_interval": "x"}, TypeError, r"record\(grad_interval='x'\): expected a number of seconds, or None"),
        ({"grad_interval": -1}, ValueError, r"record\(grad_interval=-1\): expected a finite number of seconds of at"),
        ({"grad_interval": float("nan")}, ValueError, r"record\(grad_interval=nan\): expected a finite number"),
        ({"path": ""}, ValueError, r"path='' does not name a file; expected one such as 'run.flnb'"),
    ],
)
def test_wrong_arguments_leave_nothing(
    options: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        record(**{"path": "a.flnb"} | options).begin()
    assert (names(tmp_path), pump.session) == ([], None)


def test_a_recording_that_cannot_begin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.flnb"
    with monkeypatch.context() as patch:
        patch.setattr(folder.Folder, "_append", full)
        with pytest.raises(OSError, match="Free some space and record again"), record(path=path):
            raise AssertionError
    assert (names(tmp_path), pump.session, folder._open) == ([], None, set())
    with record(path=path):
        pass


def test_a_folder_that_cannot_be_closed_is_unlocked(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, block = tmp_path / "a.flnb", record(path=tmp_path / "a.flnb")
    block.begin()
    monkeypatch.setattr(parquet, "called", lambda _: {"frames": {1}})  # no JSON
    with pytest.raises(TypeError):
        block.end(None)
    assert not folder.is_written(path)
    monkeypatch.undo()
    with record(path=path, replace=True):
        pass


def test_a_sink_with_a_wrong_interval_does_not_end_telemetry(program: Any) -> None:
    wrong: Any = Collector()
    wrong.grad_interval = "x"
    with pytest.raises(
        TypeError, match=r"attach: expected the sink's grad_interval to be a number of seconds or None, go"
    ):
        pump.attach(wrong)
    assert pump.session is None
    with record() as run:
        emit(program, 3)
    assert run.events == 3


def test_events_after_a_failed_write_are_dropped_and_nothing_else(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = record(path=tmp_path / "a.flnb")
    run = block.begin()
    emit(program, 10)
    settled(run)
    emit(program, 5)
    with monkeypatch.context() as patch:
        patch.setattr(writing.writer, "write", full)
        with pytest.warns(RuntimeWarning, match="the first 10 events are in it"):
            block.end(None)
    assert (run.events, run.dropped) == (10, 5)
    assert [(one.state, one.events) for one in runs(tmp_path)] == [("interrupted", 10)]


@pytest.mark.parametrize("where", ["before", "after", "waiting"])
def test_ctrl_c_in_the_last_write_loses_nothing(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The write is on a thread of its own: Ctrl-C arrives before or after its start, or while its end is awaited."""
    start, join, left = worker.start, threading.Thread.join, [1]

    def interrupt() -> None:
        if left:
            left.clear()
            raise KeyboardInterrupt

    def started(thread: threading.Thread) -> None:
        if where == "before":
            interrupt()
        start(thread)
        if where == "after":
            interrupt()

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        if where == "waiting" and thread.name == recording.WRITER:
            interrupt()
        join(thread, timeout)

    path = tmp_path / "a.flnb"
    with suppress(KeyboardInterrupt), record(path=path) as run:
        emit(program, 6)
        monkeypatch.setattr(worker, "start", started)
        monkeypatch.setattr(threading.Thread, "join", joined)
    assert left == []
    found = load_run(path)
    assert (found.events, found.dropped, path.is_file(), run.events) == (6, 0, True, 6)


def test_ctrl_c_at_any_line_of_a_beginning_leaves_the_path_free(program: Any, tmp_path: Path) -> None:
    path, lines, left, before = tmp_path / "a.flnb", 0, 0, sys.gettrace()

    def traced(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        left -= event == "line"
        if left < 0:
            sys.settrace(before)
            raise KeyboardInterrupt
        return traced if frame.f_code.co_filename in (folder.__file__, recorder.__file__) else None

    class Begun(Exception):
        pass

    with suppress(Begun):
        for lines in range(1000):
            left = lines
            with suppress(KeyboardInterrupt):
                sys.settrace(traced)
                with record(path=path):
                    sys.settrace(before)
                    raise Begun
            if path.exists():
                assert path.is_file()  # it had begun: a whole file without events
                path.unlink()
    sys.settrace(before)
    assert 30 < lines < 999


def test_ctrl_c_after_the_journal_s_last_line_writes_it_once(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, left = folder.Folder._append, [1]

    def interrupted(self: Any, line: dict[str, Any]) -> int:
        length = append(self, line)
        if "end" in line and left:
            left.clear()
            raise KeyboardInterrupt
        return length

    path = tmp_path / "a.flnb"
    monkeypatch.setattr(folder.Folder, "_append", interrupted)
    with suppress(KeyboardInterrupt), record(path=path):
        emit(program, 6)
    assert left == []
    assert load_run(path).events == 6


def test_a_process_killed_while_it_closes_is_listed(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    with record("closing", path=path) as run:
        emit(program, 3)
        settled(run)
        shutil.copytree(path, folder.closing_name(tmp_path / "b.flnb"))
    assert sorted((one.state, one.events, one.path) for one in runs(tmp_path)) == [
        ("complete", 3, str(path)),
        ("interrupted", 3, str(tmp_path / "b.flnb")),
    ]


def test_saving_to_a_bad_path_names_it(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    with record(path=path) as run:
        emit(program, 3)
        with pytest.raises(IsADirectoryError, match=r"a\.flnb' is a folder, perhaps of a recording that runs now"):
            run.save(path)
        for save in (run.save, run.save_trace, run.save_svg, run.to_torch_snapshot):
            with pytest.raises(ValueError, match="path='' does not name a file"):
                save("")
    assert load_run(path).events == 3


def test_a_folder_that_is_moved_gets_advice_that_helps(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    block = record(path=path)
    run = block.begin()
    emit(program, 3)
    settled(run)
    path.rename(tmp_path / "moved")
    emit(program, 3)
    with pytest.warns(RuntimeWarning) as warned:
        block.end(None)
    texts = " ".join(str(one.message) for one in warned)
    assert "The folder was moved or deleted: leave it in its place until the recording ends" in texts
    assert "space" not in texts
    assert str(run.error).startswith("interrupted: FileNotFoundError")
    assert load_run(tmp_path / "moved").events == 3


def test_a_recording_closed_while_it_is_opened_opens(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.flnb"
    block = record(path=path)
    block.begin()
    emit(program, 3)
    read = journal.read_journal

    def closed(place: Path) -> Any:
        monkeypatch.undo()
        block.end(None)
        return read(place)

    monkeypatch.setattr(journal, "read_journal", closed)
    assert load_run(path).state == "finished"
    damaged = tmp_path / "b.flnb"
    damaged.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(RunFileError, match="is damaged"):
        load_run(damaged)
