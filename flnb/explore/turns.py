"""Fair comparison on a machine that others use too: work done in turn, and ratios taken round by round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from flnb_telemetry import tables

__all__ = ["Spread", "in_turn", "ratios", "table"]

Who = TypeVar("Who")
Found = TypeVar("Found")


class Spread(NamedTuple):
    """The median of some numbers with the least and the most of them.

    >>> Spread.of([3.0, 1.0, 2.0])
    Spread(median=2.0, least=1.0, most=3.0)
    """

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of one number or more; ValueError of none."""
        numbers = sorted(values)
        if not numbers:
            raise ValueError("Spread.of: expected one number or more, got none")
        return cls(statistics.median(numbers), numbers[0], numbers[-1])


def in_turn(who: Sequence[Who], work: Callable[[Who], Found], rounds: int) -> list[list[Found]]:
    """The results of `work` for each, a list of one entry a round; another is the first in each round.

    >>> in_turn("ab", str.upper, rounds=2)
    [['A', 'A'], ['B', 'B']]
    """
    found: list[list[Found]] = [[] for _ in who]
    for i in range(rounds):
        for step in range(len(who)):
            which = (i + step) % len(who)
            found[which].append(work(who[which]))
    return found


def ratios(over: Sequence[float], under: Sequence[float]) -> Spread:
    """The spread of the rounds' ratios of two lists with an entry a round: a slow round slows both.

    >>> ratios([2.0, 9.0, 4.0], [1.0, 3.0, 2.0])
    Spread(median=2.0, least=2.0, most=3.0)
    """
    return Spread.of(a / b for a, b in zip(over, under, strict=True))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of equal keys as aligned text.

    >>> print(table([{"a": 1, "name": "x"}, {"a": 10, "name": "yy"}]))
    a   name
    1   x
    10  yy
    """
    if not rows:
        return "(no rows)"
    names = list(rows[0])
    return "\n".join(tables.lines([names, *([str(row[name]) for name in names] for row in rows)]))
