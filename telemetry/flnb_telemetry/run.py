"""The common base of recordings and live views."""

from __future__ import annotations

import itertools
import platform
import sys
import threading
import time
from typing import Any

import numpy as np

from flnb_telemetry import bus, pump, schema
from flnb_telemetry.intern import Catalog
from flnb_telemetry.lane import DEFAULT_BUFFER
from flnb_telemetry.parts import UsedParts

_numbers = itertools.count(1)


def expect_recording(function: str, run: Any) -> Any:
    """Return ``run`` if it is a recording; otherwise raise a TypeError, which names the called ``function``."""
    if not isinstance(run, Run):
        expected = "a recording (of flnb.record, or flnb.load_run(path))"
        raise TypeError(f"{function}: expected {expected}, got {type(run).__name__}")
    return run


class Run:
    """Base class of `Recording` and `Live`: receives events, and has a name, begin, state and end.

    Args:
        name: the name of the run in displays.
        grad_interval: seconds between two backward passes whose gradient norms are measured; None for no measurements.
        state: "waiting" or "recording"; later "finished" or "failed".

    `start` and `end` are times of `time.perf_counter_ns` (`end` is None while the program runs). `error` is the text of
    the error that ended the program, `meta` has facts such as the backend, and `catalog` the names behind ids.
    """

    live = False
    patience: float | None = None
    failure: BaseException | None = None
    buffer = DEFAULT_BUFFER
    session: pump.Session | None = None

    def __init__(self, name: str, grad_interval: float | None, state: str) -> None:
        self.name = name
        self.number = next(_numbers)
        self.grad_interval = grad_interval
        self.state = state
        self.error: str | None = None
        self.start = time.perf_counter_ns()
        self.end: int | None = None
        self.events = 0
        self.meta: dict[str, Any] = {}
        self._used = UsedParts({})
        self.catalog = Catalog()
        self._lock = threading.Lock()

    def feed(self, lane: int, records: schema.Records) -> None:
        """Receive the next records, shape (n, 8), of the thread with the number `lane`."""
        raise NotImplementedError

    def begin(self) -> None:
        """Start receiving the events of all threads."""
        self.describe()
        self.session = pump.attach(self, buffer=self.buffer)

    def describe(self) -> None:
        """Set `meta` to the facts that are known at the beginning."""
        self.meta = _facts()
        self._used = UsedParts(self.meta)

    def finish(self, error: BaseException | None = None) -> None:
        """Receive the last events and stop; given the error that ended the program, the state becomes "failed"."""
        try:
            for emit in bus.finishers:
                emit()
            if names := self.threads():
                self.meta["threads"] = names
            pump.detach(self)
        finally:
            self.end = time.perf_counter_ns()
            self.state = "finished" if error is None else "failed"
            self.error = None if error is None else f"{type(error).__name__}: {error}".rstrip(": ")

    def threads(self) -> dict[str, str]:
        """Return the names of threads by the numbers that they have in records; the main thread is called "main"."""
        known: dict[str, str] = self.meta.get("threads", {})
        return known or {str(lane): name for lane, name in (self.session.names if self.session else {}).items()}

    def seconds_at(self, t: Any) -> Any:
        """Convert a time, or an array of times, of `perf_counter_ns` to seconds since the beginning of the run."""
        return (t - self.start) / 1e9

    def in_seconds(self, table: schema.Columns) -> schema.Columns:
        """Return a table of events with its time columns in seconds since the beginning of the run."""
        times = table.keys() & {"t", "t0", "t1", "t_last"}
        return table | {name: self.seconds_at(table[name]) for name in times}


def _facts() -> dict[str, Any]:
    """Return the facts about this process for `meta`: versions, platform, and those that `bus.describers` return."""
    facts: dict[str, Any] = {"began": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "schema": schema.VERSION}
    facts |= {"python": platform.python_version(), "numpy": np.__version__, "platform": sys.platform}
    for describe in bus.describers:
        facts |= describe()
    return facts
