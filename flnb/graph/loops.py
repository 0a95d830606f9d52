"""Simplification of loop nests: removes trivial loops, merges adjacent ones, and orders them for vectorization."""

from __future__ import annotations

from typing import NamedTuple

from flnb.graph.nests import Access, Nest


class _Loop(NamedTuple):
    """One loop: its extent, and the stride of each array."""

    extent: int
    strides: tuple[int, ...]


def simplified(nest: Nest) -> Nest:
    """Return a simpler nest: without loops of extent 1, contiguous loops merged, the most regular loop innermost.

    Outer loops are not merged with inner ones, unless there is no reduction: then the last loop becomes the inner
    space.
    """
    outer = [_Loop(extent, tuple(a.outer[i] for a in nest.arrays)) for i, extent in enumerate(nest.outer)]
    inner = [_Loop(extent, tuple(a.inner[i] for a in nest.arrays)) for i, extent in enumerate(nest.inner)]
    if any(step.over for step in nest.steps):
        outer, inner = _merged(outer), _best_last(_merged(inner))
    else:
        loops = _best_last(_merged([*outer, *inner]))
        outer, inner = loops[:-1], loops[-1:]
    inner = inner or [_Loop(1, (0,) * len(nest.arrays))]
    arrays = tuple(
        Access(a.dtype, tuple(x.strides[i] for x in outer), tuple(x.strides[i] for x in inner))
        for i, a in enumerate(nest.arrays)
    )
    return nest._replace(outer=tuple(x.extent for x in outer), inner=tuple(x.extent for x in inner), arrays=arrays)


def _merged(loops: list[_Loop]) -> list[_Loop]:
    """Return loops without extents of 1, with adjacent loops merged if the strides of every array allow it."""
    done: list[_Loop] = []
    for loop in loops:
        if loop.extent == 1:
            continue
        last = done[-1] if done and loop.extent else None
        if last and all(a == b * loop.extent for a, b in zip(last.strides, loop.strides, strict=True)):
            done.pop()
            loop = _Loop(last.extent * loop.extent, loop.strides)
        done.append(loop)
    return done


def _best_last(loops: list[_Loop]) -> list[_Loop]:
    """Move the loop along which most arrays have stride 0 or 1 to the innermost position; return the loops."""
    if len(loops) < 2:
        return loops
    worst = [sum(abs(stride) > 1 or stride < 0 for stride in loop.strides) for loop in loops]
    best = max(range(len(loops)), key=lambda i: (-worst[i], i))
    return [*loops[:best], *loops[best + 1 :], loops[best]]
