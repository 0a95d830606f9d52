"""Programs whose traces the backend `deferred` replays, and the number of ops that it replays."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

import flnb
from flnb.backends import DeferredBackend
from flnb.graph.running import running

if TYPE_CHECKING:
    from collections.abc import Callable


X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


def exact() -> DeferredBackend:
    return DeferredBackend("numpy", fuse=False)


def chain(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = flnb.tanh(x * w + 1.0) - w
    return x


def shares(x: Any, axis: int) -> Any:
    """Return values whose sum along an axis is 1, by ops with one result each."""
    e = flnb.exp(x * 0.1)
    return e / flnb.sum(e, axis=axis, keepdims=True)


def compare(run: Callable[[], list[Any]]) -> None:
    """Check that ``run`` has the same results, to the last bit, on `deferred` as on NumPy's backend."""
    with flnb.use_backend("numpy"):
        expected = run()
    with flnb.use_backend(exact()):
        got = run()
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a, b)


def is_lock_free() -> bool:
    """Return whether another thread can compute, because this one does not hold the lock any more."""
    free: list[bool] = []

    def take() -> None:
        free.append(running.acquire(timeout=5))
        if free[0]:
            running.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return free[0]
