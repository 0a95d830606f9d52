"""Indexing and joining for array libraries that support NumPy's indexing and ``concatenate``: NumPy and CuPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flnb.ops.indexing import basic, decode

Shape = tuple[int, ...]


class Movement:
    """Ops that take elements at indices, or write elements to them.

    Attributes:
        copy: a method that copies a buffer, to ``out`` if that is given.
        filled: a method (value, shape, dtype, out) that fills ``out``, or a new buffer, with one value and returns it.
    """

    copy: Callable[..., Any]
    filled: Callable[..., Any]

    def slice(self, x: Any, key: tuple[Any, ...]) -> Any:
        return x[basic(key)]

    def pad(self, x: Any, widths: tuple[tuple[int, int], ...], value: float, out: Any = None) -> Any:
        shape = tuple(n + b + a for n, (b, a) in zip(x.shape, widths, strict=True))
        out = self.filled(value, shape, x.dtype, out)
        out[tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, widths, strict=True))] = x
        return out

    def concat(self, *arguments: Any) -> Any:
        *parts, axis, out = arguments
        return np.concatenate(parts, axis, out=out)

    def place(self, x: Any, shape: Shape, key: tuple[Any, ...], out: Any = None) -> Any:
        out = self.filled(0, shape, x.dtype, out)
        out[basic(key)] = x
        return out

    def put(self, x: Any, values: Any, *arguments: Any) -> Any:
        *indices, key, target = arguments
        out = x if target is x else self.copy(x, target)
        out[decode(key, tuple(indices))] = values
        return out
