"""The memory that communicators read and write: a tensor's own, or the host's, from and to which it is copied.

A device's memory is copied through pinned memory, by transfers that recordings show, in the stream of the present work.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flnb.dispatch import state
from flnb.dispatch.parts import use_backend
from flnb.ops.creation import empty

__all__ = ["local", "reads_host", "room", "values", "write"]


def reads_host() -> bool:
    """Whether tensors of the active backend are in this machine's memory."""
    return state.current().backend.reads_host


def values(x: Any) -> Any:
    """A contiguous tensor's values for a communicator: its own memory, or a copy of a device's on the host.

    Raises:
        TypeError: the active backend has no values that could be copied.
    """
    backend: Any = state.current().backend
    if backend.reads_host:
        return x._data
    if not hasattr(backend, "staged"):
        raise TypeError(
            f"communication needs tensors in this machine's memory, or on a device from which they are copied; the "
            f"active backend {backend.name!r} has others: compute with flnb.use_backend('numpy')"
        )
    return backend.staged(x._data)


def room(x: Any) -> Any:
    """Memory in which a communicator puts what becomes a tensor's values by `write`: the tensor's own, or as much."""
    return x._data if reads_host() else np.empty(x.shape, x.dtype)


def write(x: Any, array: Any) -> None:
    """Set a tensor's values to those of an array of its shape, which may be its own memory."""
    if not reads_host():
        state.current().backend.from_numpy(np.ascontiguousarray(array), x._data)
    elif array is not x._data:
        np.copyto(x._data, array)


def local(shape: tuple[int, ...], dtype: Any) -> Any:
    """Make a tensor without values in this machine's memory, whatever the active backend."""
    if reads_host():
        return empty(shape, dtype)
    with use_backend("numpy"):
        return empty(shape, dtype)
