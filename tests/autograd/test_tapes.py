"""Tapes as objects: chosen by name, class or instance, remembered by their nodes, equal in what they compute."""

import gc

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.autograd.tape import Linked, grad_of
from flnb.dispatch import registry, state
from flnb.interface import Tape
from flnb.interface.tape import PARENTS, PLAN, SAVED

TAPES = ("linked", "arena", "pruning", "prefused")


def leaves(*shapes, dtype="float64"):
    rng = np.random.default_rng(0)
    return [flnb.Variable(rng.normal(size=shape).astype(dtype)) for shape in shapes]


def chain(x, w):
    y = x
    for _ in range(5):
        y = flnb.tanh(y * w + x)
    return y.sum()


def network(x, w):
    h = flnb.relu(x @ w)
    h = flnb.concat([h, flnb.softmax(h, 1)], axis=1)
    return flnb.cross_entropy(h.reshape((4, -1)), flnb.asarray([0, 1, 2, 3]))


def lattice(x, w):
    return flnb.log(flnb.exp(x) + flnb.exp(w)).sum() + flnb.log(flnb.exp(x).sum(axis=1)).mean()


def choosing(x, w):
    return (flnb.maximum(x, w) + flnb.where(x > 0.0, x, w) + flnb.floor(x) * 3.0 + x * 0.0).sum()


@pytest.mark.parametrize("tape", TAPES[1:])
@pytest.mark.parametrize("function", [chain, network, lattice, choosing])
def test_every_tape_gives_the_gradients_of_the_default(tape, function):
    wanted, got = leaves((4, 4), (4, 4)), leaves((4, 4), (4, 4))
    function(*wanted).backward()
    with flnb.use_tape(tape):
        function(*got).backward()
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_allclose(b.grad.numpy(), a.grad.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("tape", ["arena", "pruning"])
@pytest.mark.parametrize("function", [chain, network])
def test_second_derivatives_on_every_tape(tape, function):
    def second(name):
        x, w = leaves((4, 4), (4, 4))
        with flnb.use_tape(name):
            (first,) = grad_of(function(x, w), [x], create_graph=True)
            found = grad_of((first * first).sum(), [x, w])
        return [np.zeros((4, 4)) if g is None else g.numpy() for g in found]

    np.testing.assert_allclose(second(tape), second("linked"), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tape", TAPES)
def test_a_tape_is_given_by_name_class_or_instance_and_restored(tape):
    cls = type(registry.make("tape", tape))
    before = state.current().tape
    for given in (tape, cls, cls()):
        with flnb.use_tape(given) as active:
            assert type(active) is cls
            assert state.current().tape is active
    with pytest.raises(ZeroDivisionError), flnb.use_tape(tape):
        raise ZeroDivisionError
    assert state.current().tape is before
    assert active.name == tape


def test_set_tape_holds_for_the_session():
    try:
        tape = flnb.set_tape("arena")
        y = flnb.Variable([1.0]) * 2.0
        assert len(tape.nodes) == 1
    finally:
        flnb.set_tape("linked")
    flnb.Variable([1.0]) * 2.0
    assert len(tape.nodes) == 1
    y.backward()


def test_what_is_no_tape_is_refused_with_what_is():
    with pytest.raises(ValueError, match=r"unknown tape 'flat'; known: arena, linked, prefused, pruning"):
        flnb.set_tape("flat")
    with pytest.raises(TypeError, match=r"class or an instance of a tape \(a subclass of flnb.interface.Tape\), got 3"):
        flnb.set_tape(3)


# A tape typed into a cell ---------------------------------------------------------------------------------------------


class Counting(Tape):
    """Counts ops by name as they are recorded, walks as the default does."""

    def __init__(self):
        self.counts = {}

    def record(self, node):
        name = node[PLAN].op.name
        self.counts[name] = self.counts.get(name, 0) + 1
        return node


class Stack(Tape):
    """One list, walked back by hand."""

    keeps_nodes = True

    def __init__(self):
        self.nodes = []

    def record(self, node):
        self.nodes.append(node)
        return node

    def walk(self, root, walk):
        for node in reversed(self.nodes):
            walk.pull(node)
        self.nodes.clear()


@pytest.mark.parametrize("cls", [Counting, Stack])
@pytest.mark.parametrize("function", [chain, network])
def test_a_tape_in_a_cell_computes_the_same(cls, function):
    wanted, got = leaves((4, 4), (4, 4)), leaves((4, 4), (4, 4))
    function(*wanted).backward()
    with flnb.use_tape(cls()):
        loss = function(*got)
    loss.backward()
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_allclose(b.grad.numpy(), a.grad.numpy(), rtol=1e-12)


def test_a_tape_sees_every_op_on_the_tape_and_no_other():
    x = flnb.Variable([1.0, 2.0])
    with flnb.use_tape(Counting()) as tape:
        flnb.softmax(x * 2.0 + x, 0)
        flnb.ones((2,)) * 3.0
        with flnb.no_grad():
            x * 2.0
    assert tape.counts == {"multiply": 1, "add": 1, "softmax": 1}


def test_a_tape_may_cut():
    class Cutting(Tape):
        def record(self, node):
            return None if node[PLAN].op.name == "tanh" else node

    x = flnb.Variable([1.0])
    with flnb.use_tape(Cutting):
        (flnb.tanh(x) + x).sum().backward()
    assert x.grad.tolist() == [1.0]


def test_a_class_defined_again_replaces_the_tape_in_use():
    def define(times):
        class Marking(Tape):
            __qualname__ = "Marking"

            def record(self, node):
                seen.append(times)
                return node

        return Marking

    seen = []
    x = flnb.Variable([1.0])
    with flnb.use_tape(define(1)()):
        x * 2.0
        define(2)
        x * 2.0
    assert seen == [1, 2]


def test_a_graph_over_two_tapes_is_walked_as_one():
    x, w = leaves((3,), (3,))
    a = flnb.exp(x * w)
    with flnb.use_tape("arena") as arena:
        b = flnb.tanh(a + x)
        c = b * a
    (c * b).sum().backward()
    assert [node[PARENTS] for node in arena.nodes] == [
        None
    ] * 3  # the root was the default's: the arena keeps its nodes, emptied
    got = [v.grad.numpy() for v in (x, w)]
    x, w = leaves((3,), (3,))
    a = flnb.exp(x * w)
    with flnb.use_tape("arena") as arena:
        b = flnb.tanh(a + x)
        loss = (b * a * b).sum()
    loss.backward()
    np.testing.assert_allclose([v.grad.numpy() for v in (x, w)], got)
    assert not arena.nodes


def test_nodes_outlive_a_tape_that_is_gone():
    x = flnb.Variable([1.0, 2.0])
    with flnb.use_tape(Stack()):
        loss = (x * x).sum()
    gc.collect()
    loss.backward()
    assert x.grad.tolist() == [2.0, 4.0]


# Training -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tape", TAPES)
def test_a_model_trains_alike_on_every_tape(tape):
    def losses(name):
        flnb.manual_seed(0)
        net = nn.Sequential(a=nn.Linear(8, 16), b=nn.ReLU(), c=nn.Linear(16, 4))
        optimizer = flnb.optim.Adam(net.parameters(), lr=1e-2)
        x, y = flnb.random.normal((32, 8)), flnb.asarray(np.arange(32) % 4)
        found = []
        with flnb.use_tape(name):
            for _ in range(5):
                optimizer.zero_grad()
                loss = flnb.cross_entropy(net(x), y)
                loss.backward()
                optimizer.step()
                found.append(loss.item())
        return found

    assert losses(tape) == pytest.approx(losses("linked"), rel=1e-6)


def test_the_default_tape_is_not_asked():
    assert Linked().mark is None
    y = flnb.Variable([1.0]) * 2.0
    assert y._node[SAVED:] == [None, 2.0, None]
