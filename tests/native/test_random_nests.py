"""Kernels of random nests against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flnb.graph.loops import simplified
from flnb.graph.nests import Nest, Step
from tests.native.oracle import Array, access, constant, expected, load, run, step, view

EXACT = ["add", "subtract", "multiply", "divide", "negative", "abs", "maximum", "minimum", "square"]
SMOOTH = ["exp", "tanh", "erf"]
COMPARISONS = ["less", "greater_equal", "equal", "not_equal"]


@st.composite
def spaces(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    extents = st.lists(st.sampled_from([1, 2, 3, 5, 8, 17, 40]), max_size=2)
    return tuple(draw(extents)), tuple(draw(extents))


def strided(
    draw: st.DrawFn, extents: tuple[int, ...], used: list[bool], dtype: str, rng: Any
) -> tuple[Array, list[int]]:
    """An array with an element for each place of the loops that are used, in any order, with gaps or backwards.

    Returns it from its first element, and the strides.
    """
    order = draw(st.permutations(range(len(extents))))
    strides, size = [0] * len(extents), draw(st.integers(1, 2))
    for i in order:
        if used[i]:
            strides[i] = size
            size *= extents[i]
    backwards = draw(st.integers(0, len(extents) - 1)) if extents and draw(st.integers(0, 3)) == 0 else None
    start = 0
    if backwards is not None and strides[backwards]:
        start = strides[backwards] * (extents[backwards] - 1)
        strides[backwards] *= -1
    numbers = rng.standard_normal(size)
    array = numbers > 0 if dtype == "?" else (numbers * 3).astype(dtype)
    if dtype in "fd" and draw(st.booleans()):
        array[rng.integers(0, size, 2)] = draw(st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0]))
    return array[start:], strides


class Maker:
    """Draws a nest of one dtype and its arrays, and remembers which values are the same in NumPy to the bit."""

    def __init__(self, draw: st.DrawFn):
        self.draw = draw
        self.outer, self.inner = draw(spaces())
        self.dtype = draw(st.sampled_from("ffffdl"))
        self.rng = np.random.default_rng(draw(st.integers(0, 9)))
        self.steps: list[Step] = []
        self.depends: list[tuple[bool, ...]] = []
        self.exact: list[bool] = []
        self.arrays: list[Array] = []
        self.ways: list[Any] = []
        self.stores: list[tuple[int, int]] = []
        self.loaded: set[int] = set()

    def add(self, new: Step, depends: tuple[bool, ...], exact: bool) -> int:
        self.steps.append(new)
        self.depends.append(depends)
        self.exact.append(exact)
        return len(self.steps) - 1

    def array(self, used: tuple[bool, ...], dtype: str) -> int:
        array, strides = strided(self.draw, self.outer + self.inner, list(used), dtype, self.rng)
        self.arrays.append(array)
        self.ways.append(access(array, strides[: len(self.outer)], strides[len(self.outer) :]))
        return len(self.arrays) - 1

    def loads(self) -> None:
        for _ in range(self.draw(st.integers(1, 3))):
            used = tuple(self.draw(st.sampled_from([True, True, True, False])) for _ in self.outer + self.inner)
            dtype = self.draw(st.sampled_from([self.dtype] * 4 + ["?", "f", "i"])) if self.dtype != "l" else "l"
            position = self.array(used, dtype)
            self.loaded.add(position)
            i = self.add(load(position, dtype), used, True)
            if dtype != self.dtype:
                self.add(step("astype", i, dtype=self.dtype), used, True)

    def any_of(self, dtype: str, exact: bool = False) -> int | None:
        found = [
            i
            for i, each in enumerate(self.steps)
            if each.dtype == dtype and each.over != "outer" and (self.exact[i] or not exact)
        ]
        return self.draw(st.sampled_from(found)) if found else None

    def pointwise(self) -> None:
        a, b = self.any_of(self.dtype), self.any_of(self.dtype)
        assert a is not None
        assert b is not None
        if self.draw(st.integers(0, 3)) == 0:
            b = self.add(constant(self.draw(st.sampled_from([0, 1, 2, -3])), self.dtype), self.depends[0], True)
            self.depends[b] = (False,) * len(self.depends[a])
        op = self.draw(
            st.sampled_from(EXACT if self.dtype != "l" else ["add", "subtract", "multiply", "maximum", "abs"])
        )
        if op in ("negative", "abs", "square"):
            self.add(step(op, a, dtype=self.dtype), self.depends[a], self.exact[a])
        else:
            depends = tuple(x or y for x, y in zip(self.depends[a], self.depends[b], strict=True))
            self.add(step(op, a, b, dtype=self.dtype), depends, self.exact[a] and self.exact[b])

    def smooth(self) -> None:
        a = self.any_of(self.dtype)
        assert a is not None
        if self.dtype != "l":
            self.add(step(self.draw(st.sampled_from(SMOOTH)), a, dtype=self.dtype), self.depends[a], False)

    def choose(self) -> None:
        a, b = self.any_of(self.dtype, True), self.any_of(self.dtype, True)
        if a is None or b is None:
            return
        depends = tuple(x or y for x, y in zip(self.depends[a], self.depends[b], strict=True))
        c = self.add(step(self.draw(st.sampled_from(COMPARISONS)), a, b, dtype="?"), depends, True)
        x = self.any_of(self.dtype)
        assert x is not None
        depends = tuple(p or q for p, q in zip(depends, self.depends[x], strict=True))
        self.add(step("where", c, x, b, dtype=self.dtype), depends, self.exact[x])

    def reduction(self, over: str) -> None:
        bools = self.any_of("?")
        if bools is not None and self.draw(st.booleans()):
            a, op = bools, self.draw(st.sampled_from(["any", "all", "sum"]))
            dtype = "l" if op == "sum" else "?"
        else:
            found = self.any_of(self.dtype)
            assert found is not None
            ops = ["sum", "max", "min"]
            if math.prod(self.outer if over == "outer" else self.inner) <= 32:  # the errors of factors add up
                ops.append("prod")
            a, op, dtype = found, self.draw(st.sampled_from(ops)), self.dtype
        split, depends = len(self.outer), self.depends[a]
        left = (
            (*depends[:split], *[False] * len(self.inner)) if over == "inner" else (*[False] * split, *depends[split:])
        )
        exact = self.exact[a] and (dtype not in "fd" or op in ("max", "min"))
        i = self.add(step(op, a, dtype=dtype, over=over), left, exact)
        if over == "outer":
            self.store(i)
        elif dtype != self.dtype and self.dtype != "l":
            self.add(step("astype", i, dtype=self.dtype), left, exact)

    def store(self, i: int) -> None:
        split = len(self.outer)
        rows = not any(self.depends[i][split:])  # the same at all inner places: at times stored once for these
        used = [True] * split if self.steps[i].over != "outer" else [False] * split
        used += [not (rows and self.draw(st.booleans()))] * len(self.inner)
        if self.steps[i].over == "inner":
            used[split:] = [False] * len(self.inner)
        places = self.draw(st.booleans()) and self.in_place(used, self.steps[i])
        self.stores.append((i, places if places else self.array(tuple(used), self.steps[i].dtype)))

    def in_place(self, used: list[bool], stored: Step) -> int:
        """The position of the memory of an array that is loaded, which has an element for the same places; or 0."""
        shape = self.outer + self.inner
        for position, (array, way) in enumerate(zip(self.arrays, self.ways, strict=True)):
            same = all(
                n == 1 or (stride != 0) == u for n, stride, u in zip(shape, (*way.outer, *way.inner), used, strict=True)
            )
            taken = any(self.arrays[other] is array for _, other in self.stores)
            if (
                same
                and not taken
                and array.dtype.char == stored.dtype
                and stored.over != "outer"
                and position in self.loaded
            ):
                if self.draw(st.booleans()):
                    return position
                self.arrays.append(array)
                self.ways.append(way)
                return len(self.arrays) - 1
        return 0

    def nest(self) -> tuple[Nest, list[Array]]:
        self.array((False,) * len(self.outer + self.inner), self.dtype)  # position 0 is not loaded
        self.loads()
        makers = [self.pointwise, self.pointwise, self.smooth, self.choose, lambda: self.reduction("inner")]
        for _ in range(self.draw(st.integers(1, 7))):
            self.draw(st.sampled_from(makers))()
        for _ in range(self.draw(st.integers(0, 2))):
            self.reduction("outer")
        free = [i for i, each in enumerate(self.steps) if each.over != "outer" and each.op != "constant"]
        for i in self.draw(st.lists(st.sampled_from(free), min_size=1, max_size=3, unique=True)):
            self.store(i)
        return Nest(self.outer, self.inner, tuple(self.ways), tuple(self.steps), tuple(self.stores)), self.arrays


@st.composite
def nests(draw: st.DrawFn) -> tuple[Nest, list[Array], list[bool]]:
    maker = Maker(draw)
    nest, arrays = maker.nest()
    return nest, arrays, maker.exact


def compare(nest: Nest, arrays: list[Array], wanted: list[Array], exact: list[bool]) -> None:
    for i, position in nest.stores:
        found, value = view(arrays[position], nest, position), wanted[i]
        if exact[i]:
            np.testing.assert_array_equal(found, value)
        else:
            tolerance = 1e-12 if nest.steps[i].dtype == "d" else 2e-4
            scale = np.abs(value[np.isfinite(value)]).max(initial=1e-30)
            np.testing.assert_allclose(found, value, tolerance, tolerance * float(scale))


@given(nests())
@settings(max_examples=150, deadline=None)
def test_random_nests(drawn: tuple[Nest, list[Array], list[bool]]) -> None:
    nest, arrays, exact = drawn
    wanted = [np.array(w) for w in expected(nest, arrays)]
    memory = [array if array.base is None else array.base for array in arrays]
    before = [whole.copy() for whole in memory]
    run(nest, arrays)
    compare(nest, arrays, wanted, exact)
    if "outer" not in {each.over for each in nest.steps}:
        for lane in range(len(simplified(nest).outer)):
            for whole, content in zip(memory, before, strict=True):
                whole[...] = content
            run(nest, arrays, lane=lane)
            compare(nest, arrays, wanted, exact)
