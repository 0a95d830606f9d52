"""Anomaly detection, which raises an error at the first NaN, infinity or huge number; conditional breakpoints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.withblock import with_block

from flnb.dispatch import source_lines, state
from flnb.dispatch.dtypes import is_float
from flnb.dispatch.observe import Observer, call_of, observe
from flnb.dispatch.plan import spec_of
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb.dispatch.table import Op


class AnomalyError(ArithmeticError):
    """Error of `detect_anomaly`: an op returned a NaN, an infinity or a number above the limit."""


@with_block
def detect_anomaly(limit: float = 1e10) -> Iterator[None]:
    """Raise an error at the first op in the block whose result has a NaN, an infinity or a number above ``limit``.

    An error in a backward pass also names the op of the forward pass whose gradient was computed, with its line. Every
    result is read once more, so programs take up to twice as long. An infinity such as ``log(0)`` is an error, too;
    pass ``limit=float("inf")`` to detect NaN alone.

    >>> import flnb, numpy as np
    >>> x = flnb.Variable([1.0, 0.0])
    >>> with np.errstate(divide="ignore"), flnb.detect_anomaly():
    ...     flnb.log(x)
    Traceback (most recent call last):
    flnb.autograd.anomaly.AnomalyError: 'log' gave 1 -Inf of 2 elements (float32[2]), the first at (1,)...

    Raises:
        AnomalyError: at that op; the message has the user's line and the range and mean of each input.
        ValueError: ``limit`` is not positive.
    """
    if not limit > 0:
        raise ValueError(f"detect_anomaly: limit must be positive, got {limit}")
    with observe(_Guard(limit)):
        yield


class _Guard(Observer):
    """Checks the result of every op that runs, for `detect_anomaly`."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def after(self, op: Op, arguments: tuple[Any, ...], result: Any) -> None:
        values = _values(result)
        if not is_float(values.dtype):
            return
        with np.errstate(invalid="ignore"):
            wrong = np.isnan(values) if self.limit == float("inf") else ~(np.abs(values) <= np.float64(self.limit))
        if not wrong.any():
            return
        first = tuple(int(i[0]) for i in np.nonzero(wrong)) if values.ndim else ()
        inputs = [f"\n  input {i}: {_statistics(_values(x))}" for i, x in enumerate(call_of(op, arguments).inputs)]
        raise AnomalyError(
            f"{op.name!r} gave {_kinds(values, wrong)} of {values.size} elements "
            f"({spec_of(values.shape, values.dtype)!r}), the first at {first}, "
            f"called at {source_lines.caller()}{''.join(inputs)}"
        )


def _values(buffer: Any) -> np.ndarray[Any, Any]:
    """Return the values of a backend's buffer as a NumPy array."""
    return np.asarray(state.current().backend.to_numpy(buffer))


def _kinds(values: np.ndarray[Any, Any], wrong: np.ndarray[Any, Any]) -> str:
    """Count the elements that are ``wrong`` by kind: ``3 NaN, 1 -Inf`` or ``2 above the limit (largest 1e+12)``."""
    below = values == -np.inf
    kinds = {"NaN": np.isnan(values), "Inf": np.isinf(values) & ~below, "-Inf": below, "": np.isfinite(values)}
    counts = {name: int((wrong & kind).sum()) for name, kind in kinds.items()}
    large = counts.pop("")
    found = [f"{count} {name}" for name, count in counts.items() if count]
    if large:
        found.append(f"{large} above the limit (largest {np.nanmax(np.abs(values)):.4g})")
    return ", ".join(found)


def _statistics(values: np.ndarray[Any, Any]) -> str:
    """Describe an array in one line: dtype, shape, range, mean, and how many elements are not finite."""
    about = repr(spec_of(values.shape, values.dtype))
    if not values.size or values.dtype.kind not in "fiu":
        return about
    finite = values[np.isfinite(values)].astype(np.float64)
    bad = values.size - finite.size
    facts = f", min {finite.min():.4g}, max {finite.max():.4g}, mean {finite.mean():.4g}" if finite.size else ""
    return about + facts + (f", {bad} not finite" if bad else "")


def breakpoint_if(condition: Any, *tensors: Any) -> Any:
    """Open the debugger at the caller's line if a condition is true, and return the first of ``tensors``.

    Args:
        condition: a bool; or a tensor, which is true if any element is true; or a function that is called with the
            values of ``tensors`` as NumPy arrays and returns a bool or an array.
        tensors: tensors to look at. In the debugger, the name ``values`` is the list of their NumPy arrays.

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
    """Open pdb in a frame of the stack, with ``values`` as an additional local variable.

    Assign another function to ``flnb.autograd.anomaly.debugger`` to use another debugger.
    """
    from pdb import Pdb

    frame.f_locals["values"] = values
    Pdb().set_trace(frame)
