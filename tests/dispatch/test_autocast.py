"""Mixed precision: dtypes as the lists say, regions that nest and end, gradients where they belong."""

import threading

import numpy as np
import pytest

import flnb
import flnb.nn as nn
import flnb.optim as optim
from flnb.dispatch import state
from flnb.dispatch.autocast import LEVELS, NORMS_AND_LOSSES, PRODUCTS, SENSITIVE
from flnb.dispatch.table import OPS
from flnb.interface.tape import SAVED
from flnb.ops.composite import Composite
from flnb.testing import samples

HALF, FULL = np.dtype(np.float16), np.dtype(np.float32)
REAL = [s for s in samples() if "complex" not in s.note]


def ops_of(run):
    """(op, name of the result's dtype) of every op of a recording, in order."""
    plans = [run.catalog.plans.items[number] for number in run.table("op")["plan"]]
    return [(plan.op, plan.dtype) for plan in plans]


def network():
    """Convolution, batch norm, relu, pooling and a linear layer on (N, 1, 8, 8): what levels tell apart."""
    flnb.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    )


def batch():
    rng = np.random.default_rng(0)
    return flnb.asarray(rng.normal(size=(6, 1, 8, 8)).astype(np.float32)), flnb.asarray(rng.integers(0, 10, 6))


# The lists


def test_the_lists_name_ops_of_the_table():
    for level in LEVELS.values():
        assert {*level.half, *level.full} - {"*"} <= OPS.keys()
    assert not {*PRODUCTS} & {*SENSITIVE}
    assert {*NORMS_AND_LOSSES} <= {*SENSITIVE}


def given(sample, dtype):
    return [flnb.asarray(a, dtype=dtype if a.dtype.kind == "f" else None) for a in map(np.asarray, sample.inputs)]


@pytest.mark.parametrize(
    "sample", [s for s in REAL if s.op in PRODUCTS and s.note not in ("power 0", "power 1")], ids=str
)
def test_products_of_float32_are_computed_in_half(sample):
    with flnb.record() as run, flnb.autocast("O1"):
        results = sample.function(*given(sample, FULL))
    if isinstance(OPS[sample.op], Composite):
        assert {y.dtype for y in (results if isinstance(results, tuple) else (results,))} == {HALF}
    else:
        assert {dtype for op, dtype in ops_of(run) if op == sample.op} == {"float16"}


@pytest.mark.parametrize("sample", [s for s in REAL if s.op in SENSITIVE], ids=str)
def test_sensitive_ops_on_half_are_computed_in_float32(sample):
    inputs = given(sample, HALF)
    if not any(x.dtype == HALF for x in inputs):
        pytest.skip("a sample without floating point")
    with flnb.record() as run, flnb.autocast("O1"):
        sample.function(*inputs)
    assert ("astype", "float32") in ops_of(run)
    assert "float16" not in {dtype for op, dtype in ops_of(run) if op == sample.op}


COMBINED = {name for name, op in OPS.items() if op.separately is not None}
"""Ops that autocast sees as the ops that they combine, and so does not know by name."""


@pytest.mark.parametrize("name", sorted({*OPS} - {*PRODUCTS} - {*SENSITIVE} - {"astype"} - COMBINED))
def test_other_ops_compute_in_what_they_are_given(name):
    samples = [(s, dtype) for s in REAL if s.op == name for dtype in (HALF, FULL)]
    with flnb.record() as plain:
        for sample, dtype in samples:
            sample.function(*given(sample, dtype))
    with flnb.record() as cast, flnb.autocast(half=[], full=["nextafter" if name != "nextafter" else "hypot"]):
        for sample, dtype in samples:
            sample.function(*given(sample, dtype))
    assert ops_of(cast) == ops_of(plain)


@pytest.mark.parametrize(
    ("level", "conv", "norm", "relu", "linear", "loss"),
    [
        ("O0", "float32", "float32", "float32", "float32", "float32"),
        ("O1", "float16", "float16", "float16", "float16", "float32"),
        ("O2", "float16", "float16", "float16", "float16", "float32"),
        ("O3", "float16", "float16", "float16", "float16", "float16"),
    ],
)
def test_levels(level, conv, norm, relu, linear, loss):
    net, (x, y) = network(), batch()
    seen = []
    for layer in net:
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype.name))
    with flnb.autocast(level):
        found = flnb.cross_entropy(net(x), y)
    assert [seen[0], seen[1], seen[2], seen[5], found.dtype.name] == [conv, norm, relu, linear, loss]
    found.backward()
    assert {p.grad.dtype.name for p in net.parameters()} == {"float32"}


def test_batch_norm_keeps_half_of_what_it_is_given_in_half_precision():
    x, weight = flnb.asarray(np.float16([[1.0, 2.0], [3.0, 5.0]])), flnb.Variable(flnb.ones(2))
    large = flnb.asarray(np.full((2, 1), 60000.0, np.float16) * np.float16([[1.0], [-1.0]]))
    with flnb.autocast("O1"):
        y = flnb.batch_norm(x, weight, weight)
        ends = flnb.batch_norm(large, flnb.ones(1), flnb.zeros(1))
    assert y.dtype == HALF
    assert ends.tolist() == [[1.0], [-1.0]]  # squares that half precision does not hold
    assert [t.dtype for t in y._node[SAVED:] if t is not None and t.size == x.size] == [HALF]
    y.sum().backward()
    assert weight.grad.dtype == FULL


def test_gradients_are_those_of_float32_to_half_precision():
    def gradients(level):
        flnb.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 10))
        x, y = batch()
        with flnb.autocast(level):
            loss = flnb.cross_entropy(net(x), y)
        loss.backward()
        return [p.grad.numpy() for p in net.parameters()]

    for got, expected in zip(gradients("O1"), gradients("O0"), strict=True):
        assert np.linalg.norm(got - expected) <= 0.01 * np.linalg.norm(expected) + 1e-4


def test_lists_can_be_replaced_and_what_is_named_leaves_the_other_list():
    x = flnb.ones((2, 2))
    with flnb.autocast(half=["exp"]):
        assert [flnb.exp(x).dtype, (x @ x).dtype] == [HALF, FULL]
    with flnb.autocast(full=["add"]):
        h = x @ x
        assert [h.dtype, (h + h).dtype, h.sum().dtype] == [HALF, FULL, HALF]
    with flnb.autocast("O3", full=["softmax"]):
        assert [flnb.softmax(x).dtype, flnb.tanh(x).dtype] == [FULL, HALF]


def test_custom_ops_can_be_listed():
    @flnb.custom_op
    def tripled(x):
        return x * 3.0

    with flnb.autocast(half=["matmul", tripled]):
        assert tripled(flnb.Variable(flnb.ones(2))).dtype == HALF


# Regions


def test_regions_nest_and_end_also_by_an_error():
    x = flnb.ones((2, 2))
    with flnb.autocast("O1"):
        with flnb.autocast("O0"):
            assert (x @ x).dtype == FULL
            with flnb.autocast("O3"):
                assert flnb.exp(x).dtype == HALF
        assert ((x @ x).dtype, flnb.exp(x).dtype) == (HALF, FULL)
        with pytest.raises(KeyError), flnb.autocast("O3"):
            raise KeyError
        assert flnb.exp(x @ x).dtype == FULL
    assert (x @ x).dtype == FULL
    assert state.current() is state.session


def test_one_object_serves_again_and_as_a_decorator():
    region, x = flnb.autocast("O1"), flnb.ones((2, 2))

    @region
    def product():
        with region:
            return x @ x

    for _ in range(2):
        with region:
            assert (x @ x).dtype == HALF
        assert product().dtype == HALF
    assert (x @ x).dtype == FULL


def test_other_threads_are_not_cast():
    x, found = flnb.ones((2, 2)), []
    with flnb.autocast():
        thread = threading.Thread(target=lambda: found.append((x @ x).dtype))
        thread.start()
        thread.join()
    assert found == [FULL]


def test_backends_and_observers_inside_a_region():
    class Doubling(flnb.backends.NumpyBackend):
        def matmul(self, a, b, out=None):
            assert a.dtype == b.dtype == HALF
            return super().matmul(2 * a, b, out)

    x = flnb.ones((2, 2))
    with flnb.autocast(), flnb.use_backend(Doubling):
        assert (x @ x).tolist() == [[4.0, 4.0]] * 2
        with flnb.detect_anomaly():
            assert (x @ x).dtype == HALF


def test_an_op_that_fails_names_itself_and_the_next_is_cast():
    with flnb.autocast():
        with pytest.raises(ValueError, match="inner extents must agree: float16") as caught:
            flnb.ones((2, 3)) @ flnb.ones((2, 3))
        assert "test_autocast.py" in caught.value.__notes__[0]
        assert (flnb.ones((2, 2)) @ flnb.ones((2, 2))).dtype == HALF


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"level": "O4"}, ValueError, r"autocast: got level 'O4', expected one of O0, O1, O2, O3"),
        ({"half": ["conv2d_bias"]}, ValueError, r"half names 'conv2d_bias', which is not an op, similar ops: conv2d"),
        ({"half": ["matmult"]}, ValueError, r"half names 'matmult', which is not an op, similar ops: matmul"),
        (
            {"full": ["mse_loss"]},
            ValueError,
            r"'mse_loss', .* several ops, name these \(flnb\.record\(\) shows them\)",
        ),
        ({"half": "matmul"}, TypeError, r"half must be a list of op names, got the text 'matmul'; write \['matmul'\]"),
        ({"dtype": np.float64}, ValueError, r"expected the dtype float16 or bfloat16, got float64"),
    ],
)
def test_wrong_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        flnb.autocast(**arguments)


def test_bfloat16_without_ml_dtypes_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match=r"bfloat16 needs ml_dtypes.*: pip install 'flnb\[bfloat16\]'"):
        flnb.autocast(dtype="bfloat16")


def test_bfloat16():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    net, (x, y) = network(), batch()
    with flnb.autocast("O1", dtype="bfloat16"):
        logits = net(x)
        loss = flnb.cross_entropy(logits, y)
    loss.backward()
    assert (logits.dtype, loss.dtype) == (bfloat16, FULL)
    assert {p.grad.dtype.name for p in net.parameters()} == {"float32"}


# With the rest


def test_backward_inside_and_outside_the_region_are_one():
    def gradient(inside):
        w = nn.Parameter(flnb.asarray(np.float32([[0.5, 2.0], [1.0, -1.0]])))
        with flnb.autocast():
            loss = flnb.square(flnb.tanh(w @ w)).mean()
            if inside:
                with flnb.record() as run:
                    loss.backward()
        if not inside:
            with flnb.record() as run:
                loss.backward()
        return ops_of(run), w.grad.tolist()

    assert gradient(True) == gradient(False)


def test_transforms_inside_a_region():
    x = flnb.asarray(np.float32([[0.5, 0.25], [1.0, 2.0]]))

    def f(x):
        return flnb.square(x @ x).sum()

    expected = flnb.grad(f)(x).numpy()
    with flnb.autocast():
        g = flnb.grad(f)(x)
        hessian = flnb.hessian(f)(x)
        each = flnb.vmap(flnb.grad(f))(flnb.stack([x, x]))
        assert flnb.vmap(lambda x: x @ x)(flnb.stack([x, x])).dtype == HALF
    assert {g.dtype, hessian.dtype, each.dtype} == {FULL}
    np.testing.assert_allclose(g.numpy(), expected, rtol=2e-3)
    np.testing.assert_allclose(hessian.numpy(), flnb.hessian(f)(x).numpy(), rtol=5e-3, atol=1e-2)
    np.testing.assert_allclose(each.numpy(), np.stack([expected] * 2), rtol=2e-3)


def test_a_checkpointed_function_runs_again_as_it_ran():
    def gradient(wrap):
        w = nn.Parameter(flnb.asarray(np.float32([[0.5, 0.25], [1.0, 2.0]])))
        dtypes = []

        def block(x):
            dtypes.append((x @ w).dtype)
            return flnb.tanh(x @ w)

        with flnb.autocast():
            first = flnb.ones((2, 2)) @ w  # its cast is not used inside, where it would lead out of the graph
            y = wrap(block)(first) @ w
        y.sum().backward()
        assert set(dtypes) == {HALF}
        return w.grad.numpy()

    np.testing.assert_allclose(gradient(flnb.checkpoint), gradient(lambda f: f), rtol=1e-3)  # sums in other orders


@pytest.mark.parametrize("tape", ["arena", "pruning", "prefused"])
def test_other_tapes(tape):
    def gradients():
        net, (x, y) = network(), batch()
        with flnb.autocast():
            loss = flnb.cross_entropy(net(x), y)
        loss.backward()
        return [p.grad.numpy() for p in net.parameters()]

    expected = gradients()
    with flnb.use_tape(tape):
        for got, wanted in zip(gradients(), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_what_an_optimizer_does_in_a_region_is_not_cast():
    w = nn.Parameter(flnb.ones(3))
    optimizer = optim.Adam([w], lr=0.1)
    w.grad = flnb.asarray(np.float32([1e-6, 1.0, 300.0]))
    with flnb.autocast("O3"), flnb.record() as run:
        assert optim.clip_grad_norm([w], 1e3) == pytest.approx(300.0017, rel=1e-6)
        optimizer.step()
    assert "float16" not in {dtype for _, dtype in ops_of(run)}
    np.testing.assert_allclose(w.data.numpy(), 0.9, rtol=1e-2)
