"""Tables of texts, formatted for terminals and as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from flnb_telemetry.safe_text import html_text, safe_text

LONGEST = 120  # characters of a cell
CELL = "padding:1px 6px;vertical-align:top;text-align:"


class Markup(str):
    """A text that is already HTML and is not escaped in tables."""

    __slots__ = ()


def lines(rows: Sequence[Sequence[str]], sides: str = "<", longest: int = LONGEST) -> list[str]:
    """Align rows of texts in columns and return the lines.

    Args:
        rows: the texts of each row; a text of several lines makes its row higher. Control characters are escaped.
        sides: the alignment of each column, "<" (left) or ">" (right); the last one is used for all further columns.
        longest: the most characters of a cell; longer texts are shortened.

    >>> lines([("op", "count"), ("add", "7")], "<>")
    ['op   count', 'add      7']
    >>> lines([("op", "time\\nper call"), ("add", "7 ns")], "<>")
    ['op       time', '     per call', 'add      7 ns']
    """
    split = [[[safe_text(line, longest) for line in cell.split("\n")] for cell in row] for row in rows]
    rows = [line for row in split for line in zip_longest(*row, fillvalue="")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = sides.ljust(len(widths), sides[-1])[: len(widths)]
    return ["  ".join(f"{c:{s}{w}}" for c, s, w in zip(row, sides, widths, strict=True)).rstrip() for row in rows]


def html(rows: Iterable[Sequence[str]], sides: str = "<", caption: str = "", titles: bool = True) -> str:
    """Return rows of texts as an HTML table with a caption; with `titles`, the first row has the columns' titles.

    `sides` has the alignment of each column, as for `lines`.

    >>> html([("op", "count"), ("add<", Markup("<b>7</b>"))]).count("<b>")
    1
    """
    made = "" if not caption else f'<caption style="text-align:left">{html_text(caption)}</caption>'
    for number, row in enumerate(rows):
        titled = titles and not number
        cells = zip(sides.ljust(len(row), sides[-1]), row, strict=False)
        made += "<tr>" + "".join(_cell("th" if titled and cell else "td", side, cell) for side, cell in cells) + "</tr>"
    table = f'<table style="font-variant-numeric:tabular-nums;border-collapse:collapse">{made}</table>'
    return f'<div style="overflow-x:auto" tabindex="0">{table}</div>'  # the keyboard scrolls it


def _cell(tag: str, side: str, cell: str) -> str:
    """Return the text `cell` as the HTML element `tag`, aligned to the left ("<") or right (">") by `side`."""
    text = cell if isinstance(cell, Markup) else html_text(cell)
    side = "right;white-space:nowrap" if side == ">" and tag == "td" else "right" if side == ">" else "left"
    return f'<{tag} style="{CELL}{side}">{text}</{tag}>'
