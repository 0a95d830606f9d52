"""The hub: one thread that takes frames from the live recording and sends them to the browser.

It never waits for anybody. The browser acknowledges frames; with `WINDOW` of them under way the hub stops sending and
the source goes on collecting, so a slow browser gets fewer and larger frames instead of seconds of delay. Without any
acknowledgement for `SILENCE` seconds (an old ipykernel cannot hear the browser while a cell runs) it sends a keyframe
every `SILENCE` seconds: one way still shows everything, less smoothly.

Messages arrive on a thread of the kernel's choice, perhaps while a cell is busy: `receive` only sets flags.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    Send = Callable[[dict[str, Any], list[bytes]], None]

PROTOCOL = 1
HERTZ = 20.0
WINDOW = 3  # frames under way at most
SILENCE = 0.5  # seconds without an acknowledgement before the hub stops expecting any
IDLE = 1.0  # seconds between frames while nothing happens

log = logging.getLogger("flnb")


class Source(Protocol):
    """Where frames come from: `flnb_telemetry.live.Live`, or a list of frames in a test."""

    events: int
    """How many it has counted: while that stays the same there are no news."""

    def frame(self, keyframe: bool) -> tuple[dict[str, Any], bytes]:
        """The news since the last frame (or, as a keyframe, everything) as content and one buffer."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Answer a request of the browser, such as levels of the tape, as content; None for no answer."""


class Hub:
    """Sends a source's frames through `send`, at most `HERTZ` a second and `WINDOW` unacknowledged.

    Example: `hub = Hub(live, widget.send); widget.on_msg(hub.receive); hub.start()`; `hub.stop()` at the end.
    """

    def __init__(self, source: Source, send: Send) -> None:
        self.source, self.send = source, send
        self.sequence = 0  # the last frame sent
        self.acknowledged = 0  # the last frame the browser has drawn
        self.greeted = False  # a browser has been heard at least once
        self._keyframe = True  # the next frame must be whole
        self._heard = self._sent = -SILENCE
        self._events = -1
        self._asked: deque[dict[str, Any]] = deque(maxlen=64)
        self._wake = threading.Event()
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether the thread is alive (a forked child has none)."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        if not self.running:
            self._halt.clear()
            self._thread = threading.Thread(target=self._loop, name="flnb-hub", daemon=True)
            self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """End the thread; safe to call twice, and from the thread itself."""
        self._halt.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def follow(self, source: Source) -> None:
        """Take frames from this source from now on, a whole one first; also when the same one has changed its state."""
        self.source = source
        self._keyframe = True

    def receive(self, message: object) -> None:
        """Take one message of the browser: ack, resync, hello, tape. Unknown ones, of a newer browser, are ignored."""
        if not isinstance(message, dict):
            return
        kind, sequence = message.get("type"), message.get("seq")
        if kind == "ack" and isinstance(sequence, int):
            self.acknowledged = max(self.acknowledged, min(sequence, self.sequence))
        elif kind == "tape":
            self._asked.append(message)
            self._wake.set()  # a reader waits for what was clicked
        elif kind in ("hello", "resync"):
            self._keyframe = True
        else:
            return
        self.greeted = True  # also by an ack: JupyterLab may send the hello behind the cell that runs
        self._heard = time.monotonic()

    def tick(self, now: float) -> bool:
        """Do one turn at time `now` (monotonic seconds); whether a frame was sent."""
        keyframe = asked = self._keyframe
        if not keyframe and self.sequence - self.acknowledged >= WINDOW:
            if now - self._heard < SILENCE or now - self._sent < SILENCE:
                return False
            keyframe = True
        if keyframe:
            self._keyframe = False  # before the frame is built: a request that arrives meanwhile counts again
        elif self._events == self.source.events and now - self._sent < IDLE:
            return False  # nothing has been recorded since the last frame
        content, buffer = self.source.frame(keyframe)
        self.sequence += 1
        content["seq"] = self.sequence
        if asked:
            self.acknowledged = max(self.acknowledged, self.sequence - 1)  # the browser starts anew from this one
        self._sent = now
        self._events = self.source.events
        self.send(content, [buffer])
        return True

    def _answer(self) -> None:
        while self._asked:
            content = self.source.answer(self._asked.popleft())
            if content is not None:
                self.send(content, [])

    def _loop(self) -> None:
        wake = time.monotonic()
        while not self._halt.is_set():
            try:
                self._answer()
                self.tick(time.monotonic())
            except Exception:  # one line in the kernel's log and a dead dashboard, but never a dead training
                log.exception("flnb: the dashboard stopped; the training goes on. flnb.dashboard() starts it again")
                return
            wake = max(wake + 1 / HERTZ, time.monotonic() + 0.002)
            if self._wake.wait(wake - time.monotonic()):
                self._wake.clear()
