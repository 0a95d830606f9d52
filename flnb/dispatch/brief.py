"""Short descriptions of values for error messages."""

from __future__ import annotations

from types import MethodType
from typing import Any

import numpy as np

ITEMS, LETTERS = 8, 80


def brief(value: Any) -> str:
    """Return a short text of a value for an error message: a tensor's dtype and shape, else a shortened ``repr``.

    >>> import flnb
    >>> brief(flnb.ones((2, 3))), brief([1, flnb.ones(2)]), brief((2, "x"))
    ('Tensor float32[2,3]', '[1, Tensor float32[2]]', "(2, 'x')")
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and isinstance(dtype, np.dtype) and not isinstance(value, np.generic):
        return f"{type(value).__name__} {dtype.name}[{','.join(map(str, shape))}]"
    if type(value) in (list, tuple):
        inside = ", ".join([*map(brief, value[:ITEMS]), *["..."] * (len(value) > ITEMS)])
        return f"[{inside}]" if type(value) is list else f"({inside}{',' if len(value) == 1 else ''})"
    text = value.__qualname__ if isinstance(value, MethodType) else repr(value)
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 3]}..."
