"""Comparison of the results of one op call on two backends, with an allowance for rounding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch import registry
from flnb.dispatch.dtypes import is_float
from flnb.dispatch.quiet import quiet
from flnb.dispatch.table import OPS
from flnb.explore.calls import NEW, OpCall, Outcome, op_named, same_bits
from flnb.explore.composites import CompositeCall, composite
from flnb.explore.layout import keep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.interface import TensorBackend

Array = np.ndarray[Any, Any]
ULPS = 8  # allowed error of a correct result, in units in the last place of the largest value
ULPS_OF_SUMS = 32  # allowed error of reductions and matrix products


@dataclass(frozen=True)
class Difference:
    """The difference between two results; false if they agree.

    Attributes:
        what: the difference as text, empty if the results agree.
        error: the largest absolute error.
        allowed: the largest absolute error that counts as agreement.
    """

    what: str = ""
    error: float = 0.0
    allowed: float = 0.0

    @property
    def kind(self) -> str:
        """Return the kind of the difference: the first word of `what`, or "raised" and the type of the exception."""
        return " ".join(self.what.split()[: 2 if self.what.startswith("raised") else 1])

    def __bool__(self) -> bool:
        return bool(self.what)

    def __str__(self) -> str:
        return self.what or f"no difference (largest error {self.error:.2e}, allowed {self.allowed:.2e})"


def difference(call: OpCall, reference: TensorBackend, expected: Outcome, got: Outcome, tolerance: float) -> Difference:
    """Compare the outcome ``got`` of a call with the outcome ``expected`` of the reference backend.

    Checks for exceptions, inputs that were overwritten, shape, dtype and values. Values may differ by ``tolerance``
    times the largest value (or 8 units in its last place, 32 in sums, if that is more). Where the terms of a sum
    cancel, the largest value is taken from the same call on the absolute values of the inputs. A composite may also
    differ by 8 times the reference's own error, which a run in float64 shows.
    """
    if expected.error is not None:
        same = got.error is not None
        return Difference("" if same else f"the reference raised {_named(expected.error)}, this one did not")
    if got.error is not None:
        return Difference(f"raised {_named(got.error)}")
    if got.written >= 0 and expected.written != got.written:
        return Difference(f"changed its input {got.written}, which this op must not write to")
    if isinstance(call, CompositeCall):
        return _composites_differ(call, reference, expected.value, got.value, tolerance)
    a, b, sums = np.asarray(expected.value), np.asarray(got.value), _sums(call.op)

    def allowed(largest: float) -> float:
        return max(tolerance, (ULPS_OF_SUMS if sums else ULPS) * precision(a.dtype)) * largest

    found = arrays_differ(a, b, allowed)
    if sums and found and np.isfinite(found.error):
        without_cancelling = _without_cancelling(call, reference)
        found = arrays_differ(a, b, lambda largest: allowed(max(largest, without_cancelling)))
    return found


def _composites_differ(
    call: CompositeCall, reference: TensorBackend, expected: Any, got: Any, tolerance: float
) -> Difference:
    """Compare what two backends returned for a composite's call, or for the call of its gradient.

    A composite's call returns an array, a gradient's call a tuple with the gradient of each input. Where two results
    differ by more than ``tolerance`` allows, the call runs again on ``reference`` in float64, which shows the rounding
    error of ``expected``; 8 times this error is allowed, too.
    """
    gradients = isinstance(expected, tuple)
    pairs = list(zip(expected, got, strict=True)) if gradients else [(np.asarray(expected), np.asarray(got))]
    precise: Any = None
    found = Difference()
    for i, (a, b) in enumerate(pairs):
        limits = [max(tolerance, ULPS_OF_SUMS * precision(a.dtype)) if is_float(a.dtype) else 0.0, 0.0]

        def allowed(largest: float, limits: list[float] = limits) -> float:
            return max(limits[0] * largest, limits[1])

        one = arrays_differ(a, b, allowed)
        if one and np.isfinite(one.error) and one.error and is_float(a.dtype):
            precise = precise or call.precise().on(reference)
            if precise.error is None:
                true = np.asarray(precise.value[i] if gradients else precise.value)
                limits[1] = 8 * float(np.abs(true - a.astype(true.dtype)).max(initial=0.0))
                one = arrays_differ(a, b, allowed)
        if one:
            return replace(one, what=f"gradient {i}: {one.what}") if len(pairs) > 1 else one
        found = max(found, one, key=lambda each: each.error)
    return found


@quiet
def arrays_differ(a: Array, b: Array, allowed: Callable[[float], float]) -> Difference:
    """Compare an array ``b`` with the expected array ``a``: shape, dtype, NaNs, infinities and values.

    ``allowed`` takes the largest expected magnitude and returns the largest absolute error that counts as agreement.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return Difference(f"returned {b.dtype.name}{list(b.shape)}, expected {a.dtype.name}{list(a.shape)}")
    if not is_float(a.dtype):
        wrong = a != b
        return Difference(_at("wrong values: {} of {}", a, b, wrong), 1.0) if wrong.any() else Difference()
    finite = np.isfinite(a)
    odd = (np.isnan(a) != np.isnan(b)) | (np.isinf(a) != np.isinf(b)) | (np.isinf(a) & (a != b))
    if odd.any():
        return Difference(_at("NaN or infinity differs in {} of {} values", a, b, odd), float("inf"))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    apart = np.where(finite, np.abs(a.astype(wide) - b.astype(wide)), 0.0)
    error, limit = float(apart.max(initial=0.0)), allowed(float(np.abs(a[finite].astype(wide)).max(initial=0.0)))
    if not error > limit:
        return Difference("", error, limit)
    text = f"largest error {error:.2e}, allowed {limit:.2e}; {{}} of {{}} values differ"
    return Difference(_at(text, a, b, apart > limit), error, limit)


def _sums(op: str) -> bool:
    """Return whether an op sums many terms, so that rounding errors accumulate."""
    return OPS[op].family in ("reduction", "matmul") or op == "scatter_add"


def _without_cancelling(call: OpCall, reference: TensorBackend) -> float:
    """Return the largest finite value of the call's result on the absolute values of the inputs.

    With absolute values, the terms of a sum do not cancel.
    """
    positive = replace(call, inputs=tuple(keep(np.abs(k.array())) if is_float(k.dtype) else k for k in call.inputs))
    outcome = replace(positive, out=None if call.out != NEW else NEW).on(reference)
    values = np.abs(np.asarray(outcome.value, np.float64)) if outcome.error is None else np.zeros(())
    return float(values[np.isfinite(values)].max(initial=0.0))


def precision(dtype: np.dtype[Any]) -> float:
    """Return the distance from 1 to the next larger number of a floating-point dtype."""
    return 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps)


def _at(text: str, a: Array, b: Array, wrong: Array) -> str:
    """Insert the number of wrong values into the text of a difference, and append the first wrong value.

    ``wrong`` is true where an element of ``b`` differs from the expected element of ``a``.
    """
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    inside = f"at {list(where)} " if where else ""
    return f"{text.format(int(wrong.sum()), wrong.size)}; {inside}{b[where]!s} where {a[where]!s} was expected"


def _named(error: Exception) -> str:
    """Return the type and the message of an exception as text."""
    return f"{type(error).__name__}: {error}"


def compare_op(
    name: str,
    inputs: Sequence[Any],
    attributes: tuple[Any, ...] = (),
    backends: Sequence[Any] = ("numpy", "numpy"),
    *,
    out: int | None = None,
    result: Any = None,
    category: int = 0,
    tolerance: float = 1e-10,
    repeats: int = 1,
) -> Difference:
    """Run one op on two backends with the same inputs, and return how the results differ.

    The returned object is false if they agree; printed, it describes the difference.

    Args:
        name: the op's name in the op table. A composite runs as a whole where the backend has a method for it; its
            gradient is named after the backend's method, such as "relu_pull".
        inputs: NumPy arrays; each backend gets copies with the same layout in memory. For a composite's gradient, the
            first is the gradient of the composite's result.
        attributes: the further arguments of the backends' methods, after their tensors.
        backends: the reference backend, and the backend to compare with it, as names, classes or instances.
        out: the index of the input to write the result to, or -1 for a new buffer; by default the backend's method
            allocates the result.
        result: shape and dtype of the new buffer, where ``out`` is -1.
        category: the memory category of the result, an index into `flnb.dispatch.state.CATEGORIES`; 2 stands for
            gradients, as in a backward.
        tolerance: allowed error, relative to the largest value.
        repeats: how often to try, for a backend that is wrong only sometimes.

    Raises:
        KeyError: no op has that name.

    >>> import numpy as np
    >>> import flnb
    >>> class Off(flnb.backends.NumpyBackend):
    ...     def exp(self, x, out=None):
    ...         return np.multiply(np.exp(x), 1.001, out)
    >>> print(flnb.explore.compare_op("exp", [np.zeros(2)], (), ["numpy", Off]))
    largest error 1.00e-03, allowed 1.00e-10; 2 of 2 values differ; at [0] 1.001 where 1.0 was expected
    """
    if result is not None:
        result = (tuple(result[0]), np.dtype(result[1]))
    kept = tuple(keep(np.asarray(x)) for x in inputs)
    kind: type[OpCall] = CompositeCall
    if not composite(name):
        kind = OpCall
        op_named("compare_op", name)
    call = kind(name, kept, tuple(attributes), out, result, category)
    reference, other = (registry.make("backend", b) for b in backends)
    return diverges(call, reference, other, tolerance, repeats)


def diverges(
    call: OpCall, reference: TensorBackend, other: TensorBackend, tolerance: float, repeats: int = 1
) -> Difference:
    """Compare two backends on a call, up to ``repeats`` times; returns the first difference.

    If one backend's results of the same call change from time to time, that counts as a difference, too.
    """
    expected = call.on(reference)
    found = Difference()
    first: Outcome | None = None
    for _ in range(repeats):
        got = call.on(other)
        found = difference(call, reference, expected, got, tolerance)
        if found:
            return replace(found, what=f"{found.what}; not every time") if first is not None else found
        if first is not None and not _same(first.value, got.value):
            return Difference("returns other bits when it is run again on the same inputs", found.error, found.allowed)
        first = got
    return found


def _same(a: Any, b: Any) -> bool:
    """Return whether two values of outcomes, each an array or a tuple of arrays, have the same bits."""
    return all(map(same_bits, a, b)) if isinstance(a, tuple) else same_bits(a, b)
