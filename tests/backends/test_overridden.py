"""Primitives that the user's class overrides are hit on every backend and in every mode as often as on NumPy's."""

from __future__ import annotations

import platform
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import models, optim
from flnb.autograd.anomaly import AnomalyError
from flnb.backends import CpuBackend, NumpyBackend
from tests.counting import counting
from tests.recipe_steps import training_step

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="there is no oneDNN to install"
)
OVERRIDDEN = {"add", "multiply", "exp", "matmul"}


CountingNumpy, CountingCpu = (counting(kind, *OVERRIDDEN) for kind in (NumpyBackend, CpuBackend))


@cache
def calls_of_a_step(kind: type, name: str, jit: bool) -> dict[str, int]:
    """How often each is called by the third training step of a model."""
    recipe = models.get(name)
    flnb.manual_seed(0)
    with flnb.use_backend(kind) as backend:
        model = recipe.build("small")
        batch = [flnb.asarray(a) for a in recipe.batch("small", size=2)]
        optimizer = optim.Adam(model.parameters())
        optimizer.gathers = False  # as in a program

        step = training_step(recipe, model, optimizer)
        run: Any = flnb.jit(step) if jit else step
        run(*batch)
        run(*batch)
        before = dict(backend.calls)
        run(*batch)
        if jit:
            assert run.programs
        return {key: n - before[key] for key, n in backend.calls.items()}


@pytest.mark.parametrize("name", ["bert", "resnet18"])
@pytest.mark.parametrize(
    ("kind", "jit"), [(CountingNumpy, True), (CountingCpu, False), (CountingCpu, True)],
    ids=["numpy, jit", "cpu", "cpu, jit"],
)  # fmt: skip
def test_primitives_of_the_user_are_called_as_often_as_on_numpy(kind: type, jit: bool, name: str) -> None:
    expected = calls_of_a_step(CountingNumpy, name, jit=False)
    assert min(expected.values()) > 0
    assert calls_of_a_step(kind, name, jit) == expected


def program(x: Any, w: Any, v: Any) -> Any:
    """A convolution and a product that oneDNN computes, then a division by what may be zero."""
    y = flnb.max_pool2d(flnb.relu(flnb.conv2d(x, w)), 2)
    return flnb.softmax(flnb.reshape(y, (-1, 64)) @ v, axis=1) / flnb.sum(v)


def arguments(v: float) -> list[Any]:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(4, 8, 18, 18)), rng.normal(size=(64, 8, 3, 3))
    return [flnb.asarray(array.astype("f")) for array in (x, w, np.full((64, 64), v))]


@pytest.mark.parametrize("jit", [False, True])
def test_the_guard_of_numbers_sees_the_values_of_every_op_on_cpu(jit: bool) -> None:
    run: Any = flnb.jit(program) if jit else program
    with flnb.use_backend("cpu"):
        for _ in range(3):
            run(*arguments(1.0))  # where it is a program, it is one by now
        with flnb.detect_anomaly():
            run(*arguments(1.0))
            with pytest.raises(AnomalyError, match=r"'divide' gave \d+ Inf.* of 16384 elements") as caught:
                run(*arguments(0.0))
    assert "input 1: float32[], min 0, max 0, mean 0" in str(caught.value)


@pytest.mark.parametrize("jit", [False, True])
def test_backends_are_compared_op_by_op_on_cpu(jit: bool) -> None:
    """The values of each op on NumPy, on cpu, and on one whose product is wrong."""

    class Wrong(CpuBackend):
        def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
            return np.multiply(super().matmul(a, b), 1.001, out)

    run: Any = flnb.jit(program) if jit else program
    run(*arguments(1.0))
    run(*arguments(1.0))
    report = flnb.compare_backends(
        lambda: run(*arguments(1.0)), ["numpy", CpuBackend(1, "nhwc"), Wrong], tolerance=1e-4
    )
    ops = {"conv2d", "max_pool2d", "maximum", "matmul", "divide", "sum", "exp"}
    assert ops <= {row.op for row in report.results}
    assert {(row.op, row.backend) for row in report.failed} == {("matmul", "Wrong")}
    errors = {row.op: row.error for row in report.results if row.backend == "cpu"}
    assert 0 < errors["conv2d"] < 1e-4  # another sum of the same products
    assert errors["exp"] == errors["divide"] == 0.0  # each op gets the reference's inputs


def test_a_class_that_overrides_leaves_the_gradients_of_others_as_they_are() -> None:
    """The gradient of a composite is compiled once for all: by the class's ops first, then by NumPy's own method."""

    def differentiate(backend: Any) -> None:
        x = flnb.Variable(flnb.asarray(np.linspace(-1, 1, 91).reshape(7, 13), dtype="float32"))
        with flnb.use_backend(backend):
            flnb.softmax(x, axis=1).sum().backward()

    class Whole(NumpyBackend):
        calls = 0

        def softmax_pull(self, *arguments: Any, **keywords: Any) -> Any:
            Whole.calls += 1
            return super().softmax_pull(*arguments, **keywords)

    with flnb.use_backend(CountingNumpy) as counted:
        differentiate(counted)
        once = dict(counted.calls)
        differentiate(Whole)
        differentiate(counted)
    assert Whole.calls == 1
    assert once["multiply"]
    assert counted.calls == {key: 2 * n for key, n in once.items()}
