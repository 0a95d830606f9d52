"""A thread that processes only the newest of several requests, such as the moves of a slider."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Request = TypeVar("Request")


class Newest(Generic[Request]):
    """Calls a function with the newest request and drops older ones, in a thread that ends when no request waits.

    Args:
        answer: a function that processes a request; it must not raise.
        name: the name of the thread.
    """

    def __init__(self, answer: Callable[[Request], object], name: str) -> None:
        self._answer, self._name = answer, name
        self._lock = threading.Lock()
        self._waiting: list[Request] = []
        self._dropped = False
        self._thread: threading.Thread | None = None

    def ask(self, request: Request) -> None:
        """Make ``request`` the one to process next, in place of one that is waiting; returns at once."""
        with self._lock:
            self._waiting = [request]
            if self._thread is None:
                run = copy_context().run
                self._thread = threading.Thread(target=run, args=(self._run,), name=self._name, daemon=True)
                self._thread.start()

    @property
    def superseded(self) -> bool:
        """Return whether the current request can be abandoned: a newer one is waiting, or `drop` was called."""
        return self._dropped or bool(self._waiting)

    def drop(self) -> None:
        """Discard the waiting request, and mark the current one as `superseded`, so that it may be abandoned."""
        with self._lock:
            self._waiting, self._dropped = [], True

    def wait(self, timeout: float = 60.0) -> None:
        """Wait until all requests are processed, at most ``timeout`` seconds."""
        if (thread := self._thread) is not None:
            thread.join(timeout)

    def _run(self) -> None:
        """Process requests until there are no more (the body of the thread)."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                request, self._dropped = self._waiting.pop(), False
            self._answer(request)
