"""`flnb top`: the table of a recording that another process writes, and that it ends with the recording."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import load_run, quantity
from flnb_telemetry.formats import stored

import flnb
from flnb import cli, top

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("pyarrow")
console = pytest.importorskip("rich.console")

WRITER = """
import sys
from flnb_telemetry.formats import folder
import flnb
folder.SECONDS = folder.Folder.patience = 0.05
with flnb.record("written", path=sys.argv[1]):
    x = flnb.ones((64, 64))
    for line in sys.stdin:  # each line asks for one more step
        with flnb.step():
            x = flnb.tanh(x @ x)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that records to run.flnb: a step for each line that it reads, until its stdin is closed."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "run.flnb")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        assert process.stdin is not None
        process.stdin.close()


def until(condition: object, seconds: float = 50.0) -> None:
    """Wait for a condition, a function, at most so many seconds."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.02)


def ask(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("step\n")
    process.stdin.flush()


def steps(path: Path) -> int:
    return top.read(path).steps if (path / "manifest.json").exists() else 0


class Watcher:
    """`flnb top` in a terminal of its own."""

    def __init__(self, path: Path) -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-m", "flnb.cli", "top", str(path), "--every", "0.1"]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.seen = b""
        self._reader = threading.Thread(target=self._read, daemon=True)  # a terminal that nobody reads fills
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # the end of a terminal
            while more := os.read(self.master, 4096):
                self.seen += more

    def sees(self, word: bytes) -> None:
        until(lambda: word in self.seen)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        os.close(self.master)


@pytest.mark.timeout(180)
def test_follows_a_process_until_its_end_or_ctrl_c(writer: subprocess.Popen[str], tmp_path: Path) -> None:
    path = tmp_path / "run.flnb"
    ask(writer)
    until(lambda: steps(path) == 1)
    first = top.read(path)
    assert (first.name, first.state, first.ops["matmul"].count) == ("written", "recording", 1)
    assert first.peak >= first.live > 0
    ask(writer)
    until(lambda: steps(path) == 2)
    second = top.read(path, first)
    assert second.rate == pytest.approx((second.events - first.events) / (second.seconds - first.seconds))
    stopped, watcher = Watcher(path), Watcher(path)
    try:
        for each in (stopped, watcher):
            each.sees(b"matmul")
            assert b"recording" in each.seen
        stopped.process.send_signal(signal.SIGINT)
        assert stopped.process.wait(20) == 0
        assert b"Traceback" not in stopped.seen
        assert watcher.process.poll() is None  # as long as the recording goes on
        assert writer.stdin is not None
        writer.stdin.close()
        assert writer.wait(30) == 0
        assert path.is_file()
        watcher.sees(b"finished")
        assert watcher.process.wait(30) == 0
    finally:
        stopped.close()
        watcher.close()


def test_another_reading_opens_the_new_parts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / "run.flnb", list[str]()
    for name in ("_groups", "inspected"):
        read = getattr(stored, name)

        def watched(file: Any, *rest: Any, read: Any = read) -> Any:
            opened.append(Path(getattr(file, "name", "whole")).name)
            return read(file, *rest)

        monkeypatch.setattr(stored, name, watched)
    readings, seen = list[top.Reading](), set[str]()
    with flnb.record("parts", path=path) as run:
        for _ in range(3):
            with flnb.step():
                flnb.tanh(flnb.ones((64, 64)))
            flnb.log(loss=1.0)  # top reads no metrics, so it opens their files for one check only
            written = len(run.table("op")["t0"])  # all that was emitted has arrived
            run._store_all(run.folder)
            opened.clear()
            readings.append(top.read(path, readings[-1] if readings else None))
            assert any(name.endswith(".metric.parquet") for name in opened)
            assert not seen & set(opened)  # one batch, or two on a slow machine
            seen |= set(opened)
            assert len(readings[-1].run.table("op")["t0"]) == written
        again = load_run(path)
        for kind in again.tables:
            for name, column in again.table(kind).items():
                assert np.array_equal(column, readings[-1].run.table(kind)[name]), (kind, name)
        assert readings[-1].live == again.memory.timeline().allocated[-1] > 0
        assert (readings[-1].ops["tanh"].count, readings[-1].steps) == (3, 3)
    last = top.read(path, readings[-1])
    assert (last.state, last.ops["tanh"].count) == ("finished", 3)
    with flnb.record("anew", path=path, replace=True) as run:
        flnb.exp(flnb.ones(3))
        len(run.table("op")["t0"])
        run._store_all(run.folder)
        assert [row.key for row in top.read(path, readings[0]).ops.sort("name", False)] == [("exp",), ("full",)]


def test_draws_as_many_ops_as_fit(tmp_path: Path) -> None:
    with flnb.record("many") as run:
        x = flnb.ones((4, 4))
        made = [getattr(flnb, name)(x) for name in ("exp", "tanh", "sin", "cos", "sqrt", "log", "abs", "square")]
    assert len(made) == 8
    run.save(tmp_path / "a.flnb")
    drawn = console.Console(file=io.StringIO(), force_terminal=True, width=100, height=10)
    reading = top.top(tmp_path / "a.flnb", console=drawn)
    text = drawn.file.getvalue()
    assert all(word in text for word in ("many", "finished", "events/s", "memory: live", "share"))
    shown = [row.key[0] in text for row in reading.ops]
    assert shown == [True] * 4 + [False] * 5


def test_reads_a_recording_of_which_nothing_is_on_disk_yet(tmp_path: Path) -> None:
    with flnb.record("begun", path=tmp_path / "run.flnb"):
        reading = top.read(tmp_path / "run.flnb")
    assert (reading.state, reading.events, reading.rate, len(reading.ops)) == ("recording", 0, 0.0, 0)
    assert str(reading) == f"begun  recording\n{top.NOTHING}"
    drawn = console.Console(file=io.StringIO(), force_terminal=True, width=90)
    drawn.print(top._drawn(reading, drawn))
    assert "nothing written yet" in drawn.file.getvalue()
    assert "0 " not in drawn.file.getvalue().replace(top.NOTHING, "")


def test_prints_once_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with flnb.record("saved [bold]") as run:
        y = flnb.ones((64, 64)) + 1.0
    del y
    run.save(tmp_path / "a.flnb")
    assert cli.main(["top", str(tmp_path / "a.flnb")]) == 0
    text = capsys.readouterr().out
    assert text.count("saved [bold]  finished") == 1
    assert f"peak {quantity.size(run.memory.peak.allocated)}" in text
    assert "add" in text


def test_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", str(tmp_path / "none.flnb")]) == 2
    assert "no file" in capsys.readouterr().err
    assert cli.main(["top", str(tmp_path), "--every", "0"]) == 2
    assert "got every=0 s; expected at least 0.1 s" in capsys.readouterr().err
