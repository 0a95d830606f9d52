"""The report of an `OutOfMemoryError` as HTML, shown below the notebook cell that failed.

The report has a verdict, five numbers, a drawing of the memory segment that came closest to serving the request, the
blocks in the way, and remedies. Remedies that help come first. Everything in the drawing is also in the tables.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnb_telemetry import palette, quantity, schema, tables
from flnb_telemetry.safe_text import WHOLE, html_text
from flnb_telemetry.tables import Markup

from flnb.memory_lab import report_text
from flnb.show.remedying import action

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flnb.interface.memory import BlockState
    from flnb.memory_lab.postmortem import Blocker, Postmortem
    from flnb.memory_lab.remedies import Remedies, Remedy

NARROW = 7.0  # percent of the width below which a block has no label
RIGHT = ("Size", "Age")


def _variables(theme: int) -> str:
    """Return CSS variables with each memory category's colour, and a colour for text on it, in a theme.

    ``theme`` is 0 for JupyterLab's light theme, 1 for the dark one.
    """
    found = ""
    for name, colours in palette.CATEGORY.items():
        parts = [int(colours[theme][i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        found += f"--{name}:{colours[theme]};--on-{name}:{'#000' if (light + 0.05) ** 2 > 0.0525 else '#fff'};"
    return found


@cache
def _style_and_script() -> tuple[str, str]:
    """Return an HTML element with the style sheet, and one with the script, which adds buttons to the remedies."""
    style = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    script = (Path(__file__).parents[1] / "widgets" / "static" / "card.js").read_text(encoding="utf-8")
    style = style.replace("/*light*/", _variables(0)).replace("/*dark*/", _variables(1))
    return f"<style>{style}</style>", f"<script>{script}</script>"


def postmortem_html(report: Postmortem) -> str:
    """Return the report as HTML for JupyterLab's light and dark themes; where scripts run, remedies have buttons."""
    style, script = _style_and_script()
    numbers = "".join(_number(name, *value.partition(" ")) for name, value in report_text.facts(report))
    parts = [
        f"<b>Out of memory</b> <span class='dim'>{html_text(f'{report.verdict} · {report_text.where(report)}')}</span>",
        *(f"<span class='code'>{html_text(text)}</span>" for text in report_text.requested(report)),
        _map(report),
        _blockers("What blocks it", report_text.blocked(report), report.blockers),
    ]
    if report.locked:
        parts.append(_blockers("Under user locks", "they stay until user_unlock", report.locked))
    if report.cached:
        back = f"would give back {quantity.size(report.cached)} of segments that hold nothing"
        parts.append(f"<span class='code'>flnb.memory.release_cached()</span> <span class='dim'>{back}</span>")
    parts.append(_remedies(report.remedies))
    head, *rest = [f"<div>{part}</div>" for part in parts if part]
    page = f"<div class='flnb-oom'>{head}<div class='numbers'>{numbers}</div>{''.join(rest)}</div>"
    return f"{style}{page}{script if report.remedies.rows else ''}"


def show_after(result: Any) -> None:
    """Show the report if a cell ran out of memory, in shells where another library handles exceptions.

    ``result`` is IPython's result of the cell.
    """
    from IPython.display import display

    error = result.error_in_exec
    if error.shortage is not None:
        display(error.report)  # type: ignore[no-untyped-call]


def _number(name: str, value: str, space: str, unit: str) -> str:
    """Return HTML that shows the text ``value`` and its unit below a name; ``space`` separates value and unit."""
    unit = f"<span class='dim' style='font-weight:400'>{unit}</span>"
    return f"<div><div class='dim'>{name}</div><b>{value}{space}{unit}</b></div>"


def _map(report: Postmortem) -> str:
    """Return HTML that draws, to scale, the segment that came closest to serving the request, above the request."""
    closest = report.closest
    if closest is None:
        return ""
    segment, tiles = closest.segment
    hole = max((tile.size for tile in tiles if not tile.id), default=0)
    used = dict.fromkeys(schema.CATEGORIES[tile.category] for tile in tiles if tile.id)
    short = f" · {quantity.size(report.request - hole)} short" if hole < report.request else ""
    key = "".join(f"{_square(name)} &nbsp;" for name in used)
    head = (
        f"<div style='display:flex;justify-content:space-between'><span><b>The segment that came closest</b> "
        f"<span class='dim'>S{segment.id} · {quantity.size(segment.size)}{short}</span></span>"
        f"<span class='dim'>{key}┄ free &nbsp;◆ blocks the request</span></div>"
    )
    labels = {blocker.id: blocker.label for blocker in report.blockers}
    drawn = "".join(_tile(tile, segment.address, segment.size, labels) for tile in tiles)
    at = _place(closest.begin, closest.end - closest.begin, segment.size)
    asked = quantity.size(report.request)
    said = f"request of {asked} at offset {quantity.size(closest.begin)} of segment {segment.id}"
    request = f"<div class='request' style='{at}'><span>request {asked}</span></div>"
    return f"{head}<div class='map' role='img' aria-label='{said}'>{drawn}{request}</div>"


def _tile(tile: BlockState, base: int, whole: int, labels: dict[int, str]) -> str:
    """Return HTML for one block of the drawing.

    Args:
        tile: the block; a block without an id is free memory.
        base: the address at which the drawing begins.
        whole: the number of bytes that the drawing shows.
        labels: names of the blocks that are in the way of the request, by id.
    """
    offset, share = tile.address - base, 100 * tile.size / whole
    at = _place(offset, tile.size, whole)
    if not tile.id:
        label = f"free {quantity.size(tile.size)}" if share >= NARROW else ""
        return f"<div class='tile hole' style='{at}' title='free {quantity.size(tile.size)}'>{label}</div>"
    category = schema.CATEGORIES[tile.category]
    name = html_text(labels.get(tile.id, ""))
    about = f"{name or f'block {tile.id}'}: {quantity.size(tile.size)} {category}"
    fill = f"background:var(--{category});color:var(--on-{category})"
    label = name if share >= NARROW else ""
    block = f"<div class='tile code' style='{at};{fill}' title='{about}'>{label}</div>"
    middle = 100 * (offset + tile.size / 2) / whole
    return block + (f"<span class='mark' style='left:{middle:.3f}%'>◆</span>" if tile.id in labels else "")


def _place(offset: int, size: int, whole: int) -> str:
    """Return CSS that places ``size`` bytes at an offset in a drawing of ``whole`` bytes."""
    return f"left:{100 * offset / whole:.3f}%;width:{100 * size / whole:.3f}%"


def _blockers(title: str, about: str, blockers: Iterable[Blocker]) -> str:
    """Return HTML with a title, an explanation (``about``), and a table of the blocks in the way of the request."""
    rows = []
    for blocker in blockers:
        cells = [html_text(text) for text in report_text.row(blocker)]
        cells[0] = f"◆ <span class='code'>{cells[0]}</span>"
        cells[1] = _square(cells[1])
        rows.append(cells)
    head = f"<b>{title}</b> <span class='dim'>{html_text(about)}</span>"
    return head + (_table(report_text.COLUMNS, rows) if rows else "")


def _square(category: str) -> str:
    """Return HTML with a square in the colour of a memory category, and the category's name."""
    return f"<span class='square' style='background:var(--{category})'></span>{category.replace('_', ' ')}"


def _remedies(found: Remedies) -> str:
    """Return HTML with the table of remedies, and a note if some could not be tried."""
    said = "; ".join(part for part in (found.steps and f"each one {found.steps}", report_text.USAGE) if part)
    head = f"<b>What would have let this request through</b> <span class='dim'>{html_text(said)}</span>"
    if found.unknown:
        head += f"<div class='dim'>{html_text(found.unknown)}</div>"
    if not found.rows:
        return head
    capacity = found.capacity or 1
    columns = ("Remedy", f"Peak, of {quantity.size(capacity)}", "Cost", "Result", "")
    return head + _table(columns, [_remedy(row, capacity) for row in found.rows])


def _remedy(row: Remedy, capacity: int) -> list[str]:
    """Return the cells of a remedy: its code, the predicted peak with a bar, its cost, the result, and buttons."""
    share = min(100.0, 100 * row.peak / capacity) if row.fits else 100.0
    peak = report_text.peak(row.fits, row.peak, capacity)
    bar = f"<span class='bar'><i style='width:{share:.1f}%'></i></span>{peak}"
    result = html_text(report_text.verdict(row))
    return [
        f"<span class='code'>{html_text(row.what).replace('(', '(<wbr/>')}</span>", bar, html_text(row.cost),
        result if row.fits else f"<span class='dim'>{result}</span>", _buttons(row),
    ]  # fmt: skip


def _buttons(row: Remedy) -> str:
    """Return an HTML element into which the script puts buttons for a remedy; empty if the remedy does not help."""
    if not row.fits:
        return ""
    code, runs = action(row.what)
    return f"<span data-code='{html_text(code, WHOLE)}' data-what='{html_text(row.what)}'{' data-runs' * runs}></span>"


def _table(columns: Iterable[str], rows: list[list[str]]) -> str:
    """Return an HTML table; ``columns`` are the titles, and the cells in ``rows`` are HTML already."""
    titles = list(columns)
    sides = "".join(">" if title in RIGHT else "<" for title in titles)
    return tables.html([titles, *(list(map(Markup, row)) for row in rows)], sides)
