"""Ops that a backend may compute in one call: beside the ops that they combine, and where those run in their place."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import flnb
from flnb.backends import NumpyBackend
from flnb.dispatch.table import OPS


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("f")


CASES: dict[str, tuple[Any, tuple[Any, ...], set[str], set[str]]] = {
    "conv1d_bias": (flnb.conv1d, (drawn(2, 3, 9), drawn(4, 3, 3), drawn(4)), {"conv1d", "reshape", "add"}, {"sum"}),
    "conv2d_bias": (
        lambda *x: flnb.conv2d(*x, stride=2, padding=1), (drawn(2, 3, 9, 8), drawn(4, 3, 3, 2), drawn(4)),
        {"conv2d", "reshape", "add"}, {"sum"},
    ),
    "conv3d_bias": (
        flnb.conv3d, (drawn(2, 1, 4, 4, 4), drawn(2, 1, 2, 2, 2), drawn(2)), {"conv3d", "reshape", "add"}, {"sum"},
    ),
    "linear": (
        flnb.linear, (drawn(70, 200), drawn(90, 200), drawn(90)), {"permute_dims", "matmul", "add"},
        {"permute_dims", "matmul", "sum"},
    ),
    "linear of (2, 5, 6)": (
        flnb.linear, (drawn(2, 5, 6), drawn(4, 6)), {"permute_dims", "matmul"}, {"permute_dims", "matmul"},
    ),
}  # fmt: skip
"""For each op a function that calls it, its inputs, the ops that it combines, and some of its gradient's ops."""


def counted(function: Any) -> Counter[str]:
    """Count the ops that a function runs."""
    with flnb.record("ops", grad_interval=None) as run:
        function()
    return Counter({row.key[0]: row.count for row in run.ops})


def overriding(name: str) -> type[NumpyBackend]:
    """Return a backend class that overrides one primitive, with the same results."""
    plain = NumpyBackend()
    return type("Overriding", (NumpyBackend,), {name: lambda _, *arguments: getattr(plain, name)(*arguments)})


def differentiated(name: str, backend: Any) -> tuple[list[bytes], Counter[str]]:
    """The bytes of the result and of all gradients, and the ops that ran."""
    function, inputs, *_ = CASES[name]
    found: list[Any] = []
    with flnb.use_backend(backend):
        variables = [flnb.Variable(flnb.asarray(a)) for a in inputs]

        def run() -> None:
            y = function(*variables)
            y.backward(flnb.asarray(drawn(*y.shape)))
            found.extend([y.detach(), *(v.grad for v in variables)])

        ran = counted(run)
    return [x.numpy().tobytes() for x in found], ran


@pytest.mark.parametrize("name", CASES)
def test_one_call_computes_what_the_ops_do(name: str) -> None:
    _, _, combined, pulled = CASES[name]
    whole, ran = differentiated(name, "numpy")
    op = name.split()[0]
    assert ran[op] == 1
    assert pulled <= ran.keys()
    assert not combined & ran.keys() - pulled
    for primitive in combined:
        separate, ran = differentiated(name, overriding(primitive))
        assert op not in ran
        assert combined <= ran.keys()
        assert separate == whole


@pytest.mark.parametrize("name", CASES)
def test_a_class_may_override_the_call_itself(name: str) -> None:
    class Own(NumpyBackend):
        calls = 0

    def call(self: Any, *arguments: Any) -> Any:
        Own.calls += 1
        return getattr(NumpyBackend, op)(self, *arguments)

    op = name.split()[0]
    setattr(Own, op, call)
    assert differentiated(name, Own)[0] == differentiated(name, "numpy")[0]
    assert Own.calls == 1


@pytest.mark.parametrize("name", CASES)
def test_interpreters_and_other_backends_see_the_ops(name: str) -> None:
    function, inputs, combined, _ = CASES[name]
    expected = function(*map(flnb.asarray, inputs)).numpy()
    seen: set[str] = set()

    class Names:
        def before(self, op: Any, arguments: Any) -> None:
            seen.add(op.name)

        after = failed = lambda *_: None

    with flnb.dispatch.observe.observe(Names()):
        function(*map(flnb.asarray, inputs))
    assert seen >= combined
    with flnb.use_backend("deferred:over=numpy"):
        np.testing.assert_allclose(function(*map(flnb.asarray, inputs)).numpy(), expected, 1e-5, 1e-5)
    compiled: Any = flnb.jit(function)
    for _ in range(3):
        np.testing.assert_allclose(compiled(*map(flnb.asarray, inputs)).numpy(), expected, 1e-5, 1e-5)
    x, *others = map(flnb.asarray, inputs)
    many = flnb.vmap(lambda one: function(one, *others))(flnb.stack([x, x]))
    np.testing.assert_allclose(many[1].numpy(), expected, 1e-5, 1e-5)


@pytest.mark.parametrize("dtypes", ["ffd", "dff", "eee", "iff", "FFF"])
def test_other_dtypes_run_op_by_op(dtypes: str) -> None:
    inputs = [flnb.asarray(a.astype(d)) for a, d in zip(CASES["conv2d_bias"][1], dtypes, strict=True)]
    x, w, b = inputs
    for _ in range(2):
        ran = counted(lambda: flnb.conv2d(*inputs))
        assert ran["conv2d"] == ran["add"] == 1
    y, expected = flnb.conv2d(x, w, b), flnb.conv2d(x, w) + flnb.reshape(b, (1, 4, 1, 1))
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(y.numpy(), expected.numpy())


@pytest.mark.parametrize("dtypes", ["ffd", "dff", "eee", "iff", "FFF"])
def test_a_linear_layer_of_other_dtypes_runs_op_by_op(dtypes: str) -> None:
    x, w, b = (flnb.asarray(drawn(*shape).astype(d)) for shape, d in zip(((3, 4), (2, 4), (2,)), dtypes, strict=True))
    ran = counted(lambda: flnb.linear(x, w, b))
    assert ran.pop("astype", 0) == {"ffd": 1, "dff": 2, "iff": 1}.get(dtypes, 0)
    assert ran == {"permute_dims": 1, "matmul": 1, "add": 1}
    y, expected = flnb.linear(x, w, b), x @ w.mT + b
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(y.numpy(), expected.numpy())


def test_gradients_of_strided_examples_are_computed_once() -> None:
    """The compiled gradient function cannot join the rows of such examples, which it finds out before it stores any."""
    values, *others = (flnb.asarray(drawn(*shape)) for shape in ((5, 2, 6), (4, 6), (4,)))
    found: list[list[bytes]] = []
    for backend in ("numpy", overriding("matmul")):
        with flnb.use_backend(backend):
            for _ in range(3):
                x, w, b = map(flnb.Variable, (values, *others))
                flnb.linear(flnb.permute_dims(x, (1, 0, 2)), w, b).backward(flnb.ones((2, 5, 4)))
                found.append([v.grad.numpy().tobytes() for v in (x, w, b)])
    assert all(each == found[0] for each in found)


def test_only_gradients_that_are_needed_are_computed() -> None:
    x, w, b = map(flnb.asarray, CASES["conv2d_bias"][1])
    for wanted, ops in ((w, {"conv2d_weight_grad"}), (x, {"conv2d_input_grad"}), (b, {"sum"})):
        leaf = flnb.Variable(wanted)
        y = flnb.conv2d(*(leaf if each is wanted else each for each in (x, w, b)))
        ones = flnb.ones(y.shape)
        ran = counted(lambda y=y, ones=ones: y.backward(ones))
        assert ran.keys() == ops


def test_an_error_is_that_of_the_op_and_names_no_lookup() -> None:
    x, w, b = map(flnb.asarray, CASES["conv2d_bias"][1])
    with pytest.raises(ValueError, match=r"conv2d: expected a bias of shape \(4,\), got \(3,\)") as caught:
        flnb.conv2d(x, w, b[:3])
    assert caught.value.__context__ is None
    with pytest.raises(ValueError, match="conv2d: x has 3 channels, the weight expects 2 in each of 1 groups"):
        flnb.conv2d(x, w[:, :2], b)


def test_a_mask_of_dropout_is_one_op_with_the_same_numbers() -> None:
    """By one call, op by op, recorded, captured, and for the examples of a vmap."""
    values = drawn(300, 400)  # more than one block of the cache
    x = flnb.asarray(values)

    def dropped(backend: Any) -> tuple[bytes, bytes]:
        with flnb.use_backend(backend):
            x = flnb.Variable(flnb.asarray(values))
            y = flnb.dropout(x, 0.3, generator=flnb.random.Generator(7))
            y.sum().backward()
            return y.detach().numpy().tobytes(), x.grad.numpy().tobytes()

    ran = counted(lambda: dropped("numpy"))
    assert ran["random_mask"] == 1
    assert ran["multiply"] == 2  # forward and backward
    assert not ran.keys() & {"random_uniform", "greater_equal", "astype"}
    expected = dropped("numpy")
    for primitive in ("random_uniform", "greater_equal", "astype", "multiply"):
        assert counted(lambda name=primitive: dropped(overriding(name)))["random_uniform"] == 1
        assert dropped(overriding(primitive)) == expected
    assert dropped("deferred:over=numpy") == expected
    generator = flnb.random.Generator(7)
    captured: Any = flnb.jit(lambda x: flnb.dropout(x, 0.3, generator=generator))
    assert captured(x).numpy().tobytes() == expected[0]
    rows = flnb.vmap(lambda row: flnb.dropout(row, 0.3, generator=flnb.random.Generator(7)))(x)
    assert rows.numpy().tobytes() == expected[0]


def test_every_combined_op_is_checked_here() -> None:
    checked = {"random_mask", *(name.split()[0] for name in CASES)}
    assert {name for name, op in OPS.items() if op.separately is not None} == checked
