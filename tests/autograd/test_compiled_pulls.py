"""Pulls compiled to functions of buffers: they agree with the slow path, and overridden ops are called."""

from contextlib import nullcontext

import numpy as np
import pytest
from flnb_telemetry import intern

import flnb
from flnb.autograd import walk as walking
from flnb.autograd.compiled_pulls import compile_pulls
from flnb.dispatch.plan import Plan
from flnb.dispatch.table import OPS, Pull

WAYS = ("slow", "light", "in blocks")


def run_by(way, monkeypatch):
    """Let backward take one of the ways: by ops, by compiled pulls, by compiled pulls whose results have blocks."""
    monkeypatch.setattr(walking, "compile_pulls", (lambda *_: False) if way == "slow" else compile_pulls)
    for op in OPS.values():
        for plan in op.plans.values():
            plan.compiled = None
    manager = flnb.memory.Native()
    manager.min_block = 0 if way == "in blocks" else 1 << 40
    return flnb.use_memory_manager(manager)


def test_whole_graphs_and_their_compiled_pulls_agree_with_the_slow_path(monkeypatch):
    rng = np.random.default_rng(0)

    def function(x, w):
        y = flnb.divide(flnb.exp(x * 0.1), w * w + 2.0) - flnb.minimum(x, w) ** 2
        return (flnb.sqrt(flnb.abs(y) + 1.0) * flnb.log1p(w * w) + y.sum(axis=0)).sum()

    for shape in ((), (3,), (4, 5)):
        values = [rng.normal(size=shape), rng.normal(size=shape)]
        found = []
        for way in WAYS:
            x, w = (flnb.Variable(v) for v in values)
            with run_by(way, monkeypatch):
                if not shape:
                    (flnb.exp(x * w) / (w * w + 2.0) - flnb.sqrt(flnb.abs(x) + 1.0)).backward()
                else:
                    function(x, w).backward()
            found.append((x.grad.numpy(), w.grad.numpy()))
        np.testing.assert_array_equal(found[1], found[0])
        np.testing.assert_array_equal(found[2], found[0])


def test_an_overridden_op_is_called_by_compiled_pulls_too():
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


GRAPHS = {
    "neither is a sum": lambda x, w: x * w,
    "the first is a sum": lambda x, w: x * w * (x + 1.0),
    "the second is a sum": lambda x, w: (x * w) * w,
    "both are sums": lambda x, w: (x * w) + (x * w),
    "one parent twice": lambda x, w: x * x + w * w,
    "no pull has an op": lambda x, w: (x + w) + (w + x),
    "more ops than a row": lambda x, w: flnb.tanh(x) * flnb.tanh(w) / (x * w),
}


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_compiled_pulls_emit_the_ops_that_the_slow_path_emits(graph, shape, monkeypatch):
    told, gradients = [], []
    for way in WAYS:
        x, w = (flnb.Variable(np.full(shape, value)) for value in (2.0, 3.0))
        with run_by(way, monkeypatch):
            y, cotangent = graph(x, w), flnb.ones(shape, dtype="float64")
            first = y._node[2]
            with flnb.record(grad_interval=None) as run:
                y.backward(cotangent)
        table = run.table("op")
        told.append(
            sorted(
                (node - first, intern.plans.items[plan].op)
                for plan, node in zip(table["plan"].tolist(), table["node"].tolist(), strict=True)
            )
        )
        times = np.stack([table["t0"], table["t1"]], 1).ravel()
        assert (np.diff(times) >= 0).all()
        gradients.append((x.grad.tolist(), w.grad.tolist()))
    assert told[0] == told[1] == told[2]
    assert gradients[0] == gradients[1] == gradients[2]


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


@pytest.mark.parametrize("question", [lambda b: b == 2.0, lambda b: b != 2.0, bool])
def test_a_pull_that_asks_for_a_number_is_not_compiled(monkeypatch, question):
    asking = Pull({0, 1}, lambda g, plan, a, b, y: g * (10.0 if question(b) else 1.0))
    monkeypatch.setattr(OPS["multiply"], "pulls", (asking, None))
    monkeypatch.setattr(asking.function, "__module__", "flnb.ops.test")
    monkeypatch.setattr(OPS["multiply"], "plans", {})
    x = flnb.Variable(1.0)
    plan = Plan(OPS["multiply"], (x._spec, float), (), x._spec)
    assert compile_pulls(plan, (x, 2.0, None)) is False
    assert plan.compiled is False


@pytest.mark.parametrize("heals", [False, True])
def test_an_op_that_fails_in_a_compiled_pull_is_told_like_any_other(heals):
    class Failing(flnb.backends.NumpyBackend):
        failures = 0

        def multiply(self, a, b, out=None):
            if self.failures and b[0] == 1.0:
                self.failures -= 1
                raise ArithmeticError("no more products")
            return super().multiply(a, b, out)

    backend = Failing()
    with flnb.use_backend(backend), flnb.record(grad_interval=1e9) as run:
        for failures in (0, 1 if heals else 2):
            x, w = flnb.Variable([1.0, 2.0]), flnb.Variable([3.0, 4.0])
            y = (x * w).sum()  # the line
            backend.failures = failures
            if not failures:
                y.backward()
        with pytest.raises(ArithmeticError, match="no more products") as caught:
            y.backward()
    assert any("through 'multiply'" in note and note.endswith("# the line") for note in caught.value.__notes__)
    assert len(run.table("op_failed")["lane"]) == (0 if heals else 1)
    assert run.ops["multiply"].count == (6 if heals else 5)
