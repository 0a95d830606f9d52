"""A recording for tests of figures, and a captured function for those of graphs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from flnb_telemetry import bus, encoding, intern, pump, record, schema, step

import flnb


def op(name: str, family: str, begin: int, spent: int, node: int = 0, parents: tuple[int, int] = (0, 0)) -> None:
    plan = intern.plans.id_of(intern.Plan(name, family, (4, 2), "float32", 32))
    assert bus.lanes is not None
    lane = bus.lanes.lane
    lane.emit(schema.OP | plan << schema.PLAN_SHIFT, begin, begin + spent, 0, node, lane.context, *parents)


def plotted() -> Any:
    """A recording of three ops with a backward pass and six blocks, of known times and sizes."""
    with record("plots") as run:
        t = time.perf_counter_ns()
        bus.emit(schema.SEGMENT_ALLOC, t, 1, 0, 8 << 20)
        with step():
            t = time.perf_counter_ns()
            for i in range(6):
                code = schema.ALLOC | (1 + i % 2) << schema.AUX_SHIFT
                bus.emit(code, t + 10 + i, i + 1, i << 20, 1 << 20, (1 << 20) - 100, 1)
            with bus.scope("net.conv"):
                op("conv2d", "matmul", t, 2_000_000, 1, (-1, -2))
            with bus.scope("net"):
                op("add", "elementwise", t, 1_000_000, 2, (1, 0))
                op("log\\odd", "elementwise", t, 500_000, 3, (2, 0))
            bus.emit(schema.WALK, t, 3)
            for number, norm, bad in ((3, 1.0, 0), (2, 2.0, 4), (1, 3.0, 0)):
                bus.emit(schema.GRAD_STAT, t, number, encoding.float_bits(norm), bad, 8, 0, 64)
            name = intern.strings.id_of("conv.weight")
            bus.emit(schema.GRAD_STAT | 1 << 8, t, -1, encoding.float_bits(9.0), 0, 8, name)
            while time.perf_counter_ns() < t + 3_000_000:
                pass  # the step ends after what happened in it
        for i in (0, 2, 4):
            bus.emit(schema.FREE_COMPLETED, t + 100 + i, i + 1, i << 20, 1 << 20, 0, 1)
    assert pump.session is None
    return run


def jitted(fuse: bool = True) -> Any:
    """A step of a linear layer, captured: w -= 0.1 x^T (x w), and a sum."""
    w = flnb.asarray(np.ones((3, 2), np.float32))

    def step(x: Any) -> Any:
        y = flnb.exp(x @ w) * 2.0
        flnb.subtract(w, flnb.matmul(flnb.permute_dims(x, (1, 0)), y), out=w)
        return y.sum()

    f = flnb.jit(step, fuse=fuse)
    for _ in range(2):
        f(flnb.asarray(np.full((4, 3), 0.1, np.float32)))
    return f
