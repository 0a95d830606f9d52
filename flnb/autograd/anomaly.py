"""Stop where a number goes wrong: NaN, infinity, or larger than a limit, in the forward pass or in backward.

Both functions observe ops (`flnb.dispatch.observe`): they cost nothing where they are not used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.withblock import with_block

from flnb.dispatch import source_lines, state
from flnb.dispatch.dtypes import is_float
from flnb.dispatch.observe import Observer, call_of, observe
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb.dispatch.table import Op

__all__ = ["AnomalyError", "breakpoint_if", "detect_anomaly"]


class AnomalyError(ArithmeticError):
    """A NaN, an infinity or a number above the limit; the message names op, line, and the inputs' statistics."""


@with_block
def detect_anomaly(limit: float = 1e10) -> Iterator[None]:
    """Raise an error at the first op inside whose result has a NaN, an infinity or a number above ``limit``.

    In a backward pass the error also names the op of the forward pass whose gradient it was, and that op's line.
    Every result is read once more, so programs run perhaps twice as long. Minus infinity from ``log(0)`` counts, too:
    pass ``limit=float("inf")`` to look for NaN alone.

    >>> import flnb, numpy as np
    >>> x = flnb.Variable([1.0, 0.0])
    >>> with np.errstate(divide="ignore"), flnb.detect_anomaly():
    ...     flnb.log(x)
    Traceback (most recent call last):
    flnb.autograd.anomaly.AnomalyError: 'log' gave 1 -Inf of 2 elements (float32[2]), the first at (1,)...

    Raises:
        AnomalyError: with the node's op, the user's line and statistics of the inputs.
    """
    if not limit > 0:
        raise ValueError(f"detect_anomaly: limit must be positive, got {limit}")
    with observe(_Guard(limit)):
        yield


class _Guard(Observer):
    def __init__(self, limit: float) -> None:
        self.limit = limit

    def after(self, op: Op, arguments: tuple[Any, ...], result: Any) -> None:
        values = _values(result)
        if not is_float(values.dtype) or not values.size:
            return
        with np.errstate(invalid="ignore"):
            size = np.abs(values)
            size = size if size.itemsize > 2 else size.astype(np.float32)  # the limit is infinite in half precision
            wrong = np.isnan(size) if self.limit == float("inf") else ~(size <= self.limit)
        if not wrong.any():
            return
        first = tuple(int(i[0]) for i in np.nonzero(wrong)) if values.ndim else ()
        inputs = "".join(
            f"\n  input {i}: {_statistics(_values(x))}" for i, x in enumerate(call_of(op, arguments).inputs)
        )
        raise AnomalyError(
            f"{op.name!r} gave {_kinds(values, wrong)} of {values.size} elements "
            f"({values.dtype.name}[{','.join(map(str, values.shape))}]), the first at {first}, "
            f"called at {source_lines.caller()}{inputs}"
        )


def _values(buffer: Any) -> np.ndarray[Any, Any]:
    return np.asarray(state.current().backend.to_numpy(buffer))


def _kinds(values: np.ndarray[Any, Any], wrong: np.ndarray[Any, Any]) -> str:
    """Describe what is wrong: ``3 NaN, 1 -Inf`` or ``2 above the limit (largest 1e+12)``."""
    nan = int(np.isnan(values).sum())
    counts = {"NaN": nan}
    if values.dtype.kind == "f":
        counts |= {"Inf": int(np.isposinf(values).sum()), "-Inf": int(np.isneginf(values).sum())}
    left = int(wrong.sum()) - sum(counts.values())
    found = [f"{count} {name}" for name, count in counts.items() if count]
    if left > 0:
        found.append(f"{left} above the limit (largest {np.nanmax(np.abs(values)):.4g})")
    return ", ".join(found)


def _statistics(values: np.ndarray[Any, Any]) -> str:
    """Describe an input in one line: shape, range, mean, and how many elements are not finite."""
    about = f"{values.dtype.name}[{','.join(map(str, values.shape))}]"
    if not values.size or values.dtype.kind not in "fiu":
        return about
    finite = values[np.isfinite(values)].astype(np.float64)
    bad = values.size - finite.size
    facts = f", min {finite.min():.4g}, max {finite.max():.4g}, mean {finite.mean():.4g}" if finite.size else ""
    return about + facts + (f", {bad} not finite" if bad else "")


def breakpoint_if(condition: Any, *tensors: Any) -> Any:
    """Stop in the debugger, at the caller's line, if a condition holds; returns the first tensor.

    Args:
        condition: a bool, a tensor (any element), or a function of the tensors' values as NumPy arrays.
        tensors: the tensors to look at: in the debugger ``values`` is their list, as NumPy arrays.

    >>> import flnb
    >>> x = flnb.asarray([1.0, 2.0])
    >>> flnb.breakpoint_if(lambda x: x.max() > 10, x).tolist()
    [1.0, 2.0]
    """
    values = [x._values() if isinstance(x, Tensor) else np.asarray(x) for x in tensors]
    holds = condition(*values) if callable(condition) else condition
    if np.asarray(holds._values() if isinstance(holds, Tensor) else holds).any():
        frame = sys._getframe(1)
        print(f"breakpoint_if: {source_lines.caller()}")
        for i, value in enumerate(values):
            print(f"  values[{i}]: {_statistics(value)}")
        debugger(frame, values)
    return tensors[0] if tensors else None


def debugger(frame: Any, values: list[np.ndarray[Any, Any]]) -> None:
    """Open pdb in a frame, with ``values`` among its names. Replace it to use another debugger."""
    from pdb import Pdb

    frame.f_locals["values"] = values
    Pdb().set_trace(frame)
