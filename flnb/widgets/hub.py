"""The thread that sends a live recording's data to the browser, in frames.

The thread never waits for the browser, which acknowledges frames. While `WINDOW` frames are unacknowledged, none is
sent, so a slow browser gets fewer and larger frames instead of late ones. While nothing is acknowledged, a frame with
all data is sent every `SILENCE` seconds. An ipykernel before 7 receives no messages while a cell runs: then frames with
only the new data are sent between those with all data.

Messages may arrive on any thread while a cell runs, so `Hub.receive` only sets flags.
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
HERTZ = 20.0  # frames a second at most
SLOWEST = 10.0  # frames a second of a run whose frames take long to make
SHARE = 0.07  # the largest share of one processor's time for frames at rates above `SLOWEST`
WINDOW = 4  # unacknowledged frames at most
SILENCE = 0.5  # seconds without an acknowledgement before the hub stops expecting any
BLIND = 0.1  # seconds between frames to browsers that may be listening and cannot be heard
WHOLE = 1.0  # seconds between keyframes among these
IDLE = 1.0  # seconds between frames while nothing happens

log = logging.getLogger("flnb")


class Source(Protocol):
    """An object that makes frames for the browser: `flnb_telemetry.live.view.Live`, or another one in tests."""

    events: int
    """The number of events so far; while it does not change there is nothing new to send."""

    def refresh(self) -> None:
        """Receive the events emitted until now, if this takes only a small part of the time between two frames."""

    def look(self, tab: str) -> None:
        """Receive the name of the tab that a browser shows."""

    def frame(self, keyframe: bool) -> tuple[dict[str, Any], bytes]:
        """Return everything new since the last frame (all data for a keyframe) as JSON content and a binary buffer."""

    def prepare(self) -> None:
        """Do work for the next frame, once one was sent."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the reply to a browser's request, such as for a part of the tape; None for no reply."""


class Hub:
    """Sends the frames of a source, at most `HERTZ` per second and with at most `WINDOW` unacknowledged.

    Example: `hub = Hub(live, widget.send); widget.on_msg(hub.receive); hub.start()`; `hub.stop()` at the end.
    """

    def __init__(self, source: Source, send: Send) -> None:
        self.source, self.send = source, send
        self.sequence = 0  # the last frame sent
        self.acknowledged = 0  # the last frame the browser has drawn
        self.greeted = False  # at least one browser has sent a message
        self._keyframe = True  # the next frame must be whole
        self.deaf = False  # the kernel receives no messages while a cell runs
        self._heard = self._sent = self._whole = -WHOLE
        self._events = -1
        self._asked: deque[dict[str, Any]] = deque(maxlen=64)
        self._wake = threading.Event()
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Return whether the hub's thread is alive. A forked process does not have this thread."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread if it is not running."""
        if not self.running:
            self._halt.clear()
            self._thread = threading.Thread(target=self._loop, name="flnb-hub", daemon=True)
            self._thread.start()

    def stop(self, timeout: float = 2.0) -> None:
        """End the thread; may be called twice, and by the thread itself."""
        self._halt.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def follow(self, source: Source) -> None:
        """Switch to another source of frames, and send all its data first.

        Also called with the present source if data that it has sent before have changed.
        """
        self.source = source
        self._keyframe = True

    def receive(self, message: object) -> None:
        """Handle a browser message of type "ack", "resync", "hello", "tape" or "timeline"; ignore all others."""
        if not isinstance(message, dict):
            return
        kind, sequence = message.get("type"), message.get("seq")
        if kind == "ack" and isinstance(sequence, int):
            self.acknowledged = max(self.acknowledged, min(sequence, self.sequence))
            if isinstance(tab := message.get("tab"), str):
                self.source.look(tab)
        elif kind in ("tape", "timeline"):
            self._asked.append(message)
            self._wake.set()  # a user has clicked and waits
        elif kind in ("hello", "resync"):
            self._keyframe = True
        else:
            return
        self.greeted = True  # also by an ack: JupyterLab may send the hello behind the cell that runs
        self._heard = time.monotonic()

    def tick(self, now: float) -> bool:
        """Send a frame if one is due at time ``now`` (monotonic seconds); returns whether one was sent."""
        keyframe = asked = self._keyframe
        if not keyframe and self.sequence - self.acknowledged >= WINDOW:
            if now - self._heard < SILENCE or now - self._sent < (BLIND if self.deaf else SILENCE):
                return False
            keyframe = not self.deaf or now - self._whole >= WHOLE
        self.source.refresh()  # else an event would wait twice: for the pump's round, and for the hub's
        if keyframe:
            self._whole = now
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
        self.source.prepare()
        return True

    def _loop(self) -> None:
        """Answer requests and send frames until the hub is stopped; the body of the thread."""
        wake, spent = time.monotonic(), 0.0
        while not self._halt.is_set():
            began = time.thread_time()
            try:
                while self._asked:
                    send_answer(self.source.answer(self._asked.popleft()), self.send)
                self.tick(time.monotonic())
            except Exception:  # one line in the kernel's log and a dead dashboard, but never a dead training
                log.exception("flnb: the dashboard stopped; the training goes on. flnb.dashboard() starts it again")
                return
            spent += (min(time.thread_time() - began, 2 * SHARE / SLOWEST) - spent) / 16  # one long frame delays few
            now = time.monotonic()
            wake = min(max(wake + pause(spent), now + 0.002), now + pause(spent))
            if self._wake.wait(wake - time.monotonic()):
                self._wake.clear()


def send_answer(content: dict[str, Any] | None, send: Send) -> None:
    """Send an answer, with its entry "buffer" as a binary buffer; do nothing if ``content`` is None."""
    if content is not None:
        send(content, [content.pop("buffer")] if "buffer" in content else [])


def pause(spent: float) -> float:
    """Return the seconds from one frame to the next, given the mean processor seconds spent on each."""
    return min(max(1 / HERTZ, spent / SHARE), 1 / SLOWEST)
