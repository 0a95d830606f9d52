"""Kernels of the nests that a fuser makes of models' layers, and what kernels say of themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flnb_backends.native.lanes import SideBySide
from flnb_backends.native.nests import divided, generator, kernel

from flnb.graph.nests import Access, Nest, Step
from tests.native.oracle import Array, access, constant, load, run, step


def rows(x: Array) -> Any:
    return access(x, (x.shape[1],), (1,))


def row(x: Array) -> Any:
    return access(x, (1,), (0,))


def column(x: Array) -> Any:
    return access(x, (0,), (1,))


SOFTMAX = (
    load(0), step("max", 0, over="inner"), step("subtract", 0, 1), step("exp", 2), step("sum", 3, over="inner"),
    step("divide", 3, 4),
)  # fmt: skip
NORM = (
    load(0), step("sum", 0, over="inner"), constant(1 / 96), step("multiply", 1, 2), step("subtract", 0, 3),
    step("multiply", 4, 4), step("sum", 5, over="inner"), step("multiply", 6, 2), constant(1e-5), step("add", 7, 8),
    step("sqrt", 9), step("divide", 4, 10), load(1), step("multiply", 11, 12), load(2), step("add", 13, 14),
)  # fmt: skip


def numbers(*shape: int, dtype: str = "f", seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("columns", [1, 2, 7, 64, 100, 5000])
@pytest.mark.parametrize("place", ["out", "in"])
def test_softmax(columns: int, place: str) -> None:
    x = numbers(30, columns)
    x[3, 0], x[4, 0], x[5], x[6, -1] = np.nan, -np.inf, -np.inf, np.inf
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(1, keepdims=True))
        wanted = e / e.sum(1, keepdims=True)
    y = x if place == "in" else np.zeros_like(x)
    run(Nest((30,), (columns,), (rows(x), rows(y)), SOFTMAX, ((5, 1),)), [x, y])
    np.testing.assert_allclose(y, wanted, 2e-6)


@pytest.mark.parametrize("place", ["out", "in"])
def test_layer_norm(place: str) -> None:
    x, weight, bias = numbers(50, 96) + 3, numbers(96, seed=1), numbers(96, seed=2)
    wide = x.astype("d")
    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * weight + bias
    y = x if place == "in" else np.zeros_like(x)
    run(Nest((50,), (96,), (rows(x), column(weight), column(bias), rows(y)), NORM, ((15, 3),)), [x, weight, bias, y])
    np.testing.assert_allclose(y, wanted, 1e-5, 1e-5)


@pytest.mark.parametrize("channels_last", [False, True])
def test_batch_norm_over_two_inner_loops(channels_last: bool) -> None:
    x = numbers(4, 6, 24)
    if channels_last:
        x = np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1)
    weight, bias, y = numbers(6, seed=1), numbers(6, seed=2), np.zeros_like(x)
    wide = x.astype("d")
    mean, variance = wide.mean((0, 2), keepdims=True), wide.var((0, 2), keepdims=True)
    wanted = (wide - mean) / np.sqrt(variance + 1e-5) * weight[:, None] + bias[:, None]
    strides = [s // 4 for s in x.strides]
    full, one = access(x, strides[1:2], (strides[0], strides[2])), access(weight, (1,), (0, 0))
    run(Nest((6,), (4, 24), (full, one, one, full), NORM, ((15, 3),)), [x, weight, bias, y])
    np.testing.assert_allclose(y, wanted, 1e-5, 1e-5)


def test_gradients_of_rows_and_columns_in_one_nest() -> None:
    x, g = numbers(300, 70), numbers(300, 70, seed=1)
    dx, dw, db = np.zeros_like(x), np.zeros(70, "f"), np.zeros(70, "f")
    steps = (
        load(0), load(1), step("multiply", 0, 1), step("sum", 2, over="inner"), step("multiply", 0, 3),
        step("subtract", 2, 4), step("sum", 2, over="outer"), step("sum", 1, over="outer"),
    )  # fmt: skip
    nest = Nest((300,), (70,), (rows(x), rows(g), rows(dx), column(dw), column(db)), steps, ((5, 2), (6, 3), (7, 4)))
    run(nest, [x, g, dx, dw, db])
    wide = x.astype("d") * g
    np.testing.assert_allclose(dx, wide - x * wide.sum(1, keepdims=True), 1e-4, 1e-5)
    np.testing.assert_allclose(dw, wide.sum(0), 1e-6, 1e-5)
    np.testing.assert_allclose(db, g.astype("d").sum(0), 1e-6, 1e-5)


def test_optimizer_step_in_place() -> None:
    p, g, m = numbers(1001), numbers(1001, seed=1), numbers(1001, seed=2)
    with np.errstate(all="ignore"):
        new = np.float32(0.9) * m + g
        wanted = p - np.float32(0.1) * new
    steps = (
        load(0), load(1), load(2), constant(0.9), step("multiply", 3, 2), step("add", 4, 1), constant(0.1),
        step("multiply", 6, 5), step("subtract", 0, 7),
    )  # fmt: skip
    way = access(p, (1,))
    run(Nest((1001,), (), (way, way, way), steps, ((5, 2), (8, 0))), [p, g, m])
    np.testing.assert_array_equal(m, new)
    np.testing.assert_array_equal(p, wanted)


def test_in_place_after_a_later_pass_reads_again() -> None:
    """The square is ready in the first pass, but its array is read in the second one."""
    x, y = numbers(9, 40), np.zeros((9, 40), "f")
    wanted = x - x.sum(1, keepdims=True), x * x
    steps = (load(0), step("multiply", 0, 0), step("sum", 0, over="inner"), step("subtract", 0, 2))
    run(Nest((9,), (40,), (rows(x), rows(y), rows(x)), steps, ((1, 2), (3, 1))), [x, y, x])
    np.testing.assert_allclose(y, wanted[0], 1e-5, 1e-5)
    np.testing.assert_array_equal(x, wanted[1])


@pytest.mark.parametrize("steps", [SOFTMAX, NORM])
@pytest.mark.parametrize("place", ["out", "in"])
def test_rows_that_are_not_contiguous_are_computed_side_by_side(steps: tuple[Step, ...], place: str) -> None:
    x, weight, bias = numbers(96, 300), numbers(96, seed=1), numbers(96, seed=2)
    contiguous, found = np.ascontiguousarray(x.T), np.zeros((300, 96), "f")
    arrays = [weight, bias] if steps is NORM else []
    ways, last = (column(weight), column(bias)) if steps is NORM else (), len(steps) - 1
    nest = Nest((300,), (96,), (rows(contiguous), *ways, rows(found)), steps, ((last, len(ways) + 1),))
    run(nest, [contiguous, *arrays, found])
    y = x if place == "in" else np.zeros_like(x)
    way = access(x, (1,), (300,))
    nest = Nest((300,), (96,), (way, *ways, way), steps, ((last, len(ways) + 1),))
    assert isinstance(generator(nest), SideBySide)
    run(nest, [x, *arrays, y])
    np.testing.assert_allclose(y, found.T, 1e-5, 1e-6)


def test_short_rows_are_computed_side_by_side() -> None:
    x, y = numbers(1000, 5), np.zeros((1000, 5), "f")
    nest = Nest((1000,), (5,), (rows(x), rows(y)), SOFTMAX, ((5, 1),))
    assert isinstance(generator(nest), SideBySide)
    run(nest, [x, y])
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), 2e-6)


@pytest.mark.parametrize("kind", ["ones", "uniform"])
def test_sums_side_by_side_are_precise(kind: str) -> None:
    x = np.ones((100_000, 20), "f") if kind == "ones" else np.random.default_rng(3).random((100_000, 20), "f")
    out = np.zeros(20, "f")
    steps = (load(0), step("sum", 0, over="inner"))
    nest = Nest((20,), (100_000,), (access(x, (1,), (20,)), access(out, (1,), (0,))), steps, ((1, 1),))
    assert isinstance(generator(nest), SideBySide)
    run(nest, [x, out])
    np.testing.assert_allclose(out, x.sum(0, "d"), 1e-6)


def test_divisions_by_sums_of_any_size() -> None:
    sizes = np.array([0.0, -0.0, 1e-44, -1e-40, 1e-38, 1e-20, 1, 1e20, 1e37, 3e38, -3e38, np.inf, np.nan], "f")
    x = np.concatenate([sizes, [2, -3, 1e-30, 1e30]]).astype("f")
    y = np.zeros((len(sizes), len(x)), "f")
    steps = (load(0), load(1), step("sum", 1, over="inner"), step("divide", 0, 2))
    nest = Nest((len(sizes),), (len(x),), (column(x), access(sizes, (1,), (0,)), rows(y)), steps, ((3, 2),))
    run(nest._replace(steps=(*steps[:2], step("max", 1, over="inner"), steps[3])), [x, sizes, y])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, x / sizes[:, None])
        totals = np.repeat(sizes, len(x)).reshape(len(sizes), -1).sum(1, "d").astype("f")
        run(nest, [x, sizes, y])
        np.testing.assert_allclose(y, x / totals[:, None], 1e-6, 1e-44)


def test_the_largest_element_is_found_again() -> None:
    """It equals the maximum although it is computed twice, from a product and a sum that could be rounded once."""
    x, w, y = numbers(200, 33), numbers(33, seed=1), np.zeros((200, 33), bool)
    steps = (
        load(0), step("exp", 0), load(1), step("multiply", 1, 2), step("add", 3, 0), step("max", 4, over="inner"),
        step("equal", 4, 5, dtype="?"),
    )  # fmt: skip
    run(Nest((200,), (33,), (rows(x), column(w), rows(y)), steps, ((6, 2),)), [x, w, y])
    assert (y.sum(1) >= 1).all()


@pytest.mark.parametrize("count", [2, 500])
def test_what_is_the_same_at_all_outer_places_is_computed_once(count: int) -> None:
    x, variance, weight, y = numbers(count, 70), np.abs(numbers(70)), numbers(70, seed=1), np.zeros((count, 70), "f")
    steps = (
        load(0), load(1), constant(1e-5), step("add", 1, 2), step("sqrt", 3), load(2), step("divide", 5, 4),
        step("multiply", 0, 6),
    )  # fmt: skip
    nest = Nest((count,), (70,), (rows(x), column(variance), column(weight), rows(y)), steps, ((7, 3),))
    assert generator(nest).plan.first.steps == ([1, 3, 4, 5, 6] if count > 4 else [])
    run(nest, [x, variance, weight, y])
    np.testing.assert_array_equal(y, x * (weight / np.sqrt(variance + np.float32(1e-5))))


@pytest.mark.parametrize("shape", [(40, 50), (16, 17)])
def test_transpositions(shape: tuple[int, int]) -> None:
    x, b, y = numbers(*shape), numbers(shape[0], seed=1), np.zeros(shape[::-1], "f")
    ways = (access(x, (1, shape[1])), access(b, (0, 1)), access(y, (shape[0], 1)))
    nest = Nest(shape[::-1], (), ways, (load(0), load(1), step("add", 0, 1)), ((2, 2),))
    assert isinstance(generator(nest), SideBySide)
    run(nest, [x, b, y], [(i, i + 1) for i in range(shape[1])])
    np.testing.assert_array_equal(y, x.T + b)
    y[...] = 0
    run(nest, [x, b, y])
    np.testing.assert_array_equal(y, x.T + b)


# Precision of sums


@pytest.mark.parametrize("kind", ["ones", "uniform", "normal"])
@pytest.mark.parametrize("over", ["inner", "outer", "both", "columns"])
def test_sums_of_many_are_precise(kind: str, over: str) -> None:
    size = 3_000_000
    rng = np.random.default_rng(3)
    makers: dict[str, Any] = {"ones": np.ones, "uniform": rng.random, "normal": rng.standard_normal}
    x = makers[kind](size).astype("f")
    outer, inner = {
        "inner": ((), (size,)),
        "outer": ((size,), ()),
        "both": ((3000,), (1000,)),
        "columns": ((size // 8,), (8,)),
    }[over]
    shape = (*outer, *inner)
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    way = access(x, strides[: len(outer)], strides[len(outer) :])
    if over == "both":
        steps = (load(0), step("sum", 0, over="inner"), step("sum", 1, over="outer"))
    else:
        steps = (load(0), step("sum", 0, over="inner" if over == "inner" else "outer"))
    out = np.zeros(8 if over == "columns" else 1, "f")
    target = access(out, (0,) * len(outer), (1,) if over == "columns" else (0,) * len(inner))
    run(Nest(outer, inner, (way, target), steps, ((len(steps) - 1, 1),)), [x, out])
    terms = x.reshape(-1, 8) if over == "columns" else x.reshape(-1, 1)
    assert (np.abs(out - terms.sum(0, "d")) <= 2e-7 * np.abs(terms).sum(0, "d")).all()
    if kind != "normal":
        np.testing.assert_allclose(out, terms.sum(0, "d"), 1e-6)


def test_sums_over_the_outer_space_in_tiles() -> None:
    x, total, largest = numbers(5, 20_011), np.zeros(20_011, "f"), np.zeros(20_011, "f")
    x[2, 7] = np.nan
    steps = (load(0), step("sum", 0, over="outer"), step("max", 0, over="outer"))
    run(Nest((5,), (20_011,), (rows(x), column(total), column(largest)), steps, ((1, 1), (2, 2))), [x, total, largest])
    np.testing.assert_allclose(total, x.sum(0), 1e-5, 1e-6)
    np.testing.assert_array_equal(largest, x.max(0))


# Edges


def test_spaces_without_places() -> None:
    x, y, s, c = numbers(3, 4), np.full((3, 4), 7, "f"), np.full(3, 7, "f"), np.full(4, 7, "f")
    steps = (load(0), step("exp", 0), step("sum", 1, over="inner"), step("sum", 1, over="outer"))
    for outer, inner in ((0, 4), (3, 0)):
        ways = (access(x, (4,), (1,)), access(y, (4,), (1,)), access(s, (1,), (0,)), access(c, (0,), (1,)))
        run(Nest((outer,), (inner,), ways, steps, ((1, 1), (2, 2), (3, 3))), [x, y, s, c])
        assert (y == 7).all()
        assert (s == (7 if outer == 0 else 0)).all()
        assert (c == 0).all()
    run(Nest((0, 5), (), (access(x, (4, 1)),) * 2, steps[:2], ((1, 1),)), [x, y])
    assert (y == 7).all()


DIVIDED = {
    "elementwise": (load(0), step("negative", 0)),
    "sum of each row": (load(0), step("sum", 0, over="inner")),
    "sum of each column": (load(0), step("sum", 0, over="outer")),
    "softmax": SOFTMAX,
}


@pytest.mark.parametrize("case", DIVIDED)
@pytest.mark.parametrize("shape", [(1, 12), (12, 1), (3, 4), (70, 33)])
def test_a_kernel_in_parts_computes_the_same(shape: tuple[int, int], case: str) -> None:
    x, whole, halves = numbers(*shape), np.zeros(shape, "f"), np.zeros(shape, "f")
    steps = DIVIDED[case]
    result = {"inner": (shape[1], 0), "outer": (0, 1), "": (shape[1], 1)}[steps[-1].over]
    ways = (rows(x), access(whole, result[:1], result[1:]))
    nest = Nest(shape[:1], shape[1:], ways, steps, ((len(steps) - 1, 1),))
    run(nest, [x, whole])
    extent = kernel(nest).extent
    ranges = [(extent // 2, extent), (0, extent // 2)]
    run(nest, [x, halves], ranges)
    np.testing.assert_array_equal(halves, whole)
    if extent > 1:
        untouched = np.zeros(shape, "f")
        run(nest, [x, untouched], ranges[:1])
        assert (untouched != whole).any()


def test_what_a_kernel_says_of_itself() -> None:
    x, y = numbers(1200, 80), np.zeros((1200, 80), "f")
    nest = Nest((1200,), (80,), (rows(x), rows(y)), SOFTMAX, ((5, 1),))
    softmax = kernel(nest)
    assert (softmax.extent, softmax.begin, softmax.parts) == (1200, 0, 1)
    assert softmax.scratch >= 320
    assert kernel(nest) is softmax
    assert divided(softmax, nest, 2)[2:] == (2 * softmax.scratch, 0, 2)
    assert divided(softmax, nest, 4).parts == 2  # more would be too little work for each
    assert divided(softmax._replace(extent=1), nest, 4).parts == 1
    steps = (load(0), step("sum", 0, over="outer"), step("sum", 0, over="inner"))
    both = kernel(Nest((1200,), (80,), (rows(x), column(y), Access("f", (1,), (0,))), steps, ((1, 1), (2, 2))))
    assert both.extent == 1  # sums of rows and of columns: no loop can be divided


def test_zeros_of_both_signs_are_different_constants() -> None:
    for zero in (0.0, -0.0):
        y = np.ones(3, "f")
        run(Nest((3,), (), (access(y, (1,)),), (constant(zero),), ((0, 0),)), [y])
        assert np.signbit(y).all() == np.signbit(zero)


@pytest.mark.parametrize(
    "wrong", [step("exp", 0, dtype="l"), step("matmul", 0), step("sum", 0), step("exp", 0, over="inner"), load(0, "F")]
)
def test_what_has_no_machine_code_is_an_error(wrong: Step) -> None:
    with pytest.raises(TypeError, match=r"has no machine code: (flnb.*supported is False|expected over=)"):
        kernel(Nest((3,), (), (access(np.zeros(3, "f"), (1,)),), (load(0), wrong), ()))


def test_stores_convert() -> None:
    x, y = np.array([0.0, 1.7, -2.9, np.nan], "f"), np.zeros(4, bool)
    run(Nest((4,), (), (access(x, (1,)), access(y, (1,))), (load(0),), ((0, 1),)), [x, y])
    assert y.tolist() == [False, True, True, True]


def test_what_is_the_same_everywhere_may_be_read_by_what_is_computed_once() -> None:
    row, table = Access("f", (0,), (1,)), Access("f", (5,), (1,))
    number = Access("f", (0,), (0,))
    steps = (
        Step("load", (), "f", attribute=0), Step("load", (), "f", attribute=1), Step("exp", (1,), "f"),
        Step("multiply", (0, 2), "f"), Step("exp", (3,), "f"), Step("load", (), "f", attribute=2),
        Step("add", (4, 5), "f"),
    )  # fmt: skip
    nest = Nest((7,), (5,), (row, number, table, table), steps, ((6, 3),))
    rng = np.random.default_rng(0)
    arrays = [rng.random(n).astype(np.float32) for n in (5, 1, 35, 35)]
    expected = np.exp(arrays[0] * np.exp(arrays[1])) + arrays[2].reshape(7, 5)
    run(nest, arrays)
    np.testing.assert_allclose(arrays[3].reshape(7, 5), expected, rtol=1e-5)
