"""Gradient statistics of one backward pass in some: norms and NaN counts of every node and leaf, for telemetry.

A norm costs more than a small op, so a recording asks for it only now and then (`bus.want_grad_stats`).
"""

from __future__ import annotations

import math
from time import perf_counter_ns as clock
from typing import Any

import numpy as np
from flnb_telemetry import bus, schema

from flnb.dispatch import leaves, stacks, state
from flnb.interface.tape import CODE, LASTI, SAVED
from flnb.tensor import Tensor

__all__ = ["Statistics"]

LIMIT = 256
"""Nodes measured in one pass; a longer tape is measured nearest the loss."""

KEEP_PLAN = ~0xFFFFFF


class Statistics:
    """Collects in the walk, emits as it goes."""

    def __init__(self) -> None:
        self.left = LIMIT

    @classmethod
    def begin(cls) -> Statistics | None:
        """The collector for this pass, or None when nobody asked, or there is no value to measure."""
        if not bus.want_grad_stats or not state.current().backend.has_values:
            return None
        bus.want_grad_stats = False
        return cls()

    def see(self, node: list[Any], g: Any) -> None:
        """Emit a node's cotangent: norm, NaN and Inf count, elements, the user's line, bytes saved."""
        if self.left <= 0:
            return
        self.left -= 1
        norm, bad = measure(g)
        saved = sum(x._spec.nbytes for x in node[SAVED:] if isinstance(x, Tensor))
        line = stacks.told(node[CODE], node[LASTI])
        _emit(schema.GRAD_STAT | node[0].code & KEEP_PLAN, node[2], norm, bad, g.size, line, saved)

    def end(self, reached: list[tuple[list[Any], Any]]) -> None:
        """Emit the leaves that gradients arrived at, by name."""

        lanes = bus.lanes
        if lanes is None:
            return
        for leaf, g in reached:
            norm, bad = measure(g)
            code, name = leaves.tell(lanes.lane, leaf, g._spec)
            _emit(schema.GRAD_STAT | 1 << 8 | code, leaf[2], norm, bad, g.size, name, 0)


def _emit(code: int, node: int, norm: float, bad: int, size: int, name: int, saved: int) -> None:
    if bus.lanes is not None:
        bus.lanes.lane.emit(code, clock(), node, bus.float_bits(norm), bad, size, name, saved)


def measure(g: Any) -> tuple[float, int]:
    """Euclidean norm, and how many elements are NaN or infinite, read beside the tape and the event stream."""
    values = state.current().backend.to_numpy(g._data).ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        norm = math.sqrt(float(values.dot(values))) if values.dtype.itemsize > 2 else math.inf
    if math.isfinite(norm):
        return norm, 0
    wide = values.astype(np.float64)  # a NaN, an infinity, or only a square that overflowed
    bad = int(wide.size - np.isfinite(wide).sum())
    return (math.nan if bad else math.sqrt(float(wide.dot(wide)))), bad
