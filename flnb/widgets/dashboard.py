"""`flnb.dashboard()`: the one dashboard of this kernel, and what it follows.

Before the first recording it shows whatever runs, under the name "session". When a recording begins it follows that
one; when the recording has ended, its last picture stays until the next begins.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import TYPE_CHECKING

from flnb_telemetry import pump, recording
from flnb_telemetry.extras import require
from flnb_telemetry.live import Live

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.recording import Recording

    from flnb.widgets.model import Dashboard

log = logging.getLogger("flnb")


class Follower:
    """Keeps one `Live` attached: to the recording that runs, else to the session.

    `live` is what a hub takes its frames from; `last` is the newest recording, for a static picture; `changed` is
    called with `live` when there is another one, and when it has ended. Given `name`, only recordings of that name are
    followed.
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
        if self._followed is None:
            self.live.begin()

    def watch(self, run: Recording) -> None:
        """Take note of a recording that begins (before its first event) or has ended. Never raises."""
        try:
            with self._lock:
                if run.state != "recording":
                    self._ended(run)
                elif self._followed is None and self.name in (None, run.name):  # one inside another is part of it
                    self._begins(run)
        except Exception:
            log.exception("flnb: the dashboard cannot follow recording %r; the recording itself goes on", run.name)

    def _begins(self, run: Recording) -> None:
        self.live.finish()  # first: the new session then counts its steps from 0
        self._followed = self.last = run
        self.live = Live(run.name)
        self.live.buffer = run.buffer
        self.live.begin()
        self.changed(self.live)

    def _ended(self, run: Recording) -> None:
        if run is self._followed:
            self._followed = None
            self.live.finish()
            self.live.state, self.live.error = run.state, run.error
            self.live.complete(lambda: run.tape)
            self.changed(self.live)

    def stop(self) -> None:
        """Let go of the bus and of further recordings."""
        with self._lock:
            if self.watch in recording.watchers:
                recording.watchers.remove(self.watch)
            self.live.finish()


_shown: Dashboard | None = None


def dashboard(height: int = 680, follow: str | None = None) -> Dashboard:
    """The live dashboard of this kernel, `height` CSS pixels high, as a widget: leave it on a cell's last line.

    It follows whatever `flnb.record` or `%%record` records, also while a cell is busy; given `follow`, only recordings
    of that name, so that it keeps showing them when others are made. Called again, it gives the same dashboard, so
    several cells can show it. Needs the extra "lab"; without it an `ImportError` says so.

    Example: `flnb.dashboard()` in one cell, `with flnb.record("digits"): train()` in the next.
    """
    global _shown
    require("anywidget", extra="lab", purpose="the dashboard")
    if isinstance(height, bool) or not isinstance(height, int) or height < 200:
        raise ValueError(f"flnb.dashboard: got height={height!r}; expected at least 200 (CSS pixels)")
    if follow is not None and not isinstance(follow, str):
        raise TypeError(f"flnb.dashboard: got follow={follow!r}; expected the name of recordings, or None for all")
    if _shown is None or _shown.comm is None or not _shown.hub.running:
        close()
        from flnb.widgets.model import Dashboard

        _shown = Dashboard(Follower(follow), height)
        _shown.hub.start()
    _shown.height, _shown.follower.name = height, follow
    return _shown


def close() -> None:
    """End the dashboard of this kernel, its thread and its hold on the bus; a no-op without one."""
    global _shown
    if _shown is not None:
        widget, _shown = _shown, None
        widget.close()


def _after_fork() -> None:
    global _shown
    _shown = None  # a forked child has neither the threads nor the browser


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
