"""Gradient statistics for telemetry: norms and NaN counts of the gradients of nodes and leaves in a backward pass.

Computing a norm takes longer than a small op, so only some passes are measured: those before which a recording has set
`bus.want_grad_stats`. But NaN and Inf are detected in every recorded pass, because NumPy reports floating-point errors
at no cost, and the gradients of leaves are checked at the end. After the node with the first NaN or Inf, the rest of
the pass is measured. Gradients on another device are read only if a recording requests norms, because reading them
makes the program wait.
"""

from __future__ import annotations

import math
from time import perf_counter_ns as clock
from typing import Any

import numpy as np
from flnb_telemetry import bus, encoding, schema

from flnb.dispatch import failure, source_lines, state
from flnb.dispatch.quiet import Reporting
from flnb.interface.tape import CODE, LASTI, PLAN, SEQ
from flnb.tensor import Tensor

SMALL = 1 << 13
"""The largest number of elements of a gradient that is copied to be checked together with others."""

LIMIT = 256
"""The largest number of nodes measured from the beginning of a pass, and again from the first NaN or Inf on."""


class Statistics:
    """Measures the gradients of one recorded backward pass, and emits an event with the statistics of each node.

    Args:
        root: sequence number of the node where the pass begins.
        cotangent: the gradient of that node's result.

    Attributes:
        left: the number of further nodes to be measured; 0 if the pass is not measured.
        alarms: the floating-point errors that NumPy has reported since the last node was checked.
    """

    def __init__(self, root: int, cotangent: Any) -> None:
        self._root, self._t = root, clock()
        self._emitted = self._found = False
        self.alarms: list[str] = []
        self.left = LIMIT if bus.want_grad_stats or any_bad([cotangent._data]) else 0
        bus.want_grad_stats = False

    def watching(self) -> Reporting:
        """Return a context manager in which NumPy reports floating-point errors to `alarms`."""
        return Reporting(self.alarms)

    def see(self, node: list[Any], g: Any, saved: list[Any]) -> bool:
        """Measure the gradient ``g`` (a buffer) that arrived at a node, and emit its statistics.

        The event has the norm, the number of NaN and Inf, the size, the user's line and the bytes that the node saved.

        Returns:
            Always True. Do not call this method if `left` is 0, because then no more nodes are to be measured.
        """
        self.left -= 1
        norm, bad, size = measure(g)
        nbytes = sum(x._spec.nbytes for x in saved if isinstance(x, Tensor))
        line = source_lines.interned(node[CODE], node[LASTI])
        code = schema.GRAD_STAT | node[PLAN].code & schema.PLAN_BITS
        self._emit(code, node[SEQ], encoding.float_bits(norm), bad, size, line, nbytes)
        if bad:
            self._begins(node)
        return True

    def check(self, node: list[Any], g: Any, saved: list[Any], given: list[Any], measured: bool = False) -> bool:
        """Check whether a node's gradient rule made the first NaN or Inf of this pass; if so, measure the next nodes.

        Args:
            node: the node, whose gradient rule has just run.
            g: the gradient that arrived at the node.
            saved: the values that the node saved.
            given: the gradients that the rule returned for the node's parents, as buffers.
            measured: whether the node was measured.

        Returns:
            Whether the node made the first NaN or Inf.
        """
        if self._found:
            return False
        self.alarms.clear()
        if not any_bad(given):
            return False
        if not measured:
            self.left = LIMIT
            self.see(node, g, saved)
        self._begins(node)
        return True

    def _begins(self, node: list[Any]) -> None:
        """Emit an event that a node made the first NaN or Inf of the pass, unless there was such an event before."""
        if not self._found:
            self._found = True
            self._emit(schema.NAN_ORIGIN, node[SEQ])

    def end(self, reached: list[tuple[list[Any], Any]]) -> None:
        """Emit the statistics of the leaves' gradients, if the pass was measured or one of them has NaN or Inf."""
        lanes = bus.lanes
        if lanes is None:
            return
        if not self._emitted:
            if not any_bad([g._data for _, g in reached]):
                return
            bus.want_grad_stats = True  # its beginning was missed: look at the next pass from its start
        for leaf, g in reached:
            norm, bad, size = measure(g._data)
            code, name = failure.emit_leaf(lanes.lane, leaf, g._spec)
            self._emit(schema.GRAD_STAT | code, leaf[SEQ], encoding.float_bits(norm), bad, size, name)

    def _emit(self, code: int, node: int, *words: int) -> None:
        """Emit an event of kind ``code`` about a node; the first call also emits an event that the pass has begun."""
        lanes = bus.lanes
        if lanes is None:
            return
        if not self._emitted:
            self._emitted = True
            lanes.lane.emit(schema.WALK, self._t, self._root)
        lanes.lane.emit(code, clock(), node, *words)


def _values(g: Any) -> Any:
    """Return the values of a buffer as a flat NumPy array."""
    return state.current().backend.to_numpy(g).ravel()


def any_bad(buffers: list[Any]) -> bool:
    """Return whether one of the buffers has a NaN or Inf.

    Buffers are read a second time only if the sum of all squares is not finite. To be fast in every recorded step,
    small buffers are joined to one vector, which for ten gradients takes a fifth less time than ten sums. Those of half
    precision are not joined, because the sum of their squares soon overflows.
    """
    small: list[Any] = []
    vectors: list[Any] = []
    for buffer in buffers:
        array = buffer if type(buffer) is np.ndarray else _values(buffer)
        flat = array if array.ndim == 1 else array.ravel("K")  # a transposed array is not copied
        joins = flat.size <= SMALL and flat.itemsize > 2 and (not small or flat.dtype is small[0].dtype)
        (small if joins else vectors).append(flat)
    if small:
        vectors.append(np.concatenate(small) if len(small) > 1 else small[0])
    total = sum(np.vdot(each, each).item() for each in vectors)  # no ufunc, and not `dot`: they would warn
    return total - total != 0 and not all(np.isfinite(_values(each)).all() for each in buffers)  # NaN for NaN or Inf


def measure(g: Any) -> tuple[float, int, int]:
    """Return the Euclidean norm of a buffer, how many of its elements are NaN or infinite, and its size."""
    values = _values(g)
    norm = math.sqrt(np.vdot(values, values).real) if values.dtype.itemsize > 2 else math.inf  # no ufunc: no warning
    if math.isfinite(norm):
        return norm, 0, values.size
    wide = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
    bad = int(wide.size - np.isfinite(wide).sum())  # a NaN, an infinity, or only a square that overflowed
    return (math.nan if bad else math.sqrt(np.vdot(wide, wide).real)), bad, wide.size
