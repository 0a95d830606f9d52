"""Tables, for a terminal and as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from flnb_telemetry.safe_text import html_text, safe_text

LONGEST = 120  # characters of a cell
CELL = "padding:1px 8px;vertical-align:top;text-align:"


class Markup(str):
    """A cell that is HTML already."""

    __slots__ = ()


def lines(rows: Sequence[Sequence[str]], sides: str = "<", longest: int = LONGEST) -> list[str]:
    """Rows of texts, aligned; `sides` says how each column is, "<" or ">", its last for all that follow.

    A text of several lines makes its row as high; cells are made safe to show, of at most `longest` characters.

    >>> lines([("op", "count"), ("add", "7")], "<>")
    ['op   count', 'add      7']
    >>> lines([("op", "time\\nper call"), ("add", "7 ns")], "<>")
    ['op       time', '     per call', 'add      7 ns']
    """
    rows = [line for row in rows for line in zip_longest(*(_parts(cell, longest) for cell in row), fillvalue="")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = sides.ljust(len(widths), sides[-1])[: len(widths)]
    return ["  ".join(f"{c:{s}{w}}" for c, s, w in zip(row, sides, widths, strict=True)).rstrip() for row in rows]


def html(rows: Iterable[Sequence[str]], sides: str = "<", caption: str = "", titles: bool = True) -> str:
    """Rows of texts as an HTML table; `sides` as for `lines`. The first row has the titles, unless there are none.

    >>> html([("op", "count"), ("add<", Markup("<b>7</b>"))]).count("<b>")
    1
    """
    made = "" if not caption else f'<caption style="text-align:left">{html_text(caption)}</caption>'
    for number, row in enumerate(rows):
        tag = "th" if titles and not number else "td"
        cells = zip(sides.ljust(len(row), sides[-1]), row, strict=False)
        made += "<tr>" + "".join(_cell(tag, side, cell) for side, cell in cells) + "</tr>"
    return f'<table style="font-variant-numeric:tabular-nums;border-collapse:collapse">{made}</table>'


def _cell(tag: str, side: str, cell: str) -> str:
    text = cell if isinstance(cell, Markup) else html_text(cell)
    return f'<{tag} style="{CELL}{"right" if side == ">" else "left"}">{text}</{tag}>'


def _parts(cell: str, longest: int) -> list[str]:
    return [safe_text(line, longest) for line in cell.split("\n")]
