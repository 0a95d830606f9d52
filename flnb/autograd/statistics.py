"""Gradient statistics of some backward passes: norms and NaN counts of every node and leaf, for telemetry.

A norm costs more than a small op, so a recording asks for it only now and then (`bus.want_grad_stats`). NaN and Inf are
looked for in every recorded pass: NumPy reports floating-point errors at no cost, and the gradients of leaves are
checked at the end. From the node that makes the first of them on, the pass is measured.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns as clock
from typing import Any

import numpy as np
from flnb_telemetry import bus, encoding, schema

from flnb.autograd.hooks import Intercepted
from flnb.dispatch import failure, source_lines, state
from flnb.interface.tape import CODE, LASTI, PLAN, SEQ
from flnb.tensor import Tensor

__all__ = ["Statistics"]

LIMIT = 256
"""Nodes measured in one pass; a longer tape is measured nearest the loss, and from where NaN or Inf begins."""

KEEP_PLAN = ~0xFFFFFF


class Statistics:
    """Measures one recorded backward pass from `root` and emits each node's statistics at once.

    Attributes:
        left: how many more nodes are measured; 0 if not requested and no NaN or Inf has appeared.
        alarms: the floating-point errors that NumPy has reported since the last node was checked.
    """

    def __init__(self, root: int, cotangent: Any) -> None:
        self._root, self._t = root, clock()
        self._told = self._found = False
        self.alarms: list[str] = []
        self.left = LIMIT if bus.want_grad_stats or not np.isfinite(_values(cotangent._data)).all() else 0
        bus.want_grad_stats = False

    @classmethod
    def begin(cls, root: int, cotangent: Any) -> Statistics | None:
        """The statistics of a pass, or None where there are no values to measure."""
        return cls(root, cotangent) if state.current().backend.has_values else None

    def watching(self) -> AbstractContextManager[Any]:
        """Let NumPy report floating-point errors to `alarms` inside, unless the caller asked for exceptions."""
        modes: dict[str, Any] = {**np.geterr()}
        if {"call", "log"} & set(modes.values()):
            return nullcontext()
        kinds: Any = {kind: "call" for kind in ("divide", "over", "invalid") if modes[kind] != "raise"}
        return np.errstate(**kinds, call=lambda kind, _: self.alarms.append(kind))

    def see(self, node: list[Any], g: Any, saved: list[Any]) -> bool:
        """Emit a node's cotangent, a buffer: norm, NaN and Inf count, elements, the user's line, bytes saved.

        Returns:
            Whether the node was measured.
        """
        if self.left <= 0:
            return False
        self.left -= 1
        norm, bad, size = measure(g)
        nbytes = sum(x._spec.nbytes for x in saved if isinstance(x, Tensor))
        line = source_lines.interned(node[CODE], node[LASTI])
        self._emit(
            schema.GRAD_STAT | node[PLAN].code & KEEP_PLAN,
            node[SEQ],
            encoding.float_bits(norm),
            bad,
            size,
            line,
            nbytes,
        )
        if bad:
            self._begins(node)
        return True

    def check(self, node: list[Any], g: Any, saved: list[Any], given: list[Any], measured: bool = False) -> bool:
        """Find out whether the pull of a node made the first NaN or Inf of this pass, and measure it if so.

        Nodes that are not measured are suspected after an alarm, and where the user's own functions ran.

        Args:
            given: the buffers that it gave to its parents.

        Returns:
            Whether it did.
        """
        plan = node[PLAN]
        suspected = measured or self.alarms or isinstance(plan, Intercepted) or not plan.op.traceable
        if self._found or not suspected:
            return False
        self.alarms.clear()
        with np.errstate(all="ignore"):
            if not any(map(_bad, given)):
                return False
        if not measured:
            self.left = LIMIT
            self.see(node, g, saved)
        self._begins(node)
        return True

    def _begins(self, node: list[Any]) -> None:
        if not self._found:
            self._found = True
            self._emit(schema.NAN_ORIGIN, node[SEQ])

    def end(self, reached: list[tuple[list[Any], Any]]) -> None:
        """Emit the leaves that gradients arrived at, by name, where the pass was measured or one of them is bad."""
        lanes = bus.lanes
        if lanes is None:
            return
        if not self._told:
            with np.errstate(all="ignore"):
                if not any(_bad(g._data) for _, g in reached):
                    return
            bus.want_grad_stats = True  # its beginning was missed: look at the next pass from its start
        for leaf, g in reached:
            norm, bad, size = measure(g._data)
            code, name = failure.emit_leaf(lanes.lane, leaf, g._spec)
            self._emit(schema.GRAD_STAT | code, leaf[SEQ], encoding.float_bits(norm), bad, size, name)

    def _emit(self, code: int, node: int, *words: int) -> None:
        lanes = bus.lanes
        if lanes is None:
            return
        if not self._told:
            self._told = True
            lanes.lane.emit(schema.WALK, self._t, self._root)
        lanes.lane.emit(code, clock(), node, *words)


def _values(g: Any) -> Any:
    return state.current().backend.to_numpy(g).ravel()


def _bad(g: Any) -> bool:
    """Whether a buffer holds NaN or Inf, in one pass over it; its squares may overflow."""
    values = _values(g)
    return not np.isfinite(np.vdot(values, values)) and not bool(np.isfinite(values).all())


def measure(g: Any) -> tuple[float, int, int]:
    """Euclidean norm of a buffer, how many of its elements are NaN or infinite, and how many there are."""
    values = _values(g)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = math.sqrt(np.vdot(values, values).real) if values.dtype.itemsize > 2 else math.inf
    if math.isfinite(norm):
        return norm, 0, values.size
    wide = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
    bad = int(wide.size - np.isfinite(wide).sum())  # a NaN, an infinity, or only a square that overflowed
    return (math.nan if bad else math.sqrt(np.vdot(wide, wide).real)), bad, wide.size
