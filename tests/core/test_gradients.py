"""Gradients of the core's ops against central differences: an oracle where there is no `flnb.testing`.

With them, `tests/ops/test_table.py` checks every row of the table, in both orders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb

if TYPE_CHECKING:
    from collections.abc import Callable

RNG = np.random.default_rng(3)
STEP = 1e-6
MATRIX, OTHER, VECTOR = RNG.uniform(0.5, 1.5, (3, 4)), RNG.uniform(0.5, 1.5, (4, 3)), RNG.uniform(0.5, 1.5, 4)
IMAGES, FILTERS = RNG.normal(size=(2, 3, 5, 5)), RNG.normal(size=(4, 3, 3, 3))
SQUARE = RNG.normal(size=(3, 3)) + 4.0 * np.eye(3)
CLASSES = np.array([1, 0, 3])

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray[Any, Any], ...]]] = {
    **{name: (getattr(flnb, name), (MATRIX,)) for name in ("exp", "log", "sqrt", "tanh", "erf", "sigmoid", "gelu")},
    **{name: (getattr(flnb, name), (MATRIX, VECTOR)) for name in ("add", "multiply", "divide", "pow", "maximum")},
    **{name: (getattr(flnb, name), (MATRIX,)) for name in ("sum", "mean", "prod", "var", "max")},
    "cumulative_sum": (lambda x: flnb.cumulative_sum(x, axis=1), (MATRIX,)),
    "softmax": (lambda x: flnb.softmax(x, -1), (MATRIX,)),
    "log_softmax": (lambda x: flnb.log_softmax(x, 0), (MATRIX,)),
    "layer_norm": (lambda x, w: flnb.layer_norm(x, (4,), w), (MATRIX, VECTOR)),
    "cross_entropy": (lambda x: flnb.cross_entropy(x, flnb.asarray(CLASSES)), (MATRIX,)),
    "matmul": (flnb.matmul, (MATRIX, OTHER)),
    "indexing": (lambda x: x[1:, [0, 2, 2]], (MATRIX,)),
    "concat": (lambda x, y: flnb.concat([x, y.T]), (MATRIX, OTHER)),
    "where": (lambda x: flnb.where(x > 1.0, x * x, 3.0 * x), (MATRIX,)),
    "conv2d": (lambda x, w: flnb.conv2d(x, w, stride=2, padding=1), (IMAGES, FILTERS)),
    "max_pool2d": (lambda x: flnb.max_pool2d(x, 2), (IMAGES,)),
    "inv": (flnb.linalg.inv, (SQUARE,)),
    "det": (flnb.linalg.det, (SQUARE,)),
    "fft": (lambda x: flnb.abs(flnb.fft.rfft(x)), (MATRIX,)),
}


def differences(function: Callable[..., Any], inputs: list[np.ndarray[Any, Any]], i: int) -> np.ndarray[Any, Any]:
    """The gradient of a number by one input, element by element."""
    gradient = np.zeros_like(inputs[i])
    for at in np.ndindex(gradient.shape):
        values = []
        for step in (STEP, -STEP):
            moved = [x.copy() for x in inputs]
            moved[i][at] += step
            values.append(function(*map(flnb.asarray, moved)).item())
        gradient[at] = (values[0] - values[1]) / (2 * STEP)
    return gradient


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_central_differences(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    weight = flnb.asarray(np.random.default_rng(4).normal(size=function(*map(flnb.asarray, inputs)).shape))

    def number(*arguments: Any) -> Any:
        return (function(*arguments) * weight).sum()

    variables = [flnb.Variable(flnb.asarray(x)) for x in inputs]
    number(*variables).backward()
    for i, variable in enumerate(variables):
        expected = differences(number, list(inputs), i)
        np.testing.assert_allclose(variable.grad.numpy(), expected, rtol=1e-6, atol=1e-7)
