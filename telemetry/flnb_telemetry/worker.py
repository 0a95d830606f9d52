"""Work on a thread of its own, one piece at a time, such as the batches of events that are written to disk."""

from __future__ import annotations

import sys
import threading
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def start(thread: Thread) -> None:
    """Start a thread; a Ctrl-C that `Condition.wait` turned into a RuntimeError is raised as KeyboardInterrupt."""
    try:
        thread.start()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


class Worker:
    """Runs functions on a thread of its own, one after the other; Ctrl-C does not interrupt them.

    The thread begins with the first function and ends in `stop`. If each function had a new thread, the C
    library would set aside memory for each of these threads, and the process would grow.

    Args:
        name: the name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._last = Lock()  # held until the last function has ended
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._ending = False  # the thread calls what is in the queue now, and nothing more

    @property
    def busy(self) -> bool:
        """Whether a function that was started has not ended yet."""
        return self._last.locked()

    def start(self, work: Callable[[], None]) -> None:
        """Call `work` on the thread, as soon as earlier functions have ended."""
        last = Lock()
        last.acquire()

        def run() -> None:
            try:
                work()
            finally:
                last.release()

        if self._thread is None or self._ending or not self._thread.is_alive():
            self._queue.put(None)  # ends a thread whose start Ctrl-C interrupted
            self._queue = SimpleQueue()
            self._thread = Thread(target=_run, args=(self._queue,), name=self._name, daemon=True)
            self._ending = False
            start(self._thread)
        self._queue.put(run)
        self._last = last

    def wait(self) -> None:
        """Wait until all functions have ended."""
        with self._last:
            pass

    def stop(self) -> None:
        """Wait until all functions have ended, and end the thread."""
        self.wait()  # `join` alone does not do: after a Ctrl-C in it, CPython 3.11 takes the thread for ended
        if self._thread is not None:
            self._ending = True
            self._queue.put(None)
            if self._thread.is_alive():  # its start may have failed
                self._thread.join()


def _run(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    """Call the functions in a queue until it yields None; the body of the thread."""
    while (work := queue.get()) is not None:
        try:
            work()
        except BaseException:  # reported as that of a thread which ends; others may wait in the queue
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        del work  # it refers to a recording
