"""Work on threads of its own, one piece at a time, such as the batches of events that are written to disk."""

from __future__ import annotations

from threading import Lock, Thread
from typing import TYPE_CHECKING

from flnb_telemetry import pump

if TYPE_CHECKING:
    from collections.abc import Callable


class Worker:
    """Runs functions on threads of their own, one after the other; Ctrl-C does not interrupt them.

    Args:
        name: the name of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._running, self._last = Lock(), Lock()  # held while a function runs, and until the last thread has ended it
        self._thread: Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a function that was started has not ended yet."""
        return self._last.locked()

    def start(self, work: Callable[[], None]) -> None:
        """Call `work` on a new thread, as soon as earlier functions have ended."""
        last = Lock()
        last.acquire()

        def run() -> None:
            try:
                with self._running:  # Ctrl-C below may leave a thread that runs and that nobody waits for
                    work()
            finally:
                last.release()

        thread = Thread(target=run, name=self._name, daemon=True)
        pump.start(thread)
        self._last, self._thread = last, thread

    def wait(self) -> None:
        """Wait until all functions have ended."""
        with self._last:  # `join` alone does not do: after a Ctrl-C in it, CPython 3.11 takes the thread for ended
            pass
        if self._thread is not None:
            self._thread.join()
