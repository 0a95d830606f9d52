"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from flnb_telemetry.safe_text import safe_text

LONGEST = 120  # characters of a cell


def lines(rows: Sequence[Sequence[str]], sides: str = "<") -> list[str]:
    """Rows of texts, aligned; `sides` says how each column is, "<" or ">", its last for all that follow.

    A text of several lines makes its row as high; names are made safe to show.

    >>> lines([("op", "count"), ("add", "7")], "<>")
    ['op   count', 'add      7']
    >>> lines([("op", "time\\nper call"), ("add", "7 ns")], "<>")
    ['op       time', '     per call', 'add      7 ns']
    """
    rows = [line for row in rows for line in zip_longest(*(_parts(cell) for cell in row), fillvalue="")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = sides.ljust(len(widths), sides[-1])[: len(widths)]
    return ["  ".join(f"{c:{s}{w}}" for c, s, w in zip(row, sides, widths, strict=True)).rstrip() for row in rows]


def _parts(cell: str) -> list[str]:
    return [safe_text(line, LONGEST) for line in cell.split("\n")]
