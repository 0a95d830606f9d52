"""Small SVG pictures without scripts of recordings and their memory, for pages where no widget can run."""

from __future__ import annotations

import itertools
import re
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import palette, quantity, schema
from flnb_telemetry.safe_text import html_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from flnb_telemetry.analysis.memory import Memory, MemoryState, SegmentView
    from flnb_telemetry.analysis.ops import OpStats
    from flnb_telemetry.recording import Recording
    from flnb_telemetry.schema import Ints

WIDTH, HEIGHT = 640, 150
LETTERS = 104
"""The most characters in a line of a picture's text."""
POINTS = 640
FLAT = 0.01  # smaller changes, as a share of the live bytes, are described as flat


def picture(label: str, body: str, height: int = HEIGHT) -> str:
    """Return an SVG element as text, in the colour of the surrounding text.

    Args:
        label: a description for screen readers.
        body: the elements of the picture, as SVG.
        height: the height in pixels.
    """
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html_text(label)}" '
        f'viewBox="0 0 {WIDTH} {height}" width="100%" '
        f'style="max-width:{WIDTH}px;display:block;margin:6px 0" font-family="sans-serif" font-size="11" '
        f'fill="currentColor">{body}</svg>'
    )


def extremes(most: int, *levels: NDArray[Any]) -> Ints:
    """Choose at most ``most`` indices of some curves so that a plot of these points alone still shows all peaks.

    The chosen indices are the first and the last one and, in each of several intervals of equal length, the index of
    each curve's largest value.

    Args:
        most: the largest number of indices to return.
        levels: the curves: arrays of the same length.
    """
    count = len(levels[0])
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count - 1, (most - 2) // len(levels) + 1).astype(int)
    highest = [a + int(np.argmax(level[a:b])) for a, b in itertools.pairwise(edges) for level in levels]
    return np.unique([0, *highest, count - 1])


def text_at(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html_text(text)}</text>'


def _path(shape: str, x: NDArray[np.float64], y: NDArray[np.float64], style: str) -> str:
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<{shape} points="{points}" {style}/>'


def box(x: float, y: float, width: float, height: float, style: str, title: str = "") -> str:
    about = f"<title>{html_text(title)}</title>" if title else ""
    return f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" {style}>{about}</rect>'


def _fill(category: str) -> str:
    return f'fill="{palette.CATEGORY[category][0]}"'


def _legend(categories: Sequence[str], x: float, y: float) -> str:
    """Return the names of memory categories, each beside a square of its colour, in a row from (x, y)."""
    body = ""
    for name in categories:
        body += box(x, y, 9, 9, _fill(name)) + text_at(x + 12, y + 8, name.replace("_", " "))
        x += 24 + 6 * len(name)
    return body


def pictures(run: Recording) -> list[str]:
    """Return the pictures of a recording: a curve for each metric, memory over time, the slowest ops."""
    curves = [curve(name, metric["step"], metric["value"]) for name, metric in run.metrics.items()]
    return [each for each in (*curves, memory_timeline(run.memory, run.seconds), op_bars(run.ops)) if each]


def stacked(images: Sequence[str], label: str = "") -> str:
    """Combine pictures with a `viewBox` into one SVG document: one below the other, dark on white.

    ``label`` describes the document for screen readers; by default the descriptions of all pictures do.
    """
    boxes = [re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', image)[0] for image in images]
    sizes = [(float(width), float(height)) for width, height in boxes]
    tops = itertools.accumulate([height + 8 for _, height in sizes], initial=8.0)
    parts = (_placed(image, *size, top) for image, size, top in zip(images, sizes, tops, strict=False))
    width, height = max(width for width, _ in sizes) + 16, sum(height + 8 for _, height in sizes) + 8
    size = f'width="{width:g}" height="{height:g}"'
    about = html_text(label) if label else "; ".join(re.findall(r'aria-label="([^"]*)"', "".join(images)))
    paper = f'<rect {size} fill="#fff"/>' + "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{about}" {size} '
        f'viewBox="0 0 {width:g} {height:g}" color="#222">{paper}</svg>'
    )


def _placed(image: str, width: float, height: float, top: float) -> str:
    """Return an SVG element with a size and a place in pixels, instead of those that it has on a page."""
    head, body = image.split(">", 1)
    head = re.sub(r' (?:width|height|style|role|aria-label)="[^"]*"', "", head)
    return f'{head} x="8" y="{top:g}" width="{width:g}" height="{height:g}">{body}'


def text_lines(lines: Sequence[str], code: bool = False) -> str:
    """Return lines of text as a picture; long lines are wrapped, or with ``code`` made smaller."""
    most = max([LETTERS, *map(len, lines)]) if code else LETTERS
    wrapped = [part for line in lines for part in textwrap.wrap(line, most, drop_whitespace=not code) or [""]]
    size = min(11.0, (WIDTH - 4) / (0.61 * most)) if code else 11
    body = "".join(text_at(2, 12 + 15 * at, line) for at, line in enumerate(wrapped))
    if code:
        body = f'<g font-family="monospace" font-size="{size:.2f}" xml:space="preserve">{body}</g>'
    return picture(lines[0] if lines else "", body, 18 + 15 * len(wrapped))


def curve(name: str, step: Ints, value: NDArray[np.float64]) -> str:
    """Return the curve of a metric over steps as SVG; "" for fewer than two finite values.

    A long curve is reduced to the smallest and the largest value of each of `POINTS` intervals.
    """
    keep = np.flatnonzero(np.isfinite(value))
    if len(keep) < 2:
        return ""
    keep = keep[extremes(POINTS, value[keep], -value[keep])]
    step, value = step[keep], value[keep]
    low, high = float(value.min()), float(value.max())
    x = 2 + (WIDTH - 4) * (step - step[0]) / max(1, step[-1] - step[0])
    y = HEIGHT - 4 - (HEIGHT - 28) * (value - low) / ((high - low) or 1.0)
    label = f"{name}: {quantity.significant(value[0])} → {quantity.significant(value[-1])}"
    head = text_at(2, 12, label) + text_at(WIDTH - 2, 12, f"steps {step[0]}–{step[-1]}", "end")
    return picture(label, head + _path("polyline", x, y, 'fill="none" stroke="#359cdf" stroke-width="1.5"'))


def op_bars(stats: OpStats, limit: int = 10, title: str = "op time") -> str:
    """Return the ``limit`` rows with the largest total times as SVG, with a bar for each, below a title."""
    rows = sorted(stats, key=lambda row: row.total, reverse=True)[:limit]
    notes = [f"{quantity.duration(row.total)} · {quantity.percent(row.share)}" for row in rows]
    named = [("/".join(row.key) or "outside", (row.total,), note) for row, note in zip(rows, notes, strict=True)]
    return bars(title, f"total {title} of the slowest", named)


BARS = ("#359cdf", "#a35226")
"""The colours of the bars of a row."""
NAME = 26
"""The most characters of a row's name."""


def bars(title: str, label: str, rows: Sequence[tuple[str, Sequence[float], str]]) -> str:
    """Return rows of bars as SVG, each row with its name on the left and a note on the right; "" for no rows.

    Args:
        title: the first line of the picture.
        label: a description for screen readers.
        rows: for each row its name, the values of its bars, which lie below each other, and the note.
    """
    if not rows:
        return ""
    most, wide = max(max(values) for _, values, _ in rows) or 1, 360 if max(len(row[1]) for row in rows) == 1 else 200
    body, y = text_at(2, 12, title), 20
    for name, values, note in rows:
        thick = 14 if len(values) == 1 else 8
        middle = y + (thick * len(values) + 8) // 2
        body += text_at(150, middle, name if len(name) <= NAME else f"…{name[1 - NAME :]}", "end")
        for at, value in enumerate(values):
            width = max(1.0, wide * value / most) if value else 0.0
            body += box(158, y + thick * at, width, thick, f'fill="{BARS[at]}"')
        body += text_at(164 + wide * max(values) / most, middle, note)
        y += thick * len(values) + 4
    return picture(label, body, y + 6)


def memory_timeline(memory: Memory, until: float | None = None) -> str:
    """Return the live bytes over time, stacked by category, and the reserved bytes as a dashed line, as SVG.

    Where far more bytes are reserved than live, the dashed line is outside of the picture.

    Args:
        memory: the memory of a recording.
        until: the end of the time axis, s; by default the last change.
    """
    line = memory.timeline().spread(POINTS)
    if not len(line.t):
        return ""
    reserved, live, least = int(line.reserved.max()), int(line.allocated.max()), int(line.allocated.min())
    above = reserved > 2 * live > 0
    top = max(live if above else max(live, reserved), 1)
    end = max(line.t[-1], line.t[-1] if until is None else until)
    t = np.append(np.repeat(line.t, 2)[1:], end)  # steps: each level holds until the next moment
    x = 2 + (WIDTH - 4) * (t - t[0]) / ((end - t[0]) or 1.0)

    def height(level: NDArray[Any]) -> NDArray[np.float64]:
        return np.maximum(16, HEIGHT - 20 - (HEIGHT - 44) * np.repeat(level, 2) / top)

    said = f"live {quantity.size(live)}, flat" if live - least < FLAT * live else f"live ≤ {quantity.size(live)}"
    said += f", reserved ≤ {quantity.size(reserved)}" + ", above" * above
    below, body, drawn = np.zeros(len(line.t)), "", []
    for name in palette.STACK:
        level = below + line.by_category[:, schema.CATEGORIES.index(name)]
        if (level > below).any():
            edge = np.concatenate([height(level), height(below)[::-1]])
            body += _path("polygon", np.concatenate([x, x[::-1]]), edge, _fill(name))
            drawn.append(name)
        below = level
    body += _legend(drawn, 60, HEIGHT - 14)
    body += _path("polyline", x, height(line.reserved), 'fill="none" stroke="currentColor" stroke-dasharray="3 2"')
    body += text_at(2, 12, said)
    begin, close = quantity.duration(1e9 * t[0]), quantity.duration(1e9 * end)
    body += text_at(2, HEIGHT - 6, begin) + text_at(WIDTH - 2, HEIGHT - 6, close, "end")
    return picture("memory by category over time", body)


def block_map(state: MemoryState) -> str:
    """Return an SVG picture of the segments at one moment as bars, with the blocks in them."""
    held = f"{quantity.size(state.allocated)} in {quantity.size(state.reserved)} at {state.t:.3f} s"
    return segment_bars(state.segments, held) + (f"<div>{html_text(state.besides)}</div>" if state.besides else "")


def segment_bars(every: Sequence[SegmentView], text: str, limit: int = 24) -> str:
    """Return the `limit` largest segments as SVG bars with their blocks, below a text; free parts are left empty.

    Below them stand the names of the blocks' categories, with their colours.
    """
    segments = sorted(every, key=lambda segment: segment.size, reverse=True)[:limit]
    if not segments:
        return "<p>no segments</p>"
    scale = (WIDTH - 4) / segments[0].size
    body = text_at(2, 12, text)
    if len(every) > limit:
        body += text_at(WIDTH - 2, 12, f"the largest {limit} of {len(every)} segments", "end")
    dashed = 'fill="none" stroke="currentColor" stroke-opacity="0.6" stroke-dasharray="2 2"'
    for i, segment in enumerate(segments):
        y = 20 + 20 * i
        for block in segment.blocks:
            title = f"{block.category} {quantity.size(block.size)} {block.op} {block.scope}".rstrip()
            width = max(0.5, block.size * scale - 0.3)
            body += box(2 + block.offset * scale, y, width, 16, _fill(block.category), title)
        body += box(2, y, max(1.0, segment.size * scale), 16, dashed)
    inside = {block.category for segment in segments for block in segment.blocks}
    below = 24 + 20 * len(segments)
    body += _legend([name for name in palette.STACK if name in inside], 2, below)
    return picture("blocks in their segments", body, below + 14 * bool(inside))
