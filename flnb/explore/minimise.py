"""Shrinking an op call on which two backends differ: smaller shapes, a plainer memory layout, then simpler values.

This is delta debugging (Zeller and Hildebrandt 2002) of a call's inputs. A smaller call is accepted only if the
reference backend runs it, its result has the shape that the op's rule requires, and the backends still differ.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch import registry
from flnb.dispatch.plan import spec_of
from flnb.dispatch.table import OPS
from flnb.explore.calls import NEW, OpCall
from flnb.explore.composites import CompositeCall
from flnb.explore.difference import Difference, diverges
from flnb.explore.layout import Kept, Layout, canonical, keep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb.interface import TensorBackend

Array = np.ndarray[Any, Any]
REPEATS = 64  # tries of a call on a backend that is wrong only sometimes


class Minimised:
    """Shrinks a call step by step: ``call`` is the smallest so far, ``found`` the difference that it shows.

    A call is tried up to ``repeats`` times until it shows a difference.
    """

    def __init__(
        self, call: OpCall, reference: TensorBackend, other: TensorBackend, tolerance: float, seconds: float
    ) -> None:
        self.reference, self.other, self.tolerance = reference, other, tolerance
        self.deadline = time.monotonic() + seconds
        self.call, self.repeats = call, 1
        self.found = self._try(call)
        if not self.found:
            self.repeats = REPEATS
            self.found = self._try(call)

    def _try(self, call: OpCall) -> Difference:
        """Return how the two backends differ on a call."""
        return diverges(call, self.reference, self.other, self.tolerance, self.repeats)

    def take(self, candidate: OpCall | None) -> bool:
        """Replace ``call`` by ``candidate`` if the candidate is valid and shows a difference of the same kind.

        Returns whether the call was replaced.
        """
        if candidate is None or time.monotonic() > self.deadline or not _valid(candidate, self.reference):
            return False
        with np.errstate(all="ignore"):
            found = self._try(candidate)
        same = bool(found) and found.kind == self.found.kind
        if same:
            self.call, self.found = candidate, found
        return same


def minimise(
    call: OpCall, reference: TensorBackend, other: TensorBackend, tolerance: float, seconds: float = 15.0
) -> Minimised:
    """Make a call as small and simple as is possible in the given seconds, while two backends still differ on it.

    ``tolerance`` is the allowed error, see `flnb.explore.difference.difference`.
    """
    now = Minimised(call, reference, other, tolerance, seconds)
    if not now.found:  # the difference does not show outside of the program
        return now
    now.take(replace(now.call, category=0))
    sources = tuple(np.random.default_rng(0) if isinstance(a, np.random.Generator) else a for a in call.attributes)
    now.take(replace(now.call, attributes=sources))
    if now.call.out is not None and _ruled(call):
        now.take(replace(now.call, out=None, result=None)) or now.take(replace(now.call, out=NEW))
    for i in reversed(range(len(call.inputs) if len(call.inputs) > 2 and now.call.out in (None, NEW) else 0)):
        rest = (*now.call.inputs[:i], *now.call.inputs[i + 1 :])
        now.take(_with_result(replace(now.call, inputs=rest)))  # of several that are joined, few may do
    for i in range(len(now.call.inputs)):
        now.take(_with(now.call, i, np.array(now.call.inputs[i].array(), order="C")))
    while any(now.take(smaller) for smaller in _smaller(now.call)):
        pass
    for i in range(len(now.call.inputs)):
        now.take(_with(now.call, i, np.array(now.call.inputs[i].array(), order="C")))
        _simplify(now, i)
    return now


def _valid(call: OpCall, reference: TensorBackend) -> bool:
    """Return whether the reference runs a call, and its result's shape and dtype follow the op's rule.

    A composite's body is run first, which checks indices; a backend's method for the whole may trust them.
    """
    if isinstance(call, CompositeCall) and call.on(registry.make("backend", "numpy")).error is not None:
        return False
    with np.errstate(all="ignore"):
        outcome = call.on(reference)
    if outcome.error is not None or outcome.written >= 0:
        return False
    return not _ruled(call) or _by_rule(call, reference.buffer) == (outcome.value.shape, outcome.value.dtype)


def _ruled(call: OpCall) -> bool:
    """Return whether the op has a rule for the shape and dtype of its result."""
    return not isinstance(call, CompositeCall) and OPS[call.op].infer.__name__ != "_no_rule"


def _by_rule(call: OpCall, kind: str = "ndarray") -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Return shape and dtype of the result by the op's rule, or None if the rule raises an error for the inputs.

    ``kind`` is the family of the inputs' buffers.
    """
    op = OPS[call.op]
    try:
        shape, dtype = op.infer(op, tuple(spec_of(k.shape, k.dtype, kind) for k in call.inputs), call.attributes)
    except Exception:
        return None
    return tuple(shape), np.dtype(dtype)


def _with(call: OpCall, index: int, values: Array, like: Kept | None = None) -> OpCall | None:
    """Return the call with new values for input ``index``, in the layout of ``like``; None if nothing changes."""
    old = call.inputs[index]
    if like is not None:
        values = Layout.of(like.array(), values.shape).filled(values)[1]
    new = keep(canonical(values))
    if (new.memory, new.strides, new.shape) == (old.memory, old.strides, old.shape):
        return None
    return replace(call, inputs=(*call.inputs[:index], new, *call.inputs[index + 1 :]))


def _smaller(call: OpCall) -> Iterator[OpCall]:
    """Yield calls in which an extent is made smaller, on one axis only or wherever it occurs in axes and attributes."""
    extents = sorted({n for kept in call.inputs for n in kept.shape if n > 1}, reverse=True)
    if call.result is not None and not call.inputs:
        extents = sorted({n for n in call.result[0] if n > 1}, reverse=True)
    for n in extents:
        for m in dict.fromkeys((1, 2, 3, n // 2, n - n // 4, n - 1)):
            if not 0 < m < n:
                continue
            for start in dict.fromkeys((0, n - m, (n - m) // 2)):
                everywhere = [(i, axis) for i, k in enumerate(call.inputs) for axis, e in enumerate(k.shape) if e == n]
                for chosen in dict.fromkeys((tuple(everywhere), *((one,) for one in everywhere))):
                    for attributes in (_replaced(call.attributes, n, m), call.attributes):
                        yield _cut(call, chosen, slice(start, start + m), n, attributes)
                        if attributes == call.attributes:
                            break


def _cut(call: OpCall, chosen: tuple[tuple[int, int], ...], part: slice, n: int, attributes: tuple[Any, ...]) -> OpCall:
    """Return the call on slices of its inputs along some axes, and with other attributes.

    Args:
        chosen: pairs of an input's index and an axis of it.
        part: the slice to take on these axes.
        n: the old extent, which is also replaced in the shape of the result.
        attributes: the new attributes.
    """
    inputs = []
    for i, kept in enumerate(call.inputs):
        axes = {axis for which, axis in chosen if which == i}
        values = kept.array()
        if axes:
            cut = values[tuple(part if axis in axes else slice(None) for axis in range(values.ndim))]
            kept = keep(canonical(Layout.of(values, cut.shape).filled(cut)[1]))
        inputs.append(kept)
    result = call.result and (_replaced(call.result[0], n, part.stop - part.start), call.result[1])
    return _with_result(replace(call, inputs=tuple(inputs), attributes=attributes, result=result))


def _with_result(call: OpCall) -> OpCall:
    """Return the call with its result's shape and dtype, if they are needed, computed by the op's rule."""
    result = _by_rule(call) if call.out == NEW and _ruled(call) else None
    return call if result is None else replace(call, result=result)


def _replaced(value: Any, n: int, m: int) -> Any:
    """Return an argument of an op, such as a tuple of extents, with every integer ``n`` replaced by ``m``."""
    if isinstance(value, tuple):
        return tuple(_replaced(part, n, m) for part in value)
    return m if type(value) is int and value == n else value


def _simplify(now: Minimised, index: int) -> None:
    """Simplify the values of input ``index``, as far as the call still shows the difference.

    The values are made all equal, or numbers that count up, or rounded, or mostly zeros. ``now`` has the smallest call.
    """
    kept = now.call.inputs[index]
    values = kept.array()
    if not values.size:
        return
    for candidate in _simple(values):
        if now.take(_with(now.call, index, candidate, kept)):
            return
    chunk = values.size
    plain = values.dtype.type(0)
    while chunk:
        for start in range(0, values.size, chunk):
            tried = np.array(now.call.inputs[index].array())
            tried.reshape(-1)[start : start + chunk] = plain
            now.take(_with(now.call, index, tried, kept))
        chunk = 0 if time.monotonic() > now.deadline or values.size // max(chunk, 1) > 64 else chunk // 2


def _simple(values: Array) -> Iterator[Array]:
    """Yield simpler arrays of the same shape and dtype, the simplest first."""
    counted = np.arange(values.size).reshape(values.shape)
    for value in (1, 0, 2):
        yield np.full(values.shape, value, values.dtype)
    if values.dtype.kind == "b":
        return
    yield np.asarray(counted % 7 + 1, values.dtype)
    yield np.asarray(counted, values.dtype)
    if values.dtype.kind not in "iu":
        yield np.full(values.shape, 0.5, values.dtype)
        yield np.full(values.shape, -1, values.dtype)
        yield np.full(values.shape, values.flat[0], values.dtype)
        yield np.asarray(counted % 7 * 0.25 - 0.75, values.dtype)
        yield np.asarray(np.round(values.astype(np.float64)), values.dtype)
        yield np.asarray(np.round(values.astype(np.float64), 1), values.dtype)
