"""The post-mortem of an `OutOfMemoryError`, in the cell that failed.

Verdict, five numbers, the request drawn to scale on the segment that came closest, what blocks it, and remedies, those
that do not fit last. Everything in the picture is also in its tables.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flnb_telemetry import palette, quantity, schema
from flnb_telemetry.safe_text import WHOLE, html_text

from flnb.dispatch.source_lines import is_own
from flnb.memory_lab import report_text
from flnb.show.remedying import action

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flnb.interface.memory import BlockState, OutOfMemoryError
    from flnb.memory_lab.postmortem import Blocker, Postmortem
    from flnb.memory_lab.remedies import Remedies, Remedy

__all__ = ["postmortem_html", "show_after", "show_error"]

NARROW = 7.0  # percent of the width below which a block has no label
RIGHT = ("Size", "Age")


def _variables(theme: int) -> str:
    """The colours of the categories in one theme, and black or white for letters on each, by contrast (WCAG 2.1)."""
    found = ""
    for name, colours in palette.CATEGORY.items():
        parts = [int(colours[theme][i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        found += f"--{name}:{colours[theme]};--on-{name}:{'#000' if (light + 0.05) ** 2 > 0.0525 else '#fff'};"
    return found


STYLE = f"""<style>
.flnb-oom{{{_variables(0)}--ink:var(--jp-ui-font-color1,#1b1b1b);--paper:var(--jp-layout-color1,#fff);--bad:#c62828;
--dim:color-mix(in srgb,var(--ink) 68%,var(--paper));--line:color-mix(in srgb,var(--ink) 18%,var(--paper));
font:12px/16px var(--jp-ui-font-family,sans-serif);color:var(--ink);background:var(--paper);
border:1px solid var(--line);border-radius:4px;max-width:1120px;font-variant-numeric:tabular-nums}}
[data-jp-theme-light="false"] .flnb-oom{{{_variables(1)}--bad:#ef6c6c}}
.flnb-oom>div{{padding:8px 12px;border-top:1px solid var(--line);overflow-x:auto}}
.flnb-oom>div:first-child{{border-top:0}}
.flnb-oom .dim{{color:var(--dim)}}
.flnb-oom .code{{font-family:var(--jp-code-font-family,monospace);font-size:11.5px}}
.flnb-oom>.numbers{{display:flex;padding:0}}
.flnb-oom .numbers>div{{flex:1;padding:8px 12px;border-left:1px solid var(--line)}}
.flnb-oom .numbers>div:first-child{{border-left:0}}
.flnb-oom .numbers b{{font-size:15px;line-height:22px}}
.flnb-oom .map{{position:relative;height:58px;margin-top:4px}}
.flnb-oom .map>*{{position:absolute;box-sizing:border-box;overflow:hidden;white-space:nowrap;text-align:center}}
.flnb-oom .tile{{top:16px;height:23px;line-height:21px;border:1px solid var(--paper)}}
.flnb-oom .hole{{border:1px dashed var(--dim);color:var(--dim)}}
.flnb-oom .mark{{top:0;width:16px;margin-left:-8px}}
.flnb-oom .request{{top:42px;height:16px;color:var(--bad);border:solid var(--bad);border-width:0 2px;
background:linear-gradient(var(--bad),var(--bad)) center/100% 1px no-repeat}}
.flnb-oom .request span{{background:var(--paper);padding:0 6px}}
.flnb-oom .square{{display:inline-block;width:9px;height:9px;margin-right:5px}}
.flnb-oom .bar{{display:inline-block;width:110px;height:8px;margin-right:8px;border-right:1.5px solid var(--ink);
background:color-mix(in srgb,var(--ink) 9%,var(--paper))}}
.flnb-oom .bar i{{display:block;height:8px;background:var(--dim)}}
.flnb-oom table{{table-layout:auto!important;
font:inherit;color:inherit;border-collapse:collapse;width:100%;margin:4px 0 0}}
.flnb-oom :is(td,th){{color:inherit;text-align:left!important;font:inherit;padding:2px 12px 2px 0;
border-bottom:1px solid var(--line);background:none!important;white-space:nowrap;
max-width:none!important}}
.flnb-oom tr{{background:none!important}}
.flnb-oom button.do{{font:11px/16px var(--jp-ui-font-family,sans-serif);height:20px;padding:0 7px;margin-left:4px;
border:1px solid var(--line);border-radius:3px;background:var(--paper);color:var(--ink);cursor:pointer}}
.flnb-oom button.do:hover{{background:color-mix(in srgb,var(--ink) 7%,var(--paper))}}
.flnb-oom td:has(button.do){{text-align:right!important;padding-right:0}}
.flnb-oom button.do:focus-visible{{outline:2px solid var(--jp-brand-color1,#1976d2);outline-offset:1px}}
.flnb-oom td:first-child{{white-space:normal;overflow-wrap:anywhere;min-width:260px}}
.flnb-oom tr th{{color:var(--dim);font-size:11px}} .flnb-oom .right{{text-align:right!important}}
</style>"""


SCRIPT = Path(__file__).parents[1] / "widgets" / "static" / "card.js"


@cache
def _script() -> str:
    return SCRIPT.read_text(encoding="utf-8")


def postmortem_html(report: Postmortem) -> str:
    """HTML in JupyterLab's colours, light or dark. It needs no scripts: where they run, remedies have buttons."""
    numbers = "".join(
        f"<div><div class='dim'>{name}</div><b>{value}</b></div>"
        for name, value in ((name, _number(value)) for name, value in report_text.facts(report))
    )
    parts = [
        f"<b>Out of memory</b> <span class='dim'>{html_text(f'{report.verdict} · {report_text.where(report)}')}</span>",
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
    return f"{STYLE}<div class='flnb-oom'>{head}<div class='numbers'>{numbers}</div>{''.join(rest)}</div>" + (
        f"<script>{_script()}</script>" if report.remedies.rows else ""
    )


def show_error(shell: Any, kind: type[BaseException], error: OutOfMemoryError, trace: TracebackType) -> list[str]:
    """Show an error that ended a cell: the report, and the traceback with the user's frames alone.

    In a notebook the report comes first, so that it is seen without scrolling; a terminal ends with it. `%tb` shows
    every frame, and `%debug` enters them. A handler of IPython (`set_custom_exc`): returns the traceback's lines.
    """
    from IPython.display import display

    notebook = hasattr(shell, "kernel")
    report = error.report if error.shortage is not None else None
    if report is not None and notebook:
        display(report)  # type: ignore[no-untyped-call]
    kept, left_out = users_frames(trace)
    cause, bare = error.__cause__, error.__suppress_context__
    if isinstance(cause, MemoryError):  # the device's: its text is in this one's
        error.__cause__ = None
    try:
        lines: list[str] = shell.InteractiveTB.structured_traceback(kind, error, kept, tb_offset=0)
    finally:
        error.__cause__, error.__suppress_context__ = cause, bare
    if left_out:
        lines.append(f"({left_out} frames of flnb and IPython left out: %tb shows all)")
    shell._get_exc_info((kind, error, trace))  # keeps them for %tb and %debug
    shell._showtraceback(kind, error, lines)
    if report is not None and not notebook:
        display(report)  # type: ignore[no-untyped-call]
    if shell.call_pdb:
        shell.debugger(force=True)
    return lines


def show_after(result: Any) -> None:
    """After a cell that ran out of memory, show the report below the other handler's output."""
    from IPython.display import display

    error = result.error_in_exec
    if error.shortage is not None:
        display(error.report)  # type: ignore[no-untyped-call]


def users_frames(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """A traceback without the frames of flnb and IPython, and how many these are; the whole, were there no others."""
    import IPython

    ipython = str(Path(IPython.__file__).parent)
    frames = []
    step = trace
    while step is not None:
        frames.append(step)
        step = step.tb_next
    users = [frame for frame in frames if not _foreign(frame.tb_frame.f_code.co_filename, ipython)] or frames
    kept = None
    for frame in reversed(users):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept, len(frames) - len(users)


def _foreign(filename: str, ipython: str) -> bool:
    return is_own(filename) or filename.startswith(ipython)


def _number(text: str) -> str:
    value, _, unit = text.partition(" ")
    return f"{value} <span class='dim' style='font-weight:400'>{unit}</span>"


def _map(report: Postmortem) -> str:
    """The segment that came closest, to scale, with the request where it would have lain."""
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
    return f"left:{100 * offset / whole:.3f}%;width:{100 * size / whole:.3f}%"


def _blockers(title: str, about: str, blockers: Iterable[Blocker]) -> str:
    rows = []
    for blocker in blockers:
        cells = [html_text(text) for text in report_text.row(blocker)]
        cells[0] = f"◆ <span class='code'>{cells[0]}</span>"
        cells[1] = _square(cells[1])
        rows.append(cells)
    head = f"<b>{title}</b> <span class='dim'>{html_text(about)}</span>"
    return head + (_table(report_text.COLUMNS, rows) if rows else "")


def _square(category: str) -> str:
    """A category's name with its colour."""
    return f"<span class='square' style='background:var(--{category})'></span>{category.replace('_', ' ')}"


def _remedies(found: Remedies) -> str:
    head = f"<b>What would have let this request through</b> <span class='dim'>{report_text.NOTE}</span>"
    if found.unknown:
        head += f"<div class='dim'>{html_text(found.unknown)}</div>"
    if not found.rows:
        return head
    capacity = found.capacity or 1
    columns = ("Remedy", f"Peak up to here, of {quantity.size(capacity)}", "Cost", "Result", "")
    return head + _table(columns, [_remedy(row, capacity) for row in found.rows])


def _remedy(row: Remedy, capacity: int) -> list[str]:
    share = min(100.0, 100 * row.peak / capacity) if row.fits else 100.0
    peak = report_text.peak(row.fits, row.peak, capacity)
    bar = f"<span class='bar'><i style='width:{share:.1f}%'></i></span>{peak}"
    result = report_text.verdict(row.fits)
    return [
        f"<span class='code'>{html_text(row.what).replace('(', '(<wbr/>')}</span>", bar, html_text(row.cost),
        result if row.fits else f"<span class='dim'>{result}</span>", _buttons(row),
    ]  # fmt: skip


def _buttons(row: Remedy) -> str:
    """Where the script puts the buttons of a remedy that fits."""
    if not row.fits:
        return ""
    code, runs = action(row.what)
    return f"<span data-code='{html_text(code, WHOLE)}' data-what='{html_text(row.what)}'{' data-runs' * runs}></span>"


def _table(columns: Iterable[str], rows: list[list[str]]) -> str:
    names = list(columns)
    sides = [" class='right'" if name in RIGHT else "" for name in names]
    head = "".join(f"<th{side}>{name}</th>" for name, side in zip(names, sides, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{side}>{cell}</td>" for cell, side in zip(row, sides, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
