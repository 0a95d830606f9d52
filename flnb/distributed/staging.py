"""Memory for communicators: a tensor's own memory, or a copy of a device's memory on the host.

A device's memory is copied through pinned memory, in the current stream; recordings show these transfers. For
collective calls, a communicator may read the memory of one device directly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flnb.dispatch import state
from flnb.dispatch.groups import current, refuse_captured
from flnb.dispatch.parts import use_backend
from flnb.ops.creation import empty
from flnb.ops.elementwise import copy


def reads_host() -> bool:
    """Return whether tensors of the active backend are stored in host memory."""
    return state.current().backend.reads_host


def direct() -> bool:
    """Return whether the active communicator can read the active backend's memory directly, without host copies."""
    backend = state.current().backend
    return backend.reads_host or backend.location == current().location


def values(x: Any, message: bool = False) -> Any:
    """Return the values of a contiguous tensor for a communicator: the tensor's memory, or a copy of it on the host.

    Args:
        x: the tensor.
        message: whether the values are for `send`, which always needs them on the host.

    Raises:
        TypeError: the active backend has no values that could be copied.
    """
    backend: Any = state.current().backend
    if backend.reads_host:
        return x._data
    if not message and direct():
        return x._data if x._is_contiguous() else copy(x)._data
    refuse_captured()
    if not hasattr(backend, "staged"):
        raise TypeError(
            f"communication needs tensors whose values are in host memory or can be copied there; those of the "
            f"active backend {backend.name!r} cannot: compute with flnb.use_backend('numpy')"
        )
    return backend.staged(x._data)


def room(x: Any, message: bool = False) -> Any:
    """Return memory to which a communicator can write new values of x: x's own memory, or a host buffer for `write`.

    ``message`` says that the values come from `recv`, which always needs a buffer on the host.
    """
    return x._data if reads_host() or (not message and direct()) else np.empty(x.shape, x.dtype)


def write(x: Any, array: Any) -> None:
    """Set a tensor's values to those of ``array``, which has the same shape and may be the tensor's own memory."""
    if array is x._data:
        return
    if not reads_host() and isinstance(array, np.ndarray):
        state.current().backend.from_numpy(np.ascontiguousarray(array), x._data)
    else:
        compute("copy", array, out=x._data)


def local(shape: tuple[int, ...], dtype: Any) -> Any:
    """Make an uninitialized tensor in memory that communicators can read, for any active backend."""
    if direct():
        return empty(shape, dtype)
    with use_backend("numpy"):
        return empty(shape, dtype)


def compute(op: str, *operands: Any, out: Any) -> None:
    """Run the op "add", "divide", "copy" or "full" on buffers of communicators, and write the result to ``out``."""
    if not isinstance(out, np.ndarray):
        method = state.current().backend.method(op)
        if method is not None and out.size:
            method(*operands, out=out)
    elif op in ("copy", "full"):
        np.copyto(out, operands[0])
    else:
        getattr(np, op)(*operands, out=out)
