"""`flnb top`: a live table, in a terminal, of a recording that another process writes to disk."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flnb_telemetry import Ranks, load_run, quantity
from flnb_telemetry.extras import require
from flnb_telemetry.formats.stored import RunFileError
from flnb_telemetry.safe_text import safe_text

if TYPE_CHECKING:
    from flnb_telemetry import Recording
    from flnb_telemetry.analysis.ops import OpStats

SHARE = 0.2
"""The largest share of a processor that reading the recording again may take: long recordings are read less often."""
TRIES, PAUSE = 20, 0.05
"""How often, and after how many seconds, to read again while the recording is being turned into a file."""
NOTHING = "nothing written yet: the first events are on disk some 2 s after they happen"
"""What is shown of a recording without events on disk, in place of zeros."""
TITLES = ("op", "count", "total", "mean", "p99", "max", "share", "bytes")


@dataclass(frozen=True)
class Reading:
    """The figures of a recording at one moment that `flnb top` shows: state, seconds, bytes of memory, and its ops."""

    name: str
    state: str
    error: str | None
    seconds: float
    steps: int
    events: int
    rate: float
    live: int
    peak: int
    reserved: int
    ops: OpStats
    run: Recording

    @property
    def waiting(self) -> bool:
        """Whether the recording goes on, and none of its events is on disk yet."""
        return self.state == "recording" and not self.events

    @property
    def facts(self) -> list[str]:
        """The lines above the table of ops: name and state, events, memory, and an error if there is one."""
        size, count = quantity.size, quantity.count
        if self.waiting:
            return [f"{safe_text(self.name)}  {self.state}", NOTHING]
        lines = [
            f"{safe_text(self.name)}  {self.state}  {quantity.duration(self.seconds * 1e9)}  {count(self.steps)} steps",
            f"{count(self.events)} events, {count(self.rate)} events/s",
            f"memory: live {size(self.live)}, peak {size(self.peak)}, reserved {size(self.reserved)}",
        ]
        return [*lines, safe_text(self.error)] if self.error else lines

    def __str__(self) -> str:
        return "\n".join(self.facts if self.waiting else [*self.facts, "", repr(self.ops)])


def read(path: str | os.PathLike[str], before: Reading | None = None) -> Reading:
    """Return what has been written of a recording until now.

    Args:
        path: a folder that `flnb.record(path=...)` is writing, or a saved recording.
        before: an earlier reading. Only later events are read, and the events per second are those since then. None
            reads all events, and counts them from the beginning.

    Raises:
        FileNotFoundError: there is no recording.
        ValueError: the file has the recordings of several ranks.

    >>> import flnb
    >>> with flnb.record("demo") as run:
    ...     y = flnb.ones(3) * 2.0
    >>> run.save("demo.flnb")
    >>> read("demo.flnb").ops["multiply"].count
    1
    """
    run = load_run(path, earlier=None if before is None else before.run)
    if isinstance(run, Ranks):
        raise ValueError(f"flnb top: {os.fspath(path)} has {len(run)} ranks; give the recording of one of them")
    line, seconds, events = run.memory.timeline(), run.seconds, run.events
    span, new = (seconds, events) if before is None else (seconds - before.seconds, events - before.events)
    rate = new / span if span > 0 else before.rate if before is not None else 0.0
    empty = not len(line.t)
    now, peak, reserved = (0, 0, 0) if empty else (line.allocated[-1], line.allocated.max(), line.reserved[-1])
    steps = len(run.steps["index"])
    return Reading(
        run.name, run.state, run.error, seconds, steps, events, rate, int(now), int(peak), int(reserved), run.ops, run
    )


def _read_again(path: str | os.PathLike[str], before: Reading) -> Reading:
    """Return a new reading; retry once if that fails, because the folder may just have been replaced by a file."""
    for _ in range(TRIES):
        with suppress(OSError, RunFileError):
            return read(path, before)
        time.sleep(PAUSE)
    return read(path, before)


def top(path: str | os.PathLike[str], every: float = 1.0, console: Any = None) -> Reading:
    """Show the ops, memory and state of a recording while another process writes it.

    The table is refreshed until the recording ends or Ctrl-C is pressed; if ``console`` is not a terminal, it is
    printed once.

    Args:
        path: a folder that `flnb.record(path=...)` is writing, or a saved recording.
        every: seconds between two readings, at least 0.1; recordings that take long to read are read less often.
        console: the `rich.console.Console` to draw on; by default that of stdout.

    Returns:
        The last reading.

    Raises:
        ImportError: the extra "lab" is not installed.
        ValueError: `every` is less than 0.1.
    """
    if not every >= 0.1:
        raise ValueError(f"flnb top: got every={every:g} s; expected at least 0.1 s")
    live = require("rich.live", extra="lab", purpose="flnb top")
    console = console or require("rich.console", extra="lab").Console()
    reading = read(path)
    if not console.is_terminal:
        print(reading, file=console.file)
        return reading
    with (
        live.Live(_drawn(reading, console), console=console, auto_refresh=False) as screen,
        suppress(KeyboardInterrupt),
    ):
        while reading.state == "recording":
            time.sleep(every)
            began = time.monotonic()
            reading = _read_again(path, reading)
            screen.update(_drawn(reading, console), refresh=True)
            every = max(every, (time.monotonic() - began) / SHARE)
    return reading


def _drawn(reading: Reading, console: Any) -> Any:
    """Return a `rich` object that draws a reading: its facts, and as many rows of ops as the terminal has room for."""
    text, group = require("rich.text", extra="lab"), require("rich.console", extra="lab")
    head, *rest = reading.facts
    if reading.waiting:
        return group.Group(text.Text(head, style="bold"), *map(text.Text, rest))
    made = require("rich.table", extra="lab").Table(box=None, pad_edge=False, header_style="bold")
    for title in TITLES:
        made.add_column(title, justify="left" if title == "op" else "right", no_wrap=True)
    titles, *rows = reading.ops.cells() if len(reading.ops) else [[]]
    places = [titles.index(title) for title in TITLES] if titles else []
    for row in rows[: max(1, console.height - len(reading.facts) - 3)]:
        made.add_row(*(text.Text(safe_text(row[place])) for place in places))
    return group.Group(text.Text(head, style="bold"), *map(text.Text, rest), text.Text(), made)
