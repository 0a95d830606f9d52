"""Simplified loops: fewer, with the best one innermost, over the same places."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from flnb.graph.loops import simplified
from flnb.graph.nests import Access, Nest, Step

LOAD = Step("load", (), "f", "", 0)
COPY = (LOAD, Step("copy", (0,), "f"))
SUM = (LOAD, Step("sum", (0,), "f", "inner"))


def nest(
    outer: tuple[int, ...], inner: tuple[int, ...], *strides: tuple[int, ...], steps: tuple[Step, ...] = COPY
) -> Nest:
    ways = tuple(Access("f", s[: len(outer)], s[len(outer) :]) for s in strides)
    return Nest(outer, inner, ways, steps, ((1, len(strides) - 1),))


def test_contiguous_arrays_have_one_loop() -> None:
    found = simplified(nest((4, 5), (6,), (30, 6, 1), (30, 6, 1)))
    assert (found.outer, found.inner) == ((), (120,))
    assert found.arrays == (Access("f", (), (1,)),) * 2


def test_reductions_keep_the_spaces_apart() -> None:
    found = simplified(nest((4, 5), (6, 1, 7), (210, 42, 7, 9, 1), (5, 1, 0, 0, 0), steps=SUM))
    assert (found.outer, found.inner) == ((20,), (42,))


def test_a_broadcast_array_needs_a_loop() -> None:
    found = simplified(nest((4, 5), (6,), (30, 6, 1), (0, 0, 1), (30, 6, 1)))
    assert (found.outer, found.inner) == ((20,), (6,))


def test_the_best_loop_is_the_last() -> None:
    found = simplified(nest((8, 9), (), (1, 8), (1, 8)))
    assert found.inner == (72,) or found.arrays[0].inner == (1,)


def test_no_loop_at_all() -> None:
    assert simplified(nest((), (), (), ()))[:2] == ((), (1,))
    assert simplified(nest((1,), (1, 1), (3, 4, 5), (0, 0, 0), steps=SUM))[:2] == ((), (1,))


EXTENTS = st.lists(st.sampled_from([0, 1, 1, 2, 3]), max_size=3).map(tuple)


@given(EXTENTS, EXTENTS, st.booleans(), st.data())
def test_the_places_are_the_same(
    outer: tuple[int, ...], inner: tuple[int, ...], reduces: bool, data: st.DataObject
) -> None:
    size = len(outer) + len(inner)
    strides = [tuple(data.draw(st.sampled_from([0, 1, 2, 3, 6])) for _ in range(size)) for _ in range(2)]
    original = nest(outer, inner, *strides, steps=SUM if reduces else COPY)

    def places(of: Nest) -> list[tuple[int, ...]]:
        ways = [(*a.outer, *a.inner) for a in of.arrays]
        return sorted(
            tuple(sum(i * s for i, s in zip(at, way, strict=True)) for way in ways)
            for at in product(*map(range, (*of.outer, *of.inner)))
        )

    assert places(simplified(original)) == places(original)
