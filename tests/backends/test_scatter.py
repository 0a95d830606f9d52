"""Rows added to rows chosen by indices, as the gradient of an embedding does: machine code with NumPy's bits."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest
from flnb_backends.native import scatter
from flnb_backends.tensor.cpu import CpuBackend

import flnb

pytest.importorskip("llvmlite")
RNG = np.random.default_rng(0)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the code be compiled at the first call."""
    monkeypatch.setattr(scatter, "_calls", count(scatter.USES))


def expected(out: Any, rows: Any, g: Any) -> Any:
    out = out.copy()
    np.add.at(out, rows, g)
    return out


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("shape", [(5, 2), (7, 3), (4, 67), (3, 2, 8)])
def test_rows_are_added_in_order_with_the_bits_of_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    rows = RNG.integers(-shape[0], shape[0], (6, 9))
    g = RNG.normal(size=(6, 9, *shape[1:])).astype(dtype)
    out = RNG.normal(size=shape).astype(dtype)
    wanted = expected(out, rows, g)
    assert scatter.add_rows(out, rows, g)
    np.testing.assert_array_equal(out, wanted, strict=True)


@pytest.mark.usefixtures("used")
def test_no_rows_and_nan() -> None:
    out = np.ones((3, 2), "f")
    assert scatter.add_rows(out, np.empty(0, np.int64), np.empty((0, 2), "f"))
    np.testing.assert_array_equal(out, 1)
    assert scatter.add_rows(out, np.array([1, 1]), np.array([[np.inf, 1], [-np.inf, np.nan]], "f"))
    np.testing.assert_array_equal(out, [[1, 1], [np.nan, np.nan], [1, 1]])


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize(
    ("out", "rows", "g"),
    [
        (np.zeros((4, 3), "f"), np.array([1, 1]), np.ones((3, 2), "f").T),
        (np.zeros((4, 6), "f")[:, ::2], np.array([1, 1]), np.ones((2, 3), "f")),
        (np.zeros((4, 3), "f"), np.array([1, 1], np.int32), np.ones((2, 3), "f")),
        (np.zeros((4, 3), "f"), np.array([1, 0, 1])[::2], np.ones((2, 3), "f")),
        (np.zeros((4, 3), "d"), np.array([1, 1]), np.ones((2, 3), "f")),
        (np.zeros((4, 3), "f"), np.array([1, 1, 1]), np.ones((1, 3), "f")),
        (np.zeros((4, 3), "f"), np.array([1, 1]), np.ones((2, 2), "f")),
        (np.zeros((4, 3), np.int64), np.array([1, 1]), np.ones((2, 3), np.int64)),
        (np.zeros((4, 1), "f"), np.array([1, 1]), np.ones((2, 1), "f")),
    ],
    ids=[
        "columns",
        "every second column",
        "int32 indices",
        "every second index",
        "two dtypes",
        "too few rows",
        "narrow rows",
        "integers",
        "single elements",
    ],
)
def test_other_arrays_are_left_to_numpy(out: Any, rows: Any, g: Any) -> None:
    assert not scatter.add_rows(out, rows, g)
    assert not out.any()


def test_the_first_calls_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "_calls", count())
    compiled: list[str] = []
    monkeypatch.setattr(scatter, "_function", compiled.append)
    done = [scatter.add_rows(np.zeros((2, 2), "f"), np.array([0]), np.ones((1, 2), "f")) for _ in range(scatter.USES)]
    assert (any(done), compiled) == (False, [])
    assert not scatter.add_rows(np.zeros((2, 2), "f"), np.array([0]), np.ones((1, 2), "f"))  # as without llvmlite
    assert compiled == ["f"]


@pytest.mark.usefixtures("used")
def test_the_gradient_of_an_embedding_is_that_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, done = flnb.asarray(RNG.integers(0, 5, (4, 6))), []
    found: list[Any] = []
    monkeypatch.setattr(
        "flnb_backends.tensor.cpu.add_rows", lambda *arrays: done.append(scatter.add_rows(*arrays)) or done[-1]
    )
    for backend in ("numpy", "cpu"):
        with flnb.use_backend(backend):
            table = flnb.Variable(np.arange(40, dtype=np.float32).reshape(5, 8) / 7)
            y = flnb.embedding(rows, table)
            (y * y).sum().backward()
            found.append(table.grad.numpy())
    assert done == [True]
    np.testing.assert_array_equal(*found)


def test_a_class_that_overrides_scatter_add_is_asked() -> None:
    class Counting(CpuBackend):
        calls = 0

        def scatter_add(self, g: Any, *arguments: Any) -> Any:
            self.calls += 1
            return super().scatter_add(g, *arguments)

    with flnb.use_backend(Counting) as backend:
        table = flnb.Variable(np.ones((3, 2), np.float32))
        flnb.embedding(flnb.asarray([0, 0, 2]), table).sum().backward()
    assert backend.calls == 1
    assert table.grad.numpy().tolist() == [[2, 2], [0, 0], [1, 1]]
