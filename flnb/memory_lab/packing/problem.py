"""What is to be packed, in sections of time, and taken apart into what has nothing to do with each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb_telemetry.schema import Ints

__all__ = ["Problem", "taken_apart"]


@dataclass(frozen=True, eq=False)
class Problem:
    """Blocks by the sections of time that they live in: begin, end (sections), nbytes; int64 (n,) each.

    >>> Problem.of(born=np.array([0, 1, 2]), died=np.array([2, 3, 4]), nbytes=np.array([1, 1, 1])).sections
    2
    """

    begin: Ints
    end: Ints
    nbytes: Ints

    @classmethod
    def of(cls, born: Ints, died: Ints, nbytes: Ints) -> Problem:
        """Blocks that live in [born, died).

        A section ends where something dies and something was born since the last one: at any other time there is no
        more than at the end of its section.
        """
        ends = np.unique(died)
        births = np.searchsorted(np.sort(born), ends, "left")  # before each end
        ends = ends[np.diff(births, prepend=0) > 0]
        return cls(np.searchsorted(ends, born, "right"), np.searchsorted(ends, died, "right"), nbytes)

    @property
    def sections(self) -> int:
        """How many there are."""
        return int(self.end.max(initial=0))

    @property
    def live(self) -> Ints:
        """Bytes in each section."""
        change = np.zeros(self.sections + 1, np.int64)
        np.add.at(change, self.begin, self.nbytes)
        np.subtract.at(change, self.end, self.nbytes)
        return np.cumsum(change)[:-1]

    @property
    def key(self) -> bytes:
        """Equal for problems that are."""
        return self.begin.tobytes() + self.end.tobytes() + self.nbytes.tobytes()


def taken_apart(whole: Problem, offsets: Ints) -> Iterator[tuple[Problem, Ints, int]]:
    """Parts that nothing connects, each with the rows of its blocks and the offset from which on they lie.

    What lives all the time of a part goes below everything else in it: wherever else it lay, every other block would
    be entirely above or below it, and could change places with it. Its offset is written at once. It may have been all
    that held the part together.
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
    """The blocks in groups that share no section, in each by row."""
    if len(blocks):
        by_begin = blocks[np.argsort(problem.begin[blocks], kind="stable")]
        reached = np.maximum.accumulate(problem.end[by_begin])
        cuts = np.flatnonzero(problem.begin[by_begin][1:] >= reached[:-1]) + 1
        yield from map(np.sort, np.split(by_begin, cuts))
