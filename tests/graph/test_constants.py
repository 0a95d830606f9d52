"""Values that Python reads while `flnb.jit` captures a function: refused, or the function is captured again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flnb
from flnb import nn

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 12

READS: list[Any] = [
    lambda x, s, i, m: x * float(s),
    lambda x, s, i, m: x if s > 0 and s else -x,
    lambda x, s, i, m: x * flnb.asarray(np.asarray(s)),
    lambda x, s, i, m: x[i[0]],
    lambda x, s, i, m: x[m],
    lambda x, s, i, m: x[:1][m[:1]],
    lambda x, s, i, m: x.__setitem__(m, 0.0),
    lambda x, s, i, m: x * max(i.tolist()),
    lambda x, s, i, m: x * (2.0 if 1 in i else 3.0),
]


@pytest.mark.parametrize("function", READS)
def test_elements_of_arguments_are_no_constants_of_a_program(function: Any) -> None:
    f = flnb.jit(function)
    given = [flnb.asarray(each) for each in (X, np.float32(2.0), np.array([0, 1]), X > 0)]
    f(*given)
    with pytest.raises(RuntimeError, match=r"test_constants\.py:\d+ reads the values of .*(pass a number|flnb\.where)"):
        f(*given)


def test_elements_of_other_tensors_are_read_again_when_they_were_written() -> None:
    scale, mask, weight = flnb.asarray(2.0), flnb.asarray(X > 0), nn.Parameter(flnb.asarray(X))
    f = flnb.jit(lambda x, s: flnb.sum(x[mask]) * float(scale) + flnb.asarray([s, 1.0])[0])

    @flnb.jit
    def clipped(x: Any) -> Any:
        weight.zero_grad()
        flnb.sum(weight * x).backward()
        return weight.grad * float(scale)

    for i in range(9):
        if i == 3:
            flnb.assign(scale, 5.0)
        elif i == 6:
            mask.numpy()[:] = X > 0.5
        expected = X[(0.5 if i > 5 else 0.0) < X].sum() * (5 if i > 2 else 2)
        np.testing.assert_allclose(f(flnb.asarray(X), flnb.asarray(float(i))).item(), expected + i, rtol=1e-5)
        np.testing.assert_allclose(clipped(flnb.asarray(X)).numpy(), X * (5 if i > 2 else 2), rtol=1e-5)


def test_elements_that_the_function_has_written_or_that_are_a_gradient_are_not_read() -> None:
    state, weight = flnb.asarray(0.0), nn.Parameter(flnb.asarray(X))

    def counted(x: Any) -> Any:
        flnb.add(state, 1.0, out=state)
        return x * float(state)

    def scaled(x: Any) -> Any:
        assert weight.grad is not None
        return x * weight.grad.tolist()[0][1]

    weight.grad = flnb.asarray(X)
    for function, match in ((counted, "float32.., after writing to it"), (scaled, "4., an argument or a gradient")):
        f = flnb.jit(function)
        f(flnb.asarray(X))
        with pytest.raises(RuntimeError, match=match):
            f(flnb.asarray(X))


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_indices_of_each_run_are_checked(backend: str) -> None:
    functions: list[Any] = [
        lambda x, i: x[i],
        lambda x, i: flnb.take(flnb.exp(x), i, axis=0) * 2.0,
        lambda x, i: flnb.embedding(i, x),
        lambda x, i: flnb.grad(lambda w: flnb.sum(w[i] ** 2.0))(x),
    ]
    with flnb.use_backend(backend):
        for function in functions:
            f, x, good = flnb.jit(function), flnb.asarray(X), flnb.asarray(np.array([0, -3, 2]))
            expected = [f(x, good).numpy() for _ in range(3)]
            for wrong, match in (([0, 3, 1], "indices 0 to 3 are"), ([-4, -4, -4], "index -4 is")):
                with pytest.raises(IndexError, match=match + r" out of range for axis 0 of shape \(3, 4\)"):
                    f(x, flnb.asarray(np.array(wrong)))
            np.testing.assert_allclose([f(x, good).numpy()] * 3, expected, rtol=1e-5)


def test_the_default_dtype_and_the_tape_may_change() -> None:
    f, sizes = flnb.jit(lambda x: x * flnb.asarray([2.5])), []
    weight = nn.Parameter(flnb.asarray(X))

    @flnb.jit
    def step() -> None:
        weight.zero_grad()
        flnb.sum(flnb.tanh(weight)).backward()

    for i in range(9):
        flnb.set_default_dtype(flnb.float64 if 3 <= i < 6 else flnb.float32)
        try:
            assert f(flnb.asarray(X)).dtype == (np.float64 if 3 <= i < 6 else np.float32)
        finally:
            flnb.set_default_dtype(flnb.float32)
        with flnb.saved_tensors_hooks(lambda x: sizes.append(x.size) or x * 2.0, lambda x: x):  # type: ignore[func-returns-value]
            step()
        doubled = weight.grad
        step()
        assert weight.grad is not None
        assert doubled is not None
        assert not np.allclose(doubled.numpy(), weight.grad.numpy())
        np.testing.assert_allclose(weight.grad.numpy(), 1 - np.tanh(X) ** 2, rtol=1e-5)
    assert len(sizes) == 9
