"""Graphs of many nodes: no recursion, nothing left behind."""

import gc
import inspect
import sys

import numpy as np
import pytest

import flnb

TAPES = ("linked", "arena", "pruning", "prefused")


def long_chain(x, nodes):
    y = x
    for i in range(nodes):
        y = y * 0.5 if i % 2 else flnb.tanh(y)
    return y


@pytest.fixture
def no_collector_and_little_stack():
    gc.collect()
    gc.disable()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 60)
    yield
    sys.setrecursionlimit(limit)
    gc.enable()


def objects():
    return len(gc.get_objects())


@pytest.mark.usefixtures("no_collector_and_little_stack")
@pytest.mark.parametrize("tape", TAPES)
@pytest.mark.parametrize("end", ["backward", "drop", "retain"])
def test_a_long_graph_needs_no_stack_and_leaves_nothing(tape, end):
    x = flnb.Variable(np.array(1.0))
    with flnb.use_tape(tape) as active:
        long_chain(x, 10).backward()  # plans
        before = objects()
        y = long_chain(x, 50_000)
        assert objects() > before + 100_000
        if end != "drop":
            y.backward(retain_graph=end == "retain")
            assert np.isfinite(x.grad.item())
        del y
        if tape == "arena" and end != "backward":
            active.reset()
    assert objects() < before + 200


@pytest.mark.slow
@pytest.mark.usefixtures("no_collector_and_little_stack")
@pytest.mark.parametrize("backward", [True, False])
def test_a_million_nodes_need_no_stack_and_leave_nothing(backward):
    x = flnb.Variable(np.array(1.0))
    long_chain(x, 10).backward()
    before = objects()
    y = long_chain(x, 1_000_000)
    if backward:
        y.backward()
    del y
    assert objects() < before + 200
