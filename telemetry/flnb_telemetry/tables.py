"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def lines(rows: Sequence[Sequence[str]], sides: str = "<") -> list[str]:
    """Rows of texts, aligned; `sides` says how each column is, "<" or ">", its last for all that follow.

    >>> lines([("op", "count"), ("add", "7")], "<>")
    ['op   count', 'add      7']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = sides.ljust(len(widths), sides[-1])[: len(widths)]
    return ["  ".join(f"{c:{s}{w}}" for c, s, w in zip(row, sides, widths, strict=True)).rstrip() for row in rows]
