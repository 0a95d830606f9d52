"""Constant folding: small values that depend on constants alone are computed when a program is made."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import graph
from flnb.backends import NumpyBackend

X = np.arange(6, dtype=np.float32).reshape(2, 3) / 6
TABLE = np.array([0.25, 0.5, 2.0], np.float32)


def scaled(x: flnb.Tensor) -> flnb.Tensor:
    angle = flnb.arange(3, dtype=flnb.float32) * 0.5
    scale = flnb.sqrt(flnb.asarray(TABLE) + 1.0) * flnb.full((), 2.0)
    return (
        x * flnb.broadcast_to(scale, (2, 3))
        + flnb.permute_dims(flnb.reshape(flnb.asarray(TABLE), (3, 1)), (1, 0)) / angle
    )


def captured(f: Any, *arrays: Any, fuse: bool = False) -> Any:
    made = flnb.jit(f, fuse=fuse)
    for _ in range(3):
        made(*[flnb.asarray(x) for x in arrays])
    return made


@pytest.mark.parametrize("fuse", [False, True])
def test_a_program_computes_no_op_of_constants_again(fuse: bool) -> None:
    f = captured(scaled, X, fuse=fuse)
    ops = Counter(value.op.name for group in f.programs[0].groups for value in group.members)
    assert "sqrt" not in ops
    assert (ops["multiply"], ops["add"]) == (1 + (ops["arange"] > 0), 1)
    with np.errstate(divide="ignore"):
        expected = scaled(flnb.asarray(X)).numpy()
    np.testing.assert_allclose(f(flnb.asarray(X)).numpy(), expected, rtol=0 if not fuse else 1e-6)
    (sweep,) = graph.history(f)
    folded = [change for change in sweep.changes if change.rule == "constant"]
    assert {"add", "sqrt", "multiply"} <= {change.value.op.name for change in folded}
    assert folded[0].where.startswith("rewriting.py:")


def test_large_results_are_computed_in_each_run() -> None:
    f = captured(lambda x: x + flnb.sqrt(flnb.full((64, 64), 2.0)), np.ones((64, 64), np.float32))
    assert "sqrt" in [value.op.name for group in f.programs[0].groups for value in group.members]


def test_an_op_that_the_users_class_overrides_is_called_in_each_run() -> None:
    calls: list[int] = []

    class Telling(NumpyBackend):
        def sqrt(self, x: Any, out: Any = None) -> Any:
            calls.append(1)
            return np.sqrt(x, out)

    with flnb.use_backend(Telling()):
        f = captured(scaled, X)
        calls.clear()
        for _ in range(3):
            f(flnb.asarray(X))
        assert len(calls) == 3


def test_numbers_that_change_are_no_constants() -> None:
    with flnb.use_backend("deferred"):
        for i in range(12):
            rate = flnb.asarray(0.5 * i, dtype=flnb.float32)
            made = flnb.exp(flnb.asarray(X)) * (rate * 2.0 + 1.0) - (rate + 1.0) * 3.0
            expected = np.exp(X) * np.float32(i + 1.0) - np.float32(1.5 * i + 3.0)
            np.testing.assert_allclose(made.numpy(), expected, rtol=1e-5, atol=1e-4)


def test_a_division_by_zero_of_constants_is_the_value_that_ops_have() -> None:
    f = captured(lambda x: x * (flnb.asarray(TABLE) / flnb.asarray(np.zeros(3, np.float32))), X + 1)
    assert np.all(np.isinf(f(flnb.asarray(X + 1)).numpy()))
