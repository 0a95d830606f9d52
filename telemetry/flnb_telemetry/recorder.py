"""`flnb.record`: the ``with`` block that records all ops and memory inside."""

from __future__ import annotations

import math
import threading
import weakref
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

from flnb_telemetry import pump, quantity, recording
from flnb_telemetry.recording import Recording
from flnb_telemetry.withblock import WithBlock

if TYPE_CHECKING:
    import os

    from flnb_telemetry.formats.folder import Folder


class record(WithBlock[Recording]):
    """Record all ops and memory inside the block: ``with flnb.record() as run: train()``; then read ``run.ops`` etc.

    Args:
        name: the name of the run in displays; by default that of the file `path` without its ending, or "run".
        buffer: bytes of records (64 each) that may wait in each thread's buffer ("16MiB" or an int); further ones are
            dropped and counted. Records wait as Python numbers, which need about three times as much memory.
        limit: bytes of records that the whole recording may hold; further events are dropped and counted. By default
            1 GiB, or with `path` no limit.
        path: write the events to this `.flnb` file as they occur, so that memory holds only a few seconds of them and
            the recording survives if the process is killed. Until the recording ends, the path is a folder, which
            `load_run` opens too. Needs pyarrow, of the extra "lab".
        replace: whether to delete a recording that exists at `path`.
        grad_interval: seconds between two backward passes whose gradient norms are measured; None measures only those
            that produce NaN or Inf.

    Raises:
        TypeError: `name` is not a string, or `grad_interval` is not a number.
        ValueError: `grad_interval` is negative, or not finite.

    >>> import flnb
    >>> with flnb.telemetry.record("demo") as run:
    ...     y = flnb.ones(3) * 2.0
    >>> run.ops["multiply"].count
    1
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        buffer: str | int = "16MiB",
        limit: str | int | None = None,
        grad_interval: float | None = 0.5,
        path: str | os.PathLike[str] | None = None,
        replace: bool = False,
    ) -> None:
        if name is None:
            name = "run" if path is None else Path(path).stem
        if not isinstance(name, str):
            raise TypeError(f"record(name={name!r}): expected a string, as in flnb.record('run 7')")
        if grad_interval is not None:
            if not isinstance(grad_interval, Real):
                raise TypeError(f"record(grad_interval={grad_interval!r}): expected a number of seconds, or None")
            if not (math.isfinite(grad_interval) and grad_interval >= 0):
                raise ValueError(
                    f"record(grad_interval={grad_interval!r}): expected a finite number of seconds of at least 0; None "
                    f"measures no gradient norms"
                )
        self._name, self._grad_interval, self._path, self._replace = name, grad_interval, path, replace
        self._buffer = quantity.bytes_of(buffer, "record(buffer=...)")
        if limit is None and path is None:
            limit = "1GiB"
        self._limit = None if limit is None else quantity.bytes_of(limit, "record(limit=...)")
        self._folder: Folder | None = None
        self._run: Recording | None = None

    def begin(self) -> Recording:
        self._folder = self._run = None
        if self._path is not None:
            from flnb_telemetry.formats.folder import Folder

            self._folder = Folder(self._path, self._replace)
            self._folder.open()
        limit, every, folder = self._limit, self._grad_interval, self._folder
        self._run = run = Recording(self._name, limit=limit, grad_interval=every, folder=folder)
        run.buffer = self._buffer
        _tell(run)
        run.begin()
        return run

    def end(self, error: BaseException | None) -> None:
        if self._run is None:
            if self._folder is not None:  # its path is taken, or Ctrl-C interrupted `begin`
                self._folder.discard()
            return
        # Python's garbage collector found the block on a thread for which the end, or the pump, has to wait
        if pump.is_pump() or threading.current_thread().name == recording.WRITER:
            threading.Thread(target=_end, args=(self._run, error), name="flnb-end-recording").start()
        else:
            _end(self._run, error)


def _end(run: Recording, error: BaseException | None) -> None:
    """End a recording, with the error that ended the block if any, and call the watchers."""
    try:
        run.finish(error)
    finally:
        _tell(run)


_latest: list[weakref.ref[Recording]] = []
"""The recording that ended last, if it is still referenced."""


def latest() -> Recording | None:
    """Return this process's recording that ended last; None if there is none, or if nothing refers to it any more."""
    return _latest[0]() if _latest else None


def _tell(run: Recording) -> None:
    """Call all `watchers` with a recording that begins or has ended."""
    if run.state != "recording":
        _latest[:] = [weakref.ref(run)]
    for watch in recording.watchers[:]:
        watch(run)
