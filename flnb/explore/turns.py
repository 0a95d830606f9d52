"""Fair timing on a shared machine: candidates run in turn, and their times are compared round by round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from flnb_telemetry import tables

Who = TypeVar("Who")
Found = TypeVar("Found")


class Spread(NamedTuple):
    """The median, minimum and maximum of some numbers.

    >>> from flnb.bench import Spread
    >>> Spread.of([3.0, 1.0, 2.0])
    Spread(median=2.0, least=1.0, most=3.0)
    """

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of one or more numbers.

        Raises:
            ValueError: there are no numbers.
        """
        numbers = sorted(values)
        if not numbers:
            raise ValueError("Spread.of: expected one number or more, got none")
        return cls(statistics.median(numbers), numbers[0], numbers[-1])


def in_turn(who: Sequence[Who], work: Callable[[Who], Found], rounds: int) -> list[list[Found]]:
    """Call ``work`` with each of the candidates ``who`` once per round; returns a list of results for each candidate.

    Each round begins with another candidate, so that none profits from its place in the order.

    >>> from flnb.bench import in_turn
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
    """Return the spread of ``over[i] / under[i]`` for two lists of times, which have one entry per round.

    The ratios are taken round by round, because a disturbance slows both candidates of a round.

    >>> from flnb.bench import ratios
    >>> ratios([2.0, 9.0, 4.0], [1.0, 3.0, 2.0])
    Spread(median=2.0, least=2.0, most=3.0)
    """
    return Spread.of(a / b for a, b in zip(over, under, strict=True))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Format dictionaries with the same keys as a table of aligned text; the keys are the titles.

    >>> from flnb.bench import table
    >>> print(table([{"a": 1, "name": "x"}, {"a": 10, "name": "yy"}]))
    a   name
    1   x
    10  yy
    """
    if not rows:
        return "(no rows)"
    names = list(rows[0])
    return "\n".join(tables.lines([names, *([str(row[name]) for name in names] for row in rows)]))
