"""Joining of several tensors into one and splitting again, for code that needs all cotangents of a function at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flnb.dispatch.dtypes import common_dtype
from flnb.ops.elementwise import astype
from flnb.ops.movement import concat, reshape


def join(tensors: Sequence[Any]) -> Any:
    """Concatenate tensors' elements into one vector of their common dtype; a single tensor is returned unchanged."""
    if len(tensors) == 1:
        return tensors[0]
    dtype = common_dtype([x.dtype for x in tensors])
    return concat([astype(reshape(x, (x.size,)), dtype, copy=False) for x in tensors])


def split(joined: Any, like: Sequence[Any]) -> list[Any]:
    """Inverse of `join`: split a joined tensor into tensors of the shapes and dtypes of ``like``."""
    if len(like) == 1:
        return [joined]
    parts, start = [], 0
    for x in like:
        part = reshape(joined[start : start + x.size], x.shape)
        parts.append(astype(part, x.dtype, copy=False))
        start += x.size
    return parts
