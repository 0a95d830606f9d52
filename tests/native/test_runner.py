"""The native runner: order, stamps, and arrays that are exchanged."""

from __future__ import annotations

import time

import numpy as np
import pytest
from flnb_backends.native.nests import kernel
from flnb_backends.native.runner import Segment

from flnb.graph.nests import Nest
from tests.native.oracle import access, load, step

WAY = access(np.zeros(1, "f"), (1,))
DOUBLE = Nest((64,), (), (WAY, WAY), (load(0), step("add", 0, 0)), ((1, 1),))
SUM = Nest((), (64,), (access(np.zeros(1, "f"), (), (1,)), access(np.zeros(1, "f"), (), (0,))),
           (load(0), step("sum", 0, over="inner")), ((1, 1),))  # fmt: skip


def test_calls_run_in_order() -> None:
    x, total = np.ones(64, "f"), np.zeros(1, "f")
    double, add = kernel(DOUBLE), kernel(SUM)
    calls = [(double, [x.ctypes.data] * 2, 0)] * 5 + [(add, [x.ctypes.data, total.ctypes.data], 0)]
    Segment(calls).run()
    assert (x == 32).all()
    assert total == 64 * 32


def test_stamps_are_those_of_the_clock() -> None:
    x = np.ones(64, "f")
    segment = Segment([(kernel(DOUBLE), [x.ctypes.data] * 2, 0)] * 100)
    before = time.perf_counter_ns()
    segment.run()
    after = time.perf_counter_ns()
    assert segment.stamps.dtype == np.int64
    assert segment.stamps.shape == (101,)
    assert before <= segment.stamps[0]
    assert (np.diff(segment.stamps) >= 0).all()
    assert segment.stamps[-1] <= after


def test_no_calls() -> None:
    segment = Segment([])
    segment.run()
    assert segment.stamps.shape == (1,)
    assert segment.stamps[0] > 0


def test_arrays_are_exchanged() -> None:
    x, y, z = np.ones(64, "f"), np.zeros(64, "f"), np.zeros(64, "f")
    segment = Segment([(kernel(DOUBLE), [x.ctypes.data, y.ctypes.data], 0)] * 2)
    segment.run()
    segment.pointers[segment.place(1, 0)] = y.ctypes.data
    segment.pointers[segment.place(1, 1)] = z.ctypes.data
    segment.run()
    assert (y == 2).all()
    assert (z == 4).all()
    with pytest.raises(IndexError, match="got call number 2, expected 0 to 1"):
        segment.place(2, 0)
    with pytest.raises(IndexError, match="got array number 2 of call 0, expected 0 to 1"):
        segment.place(0, 2)
