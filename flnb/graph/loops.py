"""Simplification of loop nests: removes trivial loops, merges adjacent ones, and orders them for vectorization."""

from __future__ import annotations

from typing import NamedTuple

from flnb.graph.nests import Access, Nest

__all__ = ["Simplified", "simplified"]


class Simplified(NamedTuple):
    """A nest with simpler loops that computes the same as an original nest.

    Attributes:
        nest: the simpler nest.
        ranged: the position, among the outer and then the inner loops, of the loop that contains the original nest's
            first outer loop.
        unit: the number of iterations of loop ``ranged`` for one iteration of the original nest's first outer loop.
    """

    nest: Nest
    ranged: int
    unit: int


class _Loop(NamedTuple):
    """One loop: its extent, the stride of each array, and ``unit``.

    ``unit`` is the number of iterations of this loop for one iteration of the original nest's first outer loop; 0 if
    this loop does not contain that loop.
    """

    extent: int
    strides: tuple[int, ...]
    unit: int


def simplified(nest: Nest) -> Simplified:
    """Return a simpler nest: without loops of extent 1, contiguous loops merged, the most regular loop innermost.

    Outer loops are not merged with inner ones, unless there is no reduction: then the last loop becomes the inner
    space.
    """
    outer = [
        _Loop(extent, tuple(a.outer[i] for a in nest.arrays), int(i == 0)) for i, extent in enumerate(nest.outer)
    ] or [_Loop(1, (0,) * len(nest.arrays), 1)]
    inner = [_Loop(extent, tuple(a.inner[i] for a in nest.arrays), 0) for i, extent in enumerate(nest.inner)]
    if any(step.over for step in nest.steps):
        outer, inner = _merged(outer), _best_last(_merged(inner))
    else:
        loops = _best_last(_merged([*outer, *inner]))
        outer, inner = loops[:-1], loops[-1:]
    inner = inner or [_Loop(1, (0,) * len(nest.arrays), 0)]
    arrays = tuple(
        Access(a.dtype, tuple(x.strides[i] for x in outer), tuple(x.strides[i] for x in inner))
        for i, a in enumerate(nest.arrays)
    )
    ranged = next(i for i, loop in enumerate([*outer, *inner]) if loop.unit)
    unit = [*outer, *inner][ranged].unit
    found = nest._replace(outer=tuple(x.extent for x in outer), inner=tuple(x.extent for x in inner), arrays=arrays)
    return Simplified(found, ranged, unit)


def _merged(loops: list[_Loop]) -> list[_Loop]:
    """Return loops without extents of 1, with adjacent loops merged if the strides of every array allow it."""
    done: list[_Loop] = []
    for loop in loops:
        if loop.extent == 1 and not loop.unit:
            continue
        last = done[-1] if done and loop.extent else None
        if last and (
            last.extent == 1 or all(a == b * loop.extent for a, b in zip(last.strides, loop.strides, strict=True))
        ):
            done.pop()
            loop = _Loop(last.extent * loop.extent, loop.strides, last.unit * loop.extent)
        done.append(loop)
    return done


def _best_last(loops: list[_Loop]) -> list[_Loop]:
    """Move the loop along which most arrays have stride 0 or 1 to the innermost position; return the loops."""
    if len(loops) < 2:
        return loops
    worst = [sum(abs(stride) > 1 or stride < 0 for stride in loop.strides) + (loop.extent == 1) for loop in loops]
    best = max(range(len(loops)), key=lambda i: (-worst[i], i))
    return [*loops[:best], *loops[best + 1 :], loops[best]]
