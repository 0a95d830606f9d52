"""The pruning tape: branches without gradient are not stored, zero cotangents go no further."""

import pytest

import flnb
from flnb.interface.tape import PARENTS, PLAN
from tests.autograd.test_tapes import leaves


def nodes_below(node):
    found, stack = {}, [node]
    while stack:
        node = stack.pop()
        if node is not None and node[PLAN] is not None and node[2] not in found:
            found[node[2]] = node[PLAN].op.name
            stack += node[PARENTS]
    return sorted(found.values())


@pytest.mark.parametrize(
    ("function", "kept", "pruned"),
    [
        (lambda x, w: flnb.floor(flnb.exp(x)) + w, ["add"], 1),
        (lambda x, w: flnb.exp(x) * 0.0 + w, ["add"], 1),
        (lambda x, w: flnb.maximum(flnb.exp(x), flnb.exp(w)), ["exp", "maximum"], 1),
        (lambda x, w: flnb.minimum(flnb.exp(x), flnb.exp(w)), ["exp", "minimum"], 1),
        (lambda x, w: flnb.where(flnb.asarray(True), flnb.exp(x), flnb.tanh(w)), ["exp", "where"], 1),
        (lambda x, w: flnb.where(flnb.asarray(False), flnb.exp(x), flnb.tanh(w)), ["tanh", "where"], 1),
        (lambda x, w: flnb.exp(x) * w, ["exp", "multiply"], 0),
    ],
)
def test_branches_without_gradient_are_not_stored(function, kept, pruned):
    x, w = leaves((), ())
    with flnb.use_tape("pruning") as tape:
        y = function(x, w)
    assert (nodes_below(y._node), tape.pruned) == (kept, pruned)
    y.backward()
    wanted = leaves((), ())
    function(*wanted).backward()
    for a, b in zip(wanted, (x, w), strict=True):
        assert (0.0 if b.grad is None else b.grad.item()) == (0.0 if a.grad is None else a.grad.item())


def test_a_result_that_no_gradient_can_reach_requires_none():
    with flnb.use_tape("pruning"):
        y = flnb.round(flnb.Variable([1.5]) * 2.0)
    assert not y.requires_grad


def test_zero_cotangents_go_no_further():
    x, w = leaves((3,), (3,))
    with flnb.use_tape("pruning") as tape:
        y = flnb.exp(flnb.tanh(x)) * flnb.zeros((3,), dtype="float64") + w
        y.sum().backward()
    assert (tape.zeros, x.grad, w.grad.tolist()) == (1, None, [1.0, 1.0, 1.0])


def test_pruning_computes_nothing_of_zero_times_infinity():
    x = flnb.Variable([0.0, 1.0])
    with flnb.use_tape("pruning"):
        y = flnb.sqrt(x) * flnb.zeros((2,))  # the derivative of sqrt at 0 is infinite
        (y + x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
