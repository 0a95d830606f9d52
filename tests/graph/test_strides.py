"""Programs on arguments of any strides: they write where the function writes, to views as well, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flnb

X = np.arange(1, 25, dtype=np.float32).reshape(6, 4)
VIEWS: dict[str, Any] = {
    "whole": lambda x: x,
    "rows": lambda x: x[1:5],
    "every second row": lambda x: x[::2],
    "columns": lambda x: x[:, 1:3],
    "reversed": lambda x: x[::-1],
    "transposed": lambda x: x.T,
}


def add_in_place(x: Any, y: Any) -> Any:
    x += y
    return x * 1.0


def double_a_row(x: Any, y: Any) -> Any:
    x[0] *= 2.0
    return flnb.sum(x, axis=0)


def double_a_column(x: Any, y: Any) -> Any:
    transposed = x.T
    transposed[0] *= 2.0
    return x * 3.0


def write_to_a_row(x: Any, y: Any) -> Any:
    x[:1] = y[1:2]
    return x - y


def assign_a_result(x: Any, y: Any) -> Any:
    flnb.assign(x, y * 2.0)
    return x * 3.0


def write_to_what_is_reshaped(x: Any, y: Any) -> Any:
    flat = flnb.reshape(x, (-1,))  # a view if x is contiguous, else a copy
    flat *= 3.0
    return x * 1.0


FUNCTIONS = [
    add_in_place, double_a_row, double_a_column, write_to_a_row, assign_a_result, write_to_what_is_reshaped,
]  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_program_writes_where_the_function_writes(function: Any, view: str) -> None:
    def run(f: Any) -> list[Any]:
        x, y = flnb.asarray(X.copy()), flnb.asarray(X * 10.0)
        return [f(VIEWS[view](x), VIEWS[view](y)).numpy(), x.numpy(), y.numpy()]

    for fuse in (True, False):
        f = flnb.jit(function, fuse=fuse)
        for _ in range(4):
            for got, expected in zip(run(f), run(function), strict=True):
                np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("view", VIEWS)
def test_the_memory_around_a_donated_view_is_not_written(view: str) -> None:
    f, inside = flnb.jit(lambda x: x * 2.0, donate=(0,)), np.zeros(X.shape, bool)
    VIEWS[view](inside)[...] = True
    for _ in range(4):
        x = flnb.asarray(X.copy())
        np.testing.assert_array_equal(f(VIEWS[view](x)).numpy(), VIEWS[view](X) * 2.0)
        np.testing.assert_array_equal(x.numpy()[~inside], X[~inside])


@pytest.mark.parametrize("backend", ["numpy", "deferred"])
def test_a_view_of_an_argument_may_begin_at_its_last_element(backend: str) -> None:
    with flnb.use_backend(backend):
        f = flnb.jit(lambda x: flnb.exp(x[::-1]) + x[:, ::-1])
        for _ in range(4):
            x = flnb.asarray(X / 24)[::-1]
            np.testing.assert_allclose(f(x).numpy(), (np.exp(X) ** (1 / 24)) + X[::-1, ::-1] / 24, rtol=1e-5)


def test_a_read_only_array_is_not_written() -> None:
    def add(x: Any) -> Any:
        x += 1.0
        return x * 2.0

    f, array = flnb.jit(add), X.copy()
    for writeable in (True, False, True, True, False, True):  # of the second call, a program is made
        array.flags.writeable = writeable
        before, x = array.copy(), flnb.from_dlpack(array)
        if writeable:
            np.testing.assert_array_equal(f(x).numpy(), (before + 1.0) * 2.0)
        else:
            with pytest.raises(ValueError, match=r"writes to a tensor on the memory of a read-only array, float32.6,4"):
                f(x)
            np.testing.assert_array_equal(array, before)


def test_arguments_of_a_backend_without_programs_get_the_error_of_the_function() -> None:
    with flnb.use_backend("deferred"):
        y = flnb.asarray(X) + 1.0
    f = flnb.jit(lambda x: x + flnb.asarray(X))
    with flnb.use_backend("numpy"):
        for _ in range(3):
            with pytest.raises(TypeError, match="add: the tensors have"):
                f(y)
