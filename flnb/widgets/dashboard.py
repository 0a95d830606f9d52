"""`flnb.dashboard()`: the live dashboard, of which each process has one, and the choice of what it shows.

Before the first recording the dashboard shows all ops that run, under the name "session". When a recording begins, the
dashboard shows that recording until the next recording begins. A dashboard that is made when no recording is running
shows the one that ended last.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

from flnb_telemetry import pump, recorder, recording
from flnb_telemetry.extras import require
from flnb_telemetry.live.view import Live

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.recording import Recording

    from flnb.widgets.model import Dashboard

log = logging.getLogger("flnb")


class Follower:
    """Makes the dashboard show each recording, from its beginning until the next recording begins.

    Before the first recording begins, the dashboard shows all ops of the process, or, if a recording had ended before
    this object was made, that recording. If a name is given, the dashboard shows nothing until a recording of that name
    begins.

    Attributes:
        live: the `Live` object from which the dashboard gets its data.
        last: the newest recording, of which a static picture can be shown; None before the first one.
        earlier: the recording that had ended before this object was made, as long as it is shown; else None.
        changed: a function that is called with `live` when a recording begins (`live` is then a new object) and when
            that recording has ended.
        name: if given, recordings of other names are ignored.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.changed: Callable[[Live], None] = lambda live: None
        self.last: Recording | None = None
        self._followed: Recording | None = None
        self._lock = threading.RLock()
        self.live = Live("session")
        recording.watchers.append(self.watch)
        sinks = pump.session.sinks if pump.session is not None else []
        for run in (sink for sink in sinks if isinstance(sink, recording.Recording)):
            self.watch(run)
        ended = recorder.latest()
        self.earlier = ended if self._followed is None and ended and name in (None, ended.name) else None
        if self.earlier is not None:
            self.last = self.earlier
        elif self._followed is None and name is None:
            self.live.begin()

    def watch(self, run: Recording) -> None:
        """Show ``run`` if it has just begun, or complete its data if it has just ended; never raises an error.

        Called at the beginning and at the end of every recording of the process.
        """
        try:
            with self._lock:
                if run.state != "recording":
                    self._ended(run)
                elif self._followed is None and self.name in (None, run.name):  # one inside another is part of it
                    self._begins(run)
        except Exception:
            log.exception("flnb: the dashboard cannot follow recording %r; the recording itself goes on", run.name)

    def _begins(self, run: Recording) -> None:
        """Show a recording that has just begun, from its first event on."""
        self.live.finish()
        self._followed, self.last, self.earlier = run, run, None
        self.live = Live(run.name)
        self.live.timeline.read_from(run)
        self.live.buffer, self.live.followed = run.buffer, run
        self.live.begin()
        self.changed(self.live)

    def _ended(self, run: Recording) -> None:
        """Complete the data of a recording that has just ended, if the dashboard shows it."""
        if run is self._followed:
            self._followed = None
            self.live.finish()
            self.live.state, self.live.error = run.state, run.error
            self.live.complete(lambda: run.tape)
            self.changed(self.live)

    def stop(self) -> None:
        """Stop receiving events, and do not follow further recordings."""
        with self._lock:
            if self.watch in recording.watchers:
                recording.watchers.remove(self.watch)
            self.live.finish()


_shown: Dashboard | None = None


def dashboard(height: int = 680, follow: str | None = None) -> Dashboard:
    """Return the live dashboard as a widget, which is shown where it is the last line of a notebook cell.

    The dashboard shows what `flnb.record` or `%%record` records, also while a cell is running. Each process has one
    dashboard, which every call returns, so that several cells can show it. If a `flnb.distributed.Cluster` is running,
    the dashboard shows the cluster's ranks.

    Args:
        height: the height in CSS pixels, 200 or more.
        follow: show only recordings of this name, so that recordings of other names do not replace them.

    Raises:
        ImportError: the extra "lab" is not installed.

    >>> import flnb
    >>> board = flnb.dashboard(follow="digits")
    >>> with flnb.record("digits") as run:
    ...     y = flnb.exp(flnb.ones((8, 8)))
    >>> board.follower.last is run
    True
    >>> board.close()
    """
    require("anywidget", extra="lab", purpose="the dashboard")
    if isinstance(height, bool) or not isinstance(height, int) or height < 200:
        raise ValueError(f"flnb.dashboard: got height={height!r}; expected at least 200 (CSS pixels)")
    if follow is not None and not isinstance(follow, str):
        raise TypeError(
            f"flnb.dashboard: got follow={follow!r}; expected the name (str) of recordings to show, or None"
        )
    board = shared(follow)
    board.height, board.follower.name = height, follow
    show_cluster()
    return board


def shared(follow: str | None = None) -> Dashboard:
    """Return the dashboard of this process, and make it first if there is none; single views use it, too.

    Args:
        follow: if given, recordings of other names are ignored.
    """
    global _shown
    if _shown is None or _shown.comm is None or not _shown.hub.running:
        close()
        from flnb.widgets.model import Dashboard

        _shown = Dashboard(Follower(follow))
        _shown.hub.start()
    return _shown


def show_cluster() -> None:
    """Show the ranks of the active `flnb.distributed.Cluster` on the dashboard, if both exist."""
    module = sys.modules.get("flnb.distributed.cluster")
    if _shown is not None and module is not None and module.Cluster.active is not None:
        _shown.earlier = None
        module.Cluster.active.show_on(_shown.hub)


def close() -> None:
    """Close the dashboard of this process and end its thread; does nothing if there is none."""
    global _shown
    if _shown is not None:
        widget, _shown = _shown, None
        widget.close()


def _after_fork() -> None:
    """Forget the dashboard in a forked process, where the dashboard has neither a thread nor a browser."""
    global _shown
    _shown = None


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
