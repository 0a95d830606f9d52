"""NumPy's functions called on Tensors: operators are computed by flnb; functions that flnb has, too, are errors.

``numpy_array + tensor`` calls ``Tensor.__array_ufunc__`` with the ufunc ``add``, which `flnb.add` computes. A call like
``np.exp(tensor)`` is an error that names `flnb.exp`, as NumPy would bypass the backend and record no gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flnb import ops
from flnb.dispatch.spelling import REARRANGED, RENAMED
from flnb.tensor import Tensor

__all__ = ["apply_function", "apply_ufunc"]

_OPERATORS = {
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "pow", "matmul", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "equal", "not_equal", "less", "less_equal", "greater",
    "greater_equal",
}  # fmt: skip


def apply_ufunc(_: Tensor, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
    """Compute ``array + tensor``, or another operator whose left operand is a NumPy array and whose right one a Tensor.

    Raises:
        TypeError: any other call of a ufunc; the message says what to write instead.
    """
    name = RENAMED.get(ufunc.__name__, ufunc.__name__)
    if isinstance(keywords.get("out", (None,))[0], np.ndarray):
        raise TypeError(
            f"np.{ufunc.__name__}: a NumPy array cannot take a result of flnb Tensors in place; write a = a + tensor "
            f"for a Tensor, or a += tensor.numpy()"
        )
    if method == "__call__" and name in _OPERATORS and len(inputs) == 2 and not isinstance(inputs[0], Tensor):
        return getattr(ops, name)(*inputs)
    raise _refused(f"np.{ufunc.__name__}", name)


def apply_function(_: Tensor, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
    """Call a NumPy function on the Tensors' values; if flnb has such a function, raise a TypeError that names it."""
    name = RENAMED.get(function.__name__, function.__name__)
    if name in ops.__all__ or name in REARRANGED:
        raise _refused(f"np.{function.__name__}", name)
    return function(*(_numpy(a) for a in arguments), **{k: _numpy(v) for k, v in keywords.items()})


def _numpy(value: Any) -> Any:
    """Return ``value`` with NumPy arrays in place of Tensors, also inside lists and tuples."""
    if isinstance(value, Tensor):
        return np.asarray(value)
    return type(value)(_numpy(v) for v in value) if type(value) in (list, tuple) else value


def _refused(called: str, name: str) -> TypeError:
    """Return the error for a call of a NumPy function on Tensors.

    ``called`` is the function's full name for the message, such as "np.sum", and ``name`` the name to look for in flnb.
    """
    meant = REARRANGED.get(name, f"flnb.{name}" if name in ops.__all__ else "")
    ours = f"use {meant}, or " if meant else ""
    return TypeError(f"{called} does not compute on flnb Tensors: {ours}give it NumPy arrays: tensor.numpy()")
