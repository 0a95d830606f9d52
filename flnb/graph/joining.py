"""Joining: packs independent loop nests that follow one another into a single kernel launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.graph.nests import Nest
    from flnb.graph.values import Value

Span = tuple[Any, int, int]
"""A range of memory: its owner, the offset of its first byte, and the offset after its last byte."""
MOST_ARRAYS = 256
"""The largest number of arrays of one launch; kernels have at most 4096 bytes of parameters."""


class NestCall(NamedTuple):
    """A loop nest together with the memory of its arrays.

    Attributes:
        nest: the loop nest.
        places: for each of the nest's arrays, the value in whose memory it is, and the offset (bytes) of its first
            element there.
        members: the values that the nest computes.
    """

    nest: Nest
    places: Sequence[tuple[Value, int]]
    members: Sequence[Value]


def joined(calls: Sequence[NestCall], spans: Sequence[Sequence[Span]], most: int) -> list[list[NestCall]]:
    """Divide consecutive nests into launches, so that no nest depends on another nest of the same launch.

    Args:
        calls: the nests in order.
        spans: for each nest, the memory range of each of its arrays.
        most: the largest number of nests in one launch.
    """
    found: list[list[NestCall]] = []
    read: list[Span] = []
    written: list[Span] = []
    count = 0
    for call, touched in zip(calls, spans, strict=True):
        stored = {position for _, position in call.nest.stores}
        writes = [touched[i] for i in sorted(stored)]
        count += len(touched)
        free = count <= MOST_ARRAYS and found and len(found[-1]) < most
        if not free or _overlap(touched, written) or _overlap(writes, read):
            found.append([])
            read, written, count = [], [], len(touched)
        found[-1].append(call)
        read += touched
        written += writes
    return found


def _overlap(some: Sequence[Span], others: Sequence[Span]) -> bool:
    """Return whether any memory span of ``some`` overlaps one of ``others``."""
    return any(a[0] is b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)
