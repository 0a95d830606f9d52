"""Repetitions in a sequence, by which repeated blocks of module calls become one item of the tape's tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.schema import Ints

PERIOD = 256
"""The largest number of elements in a repeated block."""
REPEATS, REPEATED_OPS = 3, 8
"""The fewest repetitions of a block; the fewest elements of a repetition if all of them are single ops."""


def folds(kind: NDArray[np.uint64], single: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Divide a sequence into entries: repetitions of a block of elements, and single elements.

    Where repetitions overlap, the period is chosen whose repetitions cover most elements of the sequence; of equally
    good periods, the shortest.

    Args:
        kind: the elements; equal numbers are equal elements.
        single: marks the elements that are single ops; a repetition of single ops alone must have `REPEATED_OPS`.

    Returns:
        The bounds of the entries, and for each entry the length of the repeated block, 0 for a single element.

    >>> cut, period = folds(np.array([7, 1, 2, 1, 2, 1, 2, 9], np.uint64), np.zeros(8, bool))
    >>> cut.tolist(), period.tolist()
    ([0, 1, 7, 8], [0, 2, 0])
    """
    size = len(kind)
    runs: list[tuple[int, int, Ints, Ints]] = []  # (-calls covered, period, first, last)
    for period in range(1, min(PERIOD, size // REPEATS) + 1):
        equal = kind[period:] == kind[:-period]
        if np.count_nonzero(equal) < max((REPEATS - 1) * period, size // 20):
            continue  # no repetition that would make a long sequence short
        edge = np.flatnonzero(np.diff(equal.view(np.int8), prepend=0, append=0))
        first, length = edge[::2], edge[1::2] - edge[::2]
        last = first + (length + period) // period * period
        ops = np.append(0, np.cumsum(single))
        keep = last - first >= np.where(ops[last] - ops[first] == last - first, REPEATED_OPS, REPEATS * period)
        keep &= last - first >= REPEATS * period
        if keep.any():
            runs.append((-int((last - first)[keep].sum()), period, first[keep], last[keep]))
            if -runs[-1][0] >= size - period:
                break  # nothing can cover more
    taken = np.zeros(size, np.bool_)
    chosen: list[tuple[int, int]] = []
    for _, period, first, last in sorted(runs, key=lambda run: run[:2])[:8]:
        used = np.append(0, np.cumsum(taken))
        for a, b in zip(*(x[used[last] == used[first]].tolist() for x in (first, last)), strict=True):
            if not taken[a]:  # repetitions of one period may share their last block
                taken[a:b] = True
                chosen.append((a, period))
    begins = ~taken
    periods = np.zeros(size, np.int64)
    for a, period in chosen:
        begins[a] = True
        periods[a] = period
    cut = np.append(np.flatnonzero(begins), size)
    return cut, periods[cut[:-1]]
