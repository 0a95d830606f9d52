"""Every public function takes lists and NumPy arrays wherever its signature says so, and computes the same of them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

X = np.asarray([[0.5, 0.25], [0.125, 0.75]], np.float32)
V, ROW, PLACES = X[0], np.asarray([1.0, 2.0, 3.0], np.float32), np.asarray([1, 0])
CHOSEN, BITS = np.asarray([[True, False], [False, True]]), np.asarray([[1, 2], [3, 0]])
IMAGE = np.arange(16, dtype=np.float32)
GATES = {n: (np.full((n * 2, 2), 0.25, np.float32), np.full(n * 2, 0.5, np.float32)) for n in (1, 3, 4)}
"""Weights (gates * 2, 2) and biases of a cell with two inputs and two hidden units, by its number of gates."""


def _pools() -> dict[str, Any]:
    images = {n: IMAGE.reshape(1, 1, *(() if n == 1 else (2,) * (n - 1)), -1)[..., :4] for n in (1, 2, 3)}
    pools = {f"{kind}_pool{n}d": ((x, 2), {}) for n, x in images.items() for kind in ("avg", "max")}
    kernels = {n: np.ones((1, 1, *(1,) * n), np.float32) for n in images}
    return pools | {f"conv{n}d": ((x, kernels[n], V[:1]), {}) for n, x in images.items()}


CALLS: dict[str, Any] = {
    "assign": ((flnb.zeros((2, 2)), X), {}),
    "astype": ((X, "float64"), {}),
    "batch_norm": ((X, V, V), {}),
    "broadcast_to": ((X, (3, 2, 2)), {}),
    "clip": ((X, V, 0.6 * np.ones(2, np.float32)), {}),
    "cross": ((ROW, ROW[::-1]), {}),
    "cross_entropy": ((X, PLACES), {"weight": V}),
    "cumulative_prod": ((X, 0), {}),
    "cumulative_sum": ((X, 0), {}),
    "diff": ((X,), {"prepend": X, "append": X}),
    "embedding": ((PLACES, X), {}),
    "full_like": ((X, 7), {}),
    "group_norm": ((X, 1, V, V), {}),
    "gru": ((X[None], X, *(GATES[3][0],) * 2, *(GATES[3][1],) * 2), {}),
    "layer_norm": ((X, 2, V, V), {}),
    "linear": ((X, X, V), {}),
    "log": ((X,), {}),
    "lstm": ((X[None], (X, X), *(GATES[4][0],) * 2, GATES[4][1]), {}),
    **{name: ((X,), {"rtol": np.asarray(0.5, np.float32)}) for name in ("matrix_rank", "pinv")},
    "matrix_power": ((X, 3), {}),
    "meshgrid": ((V, ROW), {}),
    "moveaxis": ((X, 0, 1), {}),
    "nll_loss": ((-X, PLACES), {"weight": V}),
    "outer": ((V, ROW), {}),
    "pad": ((X, ((1, 1), (0, 0))), {}),
    "permute_dims": ((X, (1, 0)), {}),
    "prelu": ((X, V), {}),
    "repeat": ((X, PLACES, 0), {}),
    "reshape": ((X, (4,)), {}),
    "rnn": ((X[None], X, *(GATES[1][0],) * 2, GATES[1][1]), {}),
    "roll": ((X, 1), {}),
    "scaled_dot_product_attention": ((X, X, X), {"mask": CHOSEN | CHOSEN.T, "bias": X}),
    "searchsorted": ((V, X), {"sorter": PLACES}),
    "take": ((X, PLACES, 0), {}),
    "take_along_axis": ((X, BITS % 2), {}),
    "threshold": ((X, 0.3), {}),
    "tile": ((X, (2, 1)), {}),
    "topk": ((X, 1), {}),
    "where": ((CHOSEN, X, 2 * X), {}),
    **{f"bitwise_{name}": ((BITS, BITS), {}) for name in ("and", "or", "xor", "left_shift", "right_shift")},
    "bitwise_invert": ((BITS,), {}),
    **{name: ((X @ X.T + np.eye(2, dtype=np.float32),), {}) for name in ("cholesky", "eigh", "eigvalsh")},
    **_pools(),
}
"""Arguments for those functions that do not take the matrix X for each of their arguments."""
TAKE_OTHERS = {"from_dlpack", "result_type"}
"""One shares an array's memory, the other takes dtypes, for which no list stands."""


def array_likes(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each for each in parameters if "ArrayLike" in str(each.annotation)]


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in (flnb, flnb.linalg, flnb.fft):
        for name in module.__all__:
            function = vars(module).get(name)  # what belongs to tools is imported when it is asked for
            if callable(function) and not inspect.isclass(function) and array_likes(function):
                yield name, function


FUNCTIONS = {name: function for name, function in functions() if name not in TAKE_OTHERS}


def arguments_of(name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    required = [each for each in array_likes(FUNCTIONS[name]) if each.default is each.empty]
    found: tuple[tuple[Any, ...], dict[str, Any]] = CALLS.get(name, ((X,) * len(required), {}))
    return found


def converted(given: Any, to: Callable[[Any], Any]) -> Any:
    """Convert the arrays among arguments, also in tuples."""
    if isinstance(given, np.ndarray):
        return to(given)
    return tuple(converted(each, to) for each in given) if isinstance(given, tuple) else given


def flat(found: Any) -> list[Any]:
    return [found] if isinstance(found, flnb.Tensor) else [tensor for each in found for tensor in flat(each)]


def test_all_are_tried() -> None:
    assert len(FUNCTIONS) > 190
    assert CALLS.keys() - FUNCTIONS.keys() == set()
    for name, function in FUNCTIONS.items():  # optional arguments too
        arguments, keywords = arguments_of(name)
        given = inspect.signature(function).bind(*arguments, **keywords).arguments
        assert {each.name for each in array_likes(function)} <= given.keys(), name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_and_arrays_are_taken_as_tensors_are(name: str) -> None:
    function = FUNCTIONS[name]
    arguments, keywords = arguments_of(name)

    def call(to: Callable[[Any], Any]) -> list[Any]:
        flnb.manual_seed(0)
        made = {key: to(value) for key, value in keywords.items()}
        return flat(function(*converted(arguments, to), **made))

    expected = call(flnb.asarray)
    for to in (np.asarray, np.ndarray.tolist):
        for got, wanted in zip(call(to), expected, strict=True):
            assert got._spec == wanted._spec
            if name != "empty_like":
                np.testing.assert_array_equal(got.numpy(), wanted.numpy())
