"""Tapes as objects: chosen by name, class or instance, remembered by their nodes, equal in what they compute."""

import gc
import inspect
import sys
import threading
import weakref
from contextlib import nullcontext

import numpy as np
import pytest
from flnb_telemetry import intern

import flnb
from flnb import nn
from flnb.autograd import straight
from flnb.autograd.arena import Arena
from flnb.autograd.prefused import Prefused, register_sequence
from flnb.autograd.tape import Linked, grad_of
from flnb.dispatch import registry, state
from flnb.dispatch.plan import ALWAYS, Plan
from flnb.interface import Tape
from flnb.interface.tape import PARENTS, PLAN, SAVED
from flnb.ops.table import OPS, Pull

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


# Arena ----------------------------------------------------------------------------------------------------------------


def test_the_arena_clears_all_nodes_together():
    x = flnb.Variable([1.0, 2.0])
    with flnb.use_tape("arena") as arena:
        first, other = (x * x).sum(), (x * 3.0).sum()
        first.backward()
    assert not arena.nodes
    with pytest.raises(RuntimeError, match=r"graph through 'sum' was cleared by another backward on its arena tape"):
        other.backward()
    with pytest.raises(RuntimeError, match=r"graph through 'sum' was walked back before and freed"):
        first.backward()


def test_an_arena_that_threads_share_is_told_and_never_gives_wrong_gradients():
    arena, outcomes = Arena(), []

    def train():
        for _ in range(60):
            x = flnb.Variable([1.0, 2.0])
            try:
                with flnb.use_tape(arena):
                    y = x
                    for _ in range(20):
                        y = y * 1.0
                    y.sum().backward()
                outcomes.append(x.grad.tolist())
            except RuntimeError as error:
                outcomes.append(str(error))

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=train) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switching)
    assert len(outcomes) == 180
    wrong = [o for o in outcomes if o != [1.0, 1.0]]
    assert [o for o in wrong if "thread" not in o] == []


def test_a_thread_whose_nodes_another_one_cleared_is_told():
    x = flnb.Variable([1.0, 2.0])
    with flnb.use_tape("arena") as arena:
        loss = (x * 3.0).sum()

    def other():
        with flnb.use_tape(arena):
            (flnb.Variable([1.0]) * 2.0).sum().backward()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError, match="if it was another thread's, give each thread a tape"):
        loss.backward()


@pytest.mark.parametrize("tape", TAPES)
def test_a_part_that_two_losses_share_is_walked_back_once(tape):
    x = flnb.Variable([1.0, 2.0])
    with flnb.use_tape(tape):
        shared = x * 2.0  # the line
        shared.sum().backward()
        with pytest.raises(RuntimeError, match=r"through 'multiply' was walked back before(.|\n)*# the line"):
            ((shared * 3.0).sum() + x.sum()).backward()


def test_a_tape_whose_walk_leaves_nodes_out_is_found():
    class Forgetful(Tape):
        keeps_nodes = True

        def __init__(self):
            self.nodes = []

        def record(self, node):
            self.nodes.append(node)
            return node

        def walk(self, root, walk):
            for node in self.nodes[:0:-1]:
                walk.pull(node)

    x = flnb.Variable([1.0, 2.0])
    forgetful = Forgetful()
    with flnb.use_tape(forgetful):
        loss = (x * x).sum()  # the line
    with pytest.raises(RuntimeError, match=r"<Forgetful tape .*did not pull every node(.|\n)*# the line"):
        loss.backward()


def test_the_arena_keeps_a_retained_graph_and_walks_from_the_middle():
    x = flnb.Variable([1.0, 2.0])
    with flnb.use_tape("arena") as arena:
        y = (x * x).sum()
        z = (y * 2.0).sum()
    y.backward(retain_graph=True)
    assert x.grad.tolist() == [2.0, 4.0]
    x.zero_grad()
    z.backward(retain_graph=True)
    assert x.grad.tolist() == [4.0, 8.0]
    assert len(arena.nodes) == 4
    arena.reset()
    assert repr(arena) == "<Arena tape 'arena', 0 nodes>"
    with pytest.raises(RuntimeError, match="freed"):
        z.backward()


def test_the_arena_is_no_cycle():
    gc.collect()
    gc.disable()
    try:
        with flnb.use_tape("arena") as arena:
            x = flnb.Variable(np.ones(4))
            x * 2.0
        gone = weakref.ref(arena)
        del arena
        assert gone() is None
    finally:
        gc.enable()


def test_a_checkpoint_on_the_arena_is_no_cycle():
    gc.collect()
    gc.disable()
    try:
        with flnb.use_tape("arena") as arena:
            flnb.checkpoint(flnb.tanh)(flnb.Variable(np.ones(4)))
        gone = weakref.ref(arena)
        del arena
        assert gone() is None
    finally:
        gc.enable()


# Pruning --------------------------------------------------------------------------------------------------------------


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


# Prefused -------------------------------------------------------------------------------------------------------------


def test_a_shipped_sequence_becomes_one_node():
    x, w = leaves((), ())
    with flnb.use_tape("prefused") as tape:
        y = flnb.log(flnb.exp(x) + flnb.exp(w))
        assert nodes_below(y._node) == ["logaddexp"]
        z = flnb.log(flnb.exp(x * flnb.ones((3,), dtype="float64")).sum())
        assert nodes_below(z._node) == ["logsumexp", "multiply"]
    assert tape.fused == 2


def test_what_lies_inside_a_sequence_and_is_used_elsewhere_keeps_its_own_gradient():
    def function(x, w):
        a = flnb.exp(x)
        return flnb.log(a + flnb.exp(w)) + a * w

    wanted, got = leaves((3,), (3,)), leaves((3,), (3,))
    function(*wanted).sum().backward()
    with flnb.use_tape("prefused"):
        function(*got).sum().backward()
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_allclose(b.grad.numpy(), a.grad.numpy())


def test_a_value_that_somebody_listens_to_is_not_fused_away():
    x, w = leaves((), ())
    with flnb.use_tape("prefused") as tape:
        a = flnb.exp(x)
        a.register_hook(lambda g: g * 10.0)
        y = flnb.log(a + flnb.exp(w))
    y.backward()
    share = np.exp(x.item()) / (np.exp(x.item()) + np.exp(w.item()))
    assert tape.fused == 0
    np.testing.assert_allclose([x.grad.item(), w.grad.item()], [10.0 * share, 1.0 - share])


def test_a_sequence_of_which_a_part_is_packed_is_not_fused():
    x, w = leaves((), ())
    with flnb.use_tape("prefused"):
        with flnb.saved_tensors_hooks(lambda t: t.numpy().copy(), flnb.asarray):
            total = flnb.exp(x) + flnb.exp(w)
        flnb.log(total).backward()
    np.testing.assert_allclose(x.grad.item() + w.grad.item(), 1.0)


def test_broadcasting_and_constants_are_not_fused():
    x, w = leaves((3,), ())
    with flnb.use_tape("prefused") as tape:
        flnb.log(flnb.exp(x) + flnb.exp(w)).sum().backward()
        flnb.log(flnb.exp(x) + flnb.ones((3,), dtype="float64"))
    assert tape.fused == 0


def test_a_user_registers_a_sequence():
    def pull(g, multiply, add):
        shared = g * multiply.saved[1]
        return shared, shared, g * multiply.saved[0]

    register_sequence("test_scaled_sum", ("multiply", "add"), pull)
    try:
        x, w, v = leaves((3,), (3,), (3,))
        with flnb.use_tape(Prefused) as tape:
            y = (x + w) * v
        assert tape.fused == 1
        assert y._node[PLAN].op.name == "test_scaled_sum"
        y.backward(flnb.ones((3,), dtype="float64"))
        np.testing.assert_allclose(x.grad.numpy(), v.numpy() if not v.requires_grad else v.detach().numpy())
        np.testing.assert_allclose(v.grad.numpy(), (x + w).detach().numpy())
    finally:
        from flnb.autograd import prefused

        prefused._by_last["multiply"].clear()
    with pytest.raises(ValueError, match=r"no op is named 'add_up' \(in 'add_up'\)"):
        register_sequence("wrong", ("log", "add_up"), pull)


def test_a_fused_gradient_says_what_it_cannot_give():
    x, w = leaves((3,), (3,))
    with flnb.use_tape("prefused"):
        a = flnb.exp(x)
        y = flnb.log(a + flnb.exp(w)).sum()
        with pytest.raises(RuntimeError, match=r"'logaddexp' cannot be differentiated again; .*use_tape\('linked'\)"):
            grad_of(y, [x], create_graph=True)
        with pytest.raises(RuntimeError, match=r"value inside 'logaddexp' was fused away; (.|\n)*test_tapes.py:\d+"):
            grad_of(y, [a], retain_graph=True)


def test_a_write_between_the_ops_of_a_sequence_is_not_fused_away():
    x, w = leaves((3,), (3,))
    with flnb.use_tape("prefused") as tape:
        a = flnb.exp(x)
        b = flnb.exp(w)
        total = a + b
        with flnb.no_grad():
            a += 1.0
        y = flnb.log(total).sum()
    assert tape.fused == 0
    with pytest.raises(RuntimeError, match=r"the output of 'exp'.*written in place"):
        y.backward()


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


# Long graphs ----------------------------------------------------------------------------------------------------------


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


def test_whole_graphs_and_their_straight_pulls_agree_with_the_slow_path():
    """Pulls of tiny results run as functions of buffers; large results, and recorded walks, call the ops."""
    rng = np.random.default_rng(0)

    def function(x, w):
        y = flnb.divide(flnb.exp(x * 0.1), w * w + 2.0) - flnb.minimum(x, w) ** 2
        return (flnb.sqrt(flnb.abs(y) + 1.0) * flnb.log1p(w * w) + y.sum(axis=0)).sum()

    for shape in ((), (3,), (4, 5)):
        values = [rng.normal(size=shape), rng.normal(size=shape)]
        found = []
        for min_block in (0, 1 << 40):
            manager = flnb.memory.Native()
            manager.min_block = min_block  # with 0 every result has a block, and no pull is straight
            x, w = (flnb.Variable(v) for v in values)
            with flnb.use_memory_manager(manager):
                if not shape:
                    (flnb.exp(x * w) / (w * w + 2.0) - flnb.sqrt(flnb.abs(x) + 1.0)).backward()
                else:
                    function(x, w).backward()
            found.append((x.grad.numpy(), w.grad.numpy()))
        np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


def test_an_overridden_op_is_called_by_straight_pulls_too():
    class Counting(flnb.backends.NumpyBackend):
        counts = 0

        def multiply(self, a, b, out=None):
            Counting.counts += 1
            return super().multiply(a, b, out)

    def backward_multiplications(record):
        x, w = flnb.Variable(2.0), flnb.Variable(3.0)
        with flnb.use_backend(Counting):
            y = x * w * w
            Counting.counts = 0
            if record:
                with flnb.record() as run:
                    y.backward()
                ops = [intern.plans.items[p].op for p in run.table("op")["plan"].tolist()]
                assert (ops.count("multiply"), ops.count("add")) == (4, 1)
            else:
                y.backward()
        return Counting.counts, x.grad.item(), w.grad.item()

    assert backward_multiplications(False) == (4, 9.0, 12.0)
    assert backward_multiplications(True) == (4, 9.0, 12.0)


@pytest.mark.parametrize("shape", [(), (3,), (200, 200)])
@pytest.mark.parametrize("vmapped", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
def test_cotangents_add_up_on_a_backend_that_never_writes_to_out(shape, vmapped, recorded):
    class Fresh(flnb.backends.NumpyBackend):
        def add(self, a, b, out=None):
            return np.add(a, b)

    def five(x):
        return (x * 2.0 + x * 3.0 + x * 4.0 + x * 5.0).sum()

    x = flnb.Variable(np.ones(shape))
    with flnb.use_backend(Fresh), flnb.record() if recorded else nullcontext():
        if vmapped:
            found = flnb.vmap(flnb.grad(five))(flnb.ones((2, *shape)))
        else:
            five(x).backward()
            found = x.grad
    assert (found.numpy() == 14.0).all()


def test_a_plan_has_a_straight_pull_or_none_at_any_time(monkeypatch):
    """Another thread may be pulling a node of the same plan while its pull is drawn again."""
    spec = flnb.asarray(1.0)._spec
    plan = Plan(OPS["exp"], (spec,), (), spec)  # of no other test
    straight.draw(plan)
    seen = []
    monkeypatch.setattr(straight, "_write_pulls", lambda *_: seen.append((plan.light, plan.straight)))
    straight.draw(plan)
    assert [(light < ALWAYS, callable(function)) for light, function in seen] == [(True, True)]


@pytest.mark.parametrize("question", [lambda b: b == 2.0, lambda b: b != 2.0, bool])
def test_a_pull_that_asks_for_a_number_is_not_straight(monkeypatch, question):
    asking = Pull("01", lambda g, a, b, y: g * (10.0 if question(b) else 1.0))
    monkeypatch.setattr(OPS["multiply"], "pulls", (asking, None))
    monkeypatch.setattr(asking.function, "__module__", "flnb.ops.test")
    monkeypatch.setattr(OPS["multiply"], "plans", {})
    x = flnb.Variable(1.0)
    plan = Plan(OPS["multiply"], (x._spec, float), (), x._spec)
    straight.draw(plan)
    assert plan.straight is False


# Errors of a walk -----------------------------------------------------------------------------------------------------


def test_errors_of_a_walk_name_the_users_line():
    x = flnb.Variable([1.0, 2.0])
    y = flnb.tanh(x)  # made here
    with flnb.no_grad():
        y += 1.0
    with pytest.raises(RuntimeError, match=r"written in place(.|\n)*test_tapes\.py:\d+: y = flnb\.tanh\(x\)  # made"):
        y.sum().backward()
    z = (x * x).sum()  # freed here
    z.backward()
    with pytest.raises(RuntimeError, match=r"freed(.|\n)*of float32\[2\], giving float32\[\], made at .*# freed here"):
        z.backward()
    w = x * 3.0  # not a number
    with pytest.raises(RuntimeError, match=r"starts from one number(.|\n)*test_tapes\.py:\d+: w = x \* 3\.0"):
        w.backward()


@pytest.mark.parametrize(
    ("pull", "error", "says"),
    [
        (lambda g, x, y: g.sum(), ValueError, r"gradient of 'cos' for argument 0 is float32\[\], expected float32"),
        (lambda g, x, y: g @ g @ g, ValueError, "matmul"),
        (lambda g, x, y: 1 / 0, ZeroDivisionError, "division by zero"),
    ],
)
def test_a_wrong_pull_is_told_with_its_op_and_the_users_line(monkeypatch, pull, error, says):
    (plan,) = [p for p in OPS["cos"].plans.values() if p.spec.shape == (2, 3)] or [
        flnb.cos(flnb.Variable(np.ones((2, 3), np.float32)))._node[PLAN]
    ]
    monkeypatch.setattr(plan, "pulls", (pull,))
    monkeypatch.setattr(plan, "straight", False)
    monkeypatch.setattr(plan, "light", ALWAYS)
    x = flnb.Variable(np.ones((2, 3), np.float32))
    y = flnb.cos(x)  # the line
    with pytest.raises(error, match=says) as caught:
        y.sum().backward()
    (note,) = [n for n in caught.value.__notes__ if n.startswith("in backward")]
    assert "with a cotangent float32[2,3], through 'cos' of float32[2,3]" in note
    assert note.endswith("y = flnb.cos(x)  # the line")
