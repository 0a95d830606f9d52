"""Functions that `flnb.jit` refuses, and the texts of its errors."""

from __future__ import annotations

import re
from typing import Any

import pytest

import flnb
from flnb import nn
from tests.graph.failing import Failing
from tests.graph.test_jit import X


def test_a_function_that_reads_elements_is_told_so() -> None:
    f = flnb.jit(lambda x: x if flnb.sum(x) > 0 else -x)
    x = flnb.asarray(X)
    f(x)
    with pytest.raises(
        RuntimeError, match=r"test_jit_refusals.py:\d+ reads the values of bool.*return the tensor and read it outside"
    ):
        f(x)
    weight = nn.Parameter(x)

    @flnb.jit
    def step() -> None:
        weight.grad = None
        (weight * weight).sum().backward()
        assert weight.grad is not None
        weight.grad.item()

    with pytest.raises(ValueError, match="item"):
        step()
    with pytest.raises(ValueError, match="item"):
        step()


def test_a_tensor_that_is_kept_elsewhere_is_an_error() -> None:
    kept = []

    @flnb.jit
    def f(x: Any) -> Any:
        kept.append(x + 1.0)
        return x * 2.0

    f(flnb.asarray(X))
    with pytest.raises(RuntimeError, match=r"stores a tensor, float32\[3,4\].*return the tensor, or write it"):
        f(flnb.asarray(X))


def test_numbers_that_python_draws_and_calls_of_all_ranks_are_refused() -> None:
    from flnb import distributed

    functions = [
        lambda x: x[flnb.random.permutation(3)],
        lambda x: nn.LayerDrop(nn.Tanh(), 0.5)(x),
        lambda x: distributed.all_reduce(x),
    ]
    for function, match in zip(functions, ["Python reads", "Python reads", "a collective call"], strict=True):
        f = flnb.jit(function)
        f(flnb.asarray(X))
        with pytest.raises(RuntimeError, match=match):
            f(flnb.asarray(X))


def test_an_error_of_a_method_says_where_in_the_program_it_was() -> None:
    f, x = flnb.jit(lambda x: flnb.tanh(x) + 1.0), flnb.asarray(X)
    with flnb.use_backend(Failing) as backend:
        for _ in range(3):
            f(x)
        backend.error = ValueError("no tanh today")
        with pytest.raises(ValueError, match="no tanh today") as caught:
            f(x)
    (note,) = caught.value.__notes__
    described, _, line = note.partition(", made at ")
    assert described == "flnb: in a program of flnb.jit, in tanh of float32[3,4], giving float32[3,4]"
    assert re.match(r".*test_jit_refusals\.py:\d+: f, x = flnb\.jit\(lambda x: flnb\.tanh\(x\) \+ 1\.0\)", line)
