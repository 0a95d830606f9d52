"""The arrays of a frame as bytes, for browsers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from flnb_telemetry.live.memory import Arrays

_U32 = {"alloc.segment", "alloc.plan", "alloc.context", "segment.id", "release.id"}
_U32 |= {"op.name", "op.family", "scope.name", "line.name", "shape.name", "metric.name", "kernel.name"}


def packed(arrays: Arrays) -> tuple[dict[str, list[Any]], bytes]:
    """Convert arrays to bytes, one after the other; each begins at a multiple of 8.

    Returns:
        For each array its [dtype, offset, length], by name; and the bytes.
    """
    index: dict[str, list[Any]] = {}
    buffer = bytearray()
    for name, array in arrays.items():
        code = "u8" if name == "alloc.category" else "u32" if name in _U32 or array.dtype == np.uint32 else "f64"
        index[name] = [code, len(buffer), len(array)]
        buffer += array.astype({"u8": np.uint8, "u32": np.uint32, "f64": np.float64}[code]).tobytes()
        buffer += bytes(-len(buffer) % 8)
    return index, bytes(buffer)
