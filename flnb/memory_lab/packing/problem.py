"""The packing problem: blocks whose lifetimes are ranges of sections of time, and its independent parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb_telemetry.schema import Ints


@dataclass(frozen=True, eq=False)
class Problem:
    """Blocks to be packed, with lifetimes as ranges [begin, end) of sections of time; int64 (n,) columns.

    >>> Problem.of(born=np.array([0, 1, 2]), died=np.array([2, 3, 4]), nbytes=np.array([1, 1, 1])).sections
    2
    """

    begin: Ints
    end: Ints
    nbytes: Ints

    @classmethod
    def of(cls, born: Ints, died: Ints, nbytes: Ints) -> Problem:
        """Make the problem of blocks with lifetimes [born, died), integers in any unit of time.

        A section of time ends at the first death of a block after a birth. So a block that is live at any time in a
        section is also live at the end of the section.
        """
        ends = np.unique(died)
        births = np.searchsorted(np.sort(born), ends, "left")  # before each end
        ends = ends[np.diff(births, prepend=0) > 0]
        return cls(np.searchsorted(ends, born, "right"), np.searchsorted(ends, died, "right"), nbytes)

    @property
    def sections(self) -> int:
        """The number of sections."""
        return int(self.end.max(initial=0))

    @property
    def live(self) -> Ints:
        """The live bytes in each section, int64 (sections,)."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.begin, self.nbytes)
        np.subtract.at(change, self.end, self.nbytes)
        return np.cumsum(change)[:-1]

    @property
    def key(self) -> bytes:
        """Return a key (bytes) that is the same for equal problems."""
        return self.begin.tobytes() + self.end.tobytes() + self.nbytes.tobytes()


def taken_apart(whole: Problem, offsets: Ints) -> Iterator[tuple[Problem, Ints, int]]:
    """Split a problem into independent parts; yield each as (part, rows of its blocks, offset).

    Blocks that are live during the whole time of a part are placed below all other blocks of the part, and their
    offsets are written to ``offsets`` immediately. This excludes no better packing: in every packing, such a block
    overlaps no other block in memory, so it can be moved to the bottom and the blocks below it can be moved up. The
    rest of the part may then be divided further.
    """
    todo = [(np.arange(len(whole.nbytes)), 0)]
    while todo:
        rows, base = todo.pop()
        problem = Problem.of(whole.begin[rows], whole.end[rows], whole.nbytes[rows])
        always = (problem.begin == 0) & (problem.end == problem.sections)
        sizes = problem.nbytes[always]
        offsets[rows[always]] = base + np.cumsum(sizes) - sizes
        base += int(sizes.sum())
        groups = list(_apart(problem, np.flatnonzero(~always)))
        if len(groups) == 1 and not always.any():
            yield problem, rows, base
        else:
            todo += [(rows[group], base) for group in groups]


def _apart(problem: Problem, blocks: Ints) -> Iterator[Ints]:
    """Divide ``blocks`` (row numbers) into groups whose lifetimes do not overlap, and yield each group."""
    if len(blocks):
        by_begin = blocks[np.argsort(problem.begin[blocks], kind="stable")]
        reached = np.maximum.accumulate(problem.end[by_begin])
        cuts = np.flatnonzero(problem.begin[by_begin][1:] >= reached[:-1]) + 1
        yield from map(np.sort, np.split(by_begin, cuts))
