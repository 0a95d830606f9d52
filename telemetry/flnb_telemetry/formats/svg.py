"""Small SVG pictures without scripts of recordings and their memory, for pages where no widget can run."""

from __future__ import annotations

import itertools
import re
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


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html_text(text)}</text>'


def _path(shape: str, x: NDArray[np.float64], y: NDArray[np.float64], style: str) -> str:
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<{shape} points="{points}" {style}/>'


def _box(x: float, y: float, width: float, height: float, style: str, title: str = "") -> str:
    about = f"<title>{html_text(title)}</title>" if title else ""
    return f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" {style}>{about}</rect>'


def _fill(category: str) -> str:
    return f'fill="{palette.CATEGORY[category][0]}"'


def _legend(categories: Sequence[str], x: float, y: float) -> str:
    """Return the names of memory categories, each beside a square of its colour, in a row from (x, y)."""
    body = ""
    for name in categories:
        body += _box(x, y, 9, 9, _fill(name)) + _text(x + 12, y + 8, name.replace("_", " "))
        x += 24 + 6 * len(name)
    return body


def pictures(run: Recording) -> list[str]:
    """Return the pictures of a recording: a curve for each metric, memory over time, the slowest ops."""
    curves = [curve(name, metric["step"], metric["value"]) for name, metric in run.metrics.items()]
    return [each for each in (*curves, memory_timeline(run.memory, run.seconds), op_bars(run.ops)) if each]


def stacked(images: Sequence[str]) -> str:
    """Combine pictures that `picture` has made into one SVG document: one below the other, dark on white."""
    heights = [int(re.findall(rf'viewBox="0 0 {WIDTH} (\d+)"', image)[0]) + 8 for image in images]
    tops = itertools.accumulate(heights, initial=8)
    parts = (image.replace("<svg ", f'<svg y="{top}" ', 1) for image, top in zip(images, tops, strict=False))
    size = f'width="{WIDTH}" height="{sum(heights) + 16}"'
    paper = f'<rect {size} fill="#fff"/>' + "".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} color="#222">{paper}</svg>'


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
    head = _text(2, 12, label) + _text(WIDTH - 2, 12, f"steps {step[0]}–{step[-1]}", "end")
    return picture(label, head + _path("polyline", x, y, 'fill="none" stroke="#359cdf" stroke-width="1.5"'))


def op_bars(stats: OpStats, limit: int = 10) -> str:
    """Return the ``limit`` ops with the largest total times as SVG, with a bar for each."""
    rows = sorted(stats, key=lambda row: row.total, reverse=True)[:limit]
    if not rows:
        return ""
    body = _text(2, 12, "op time")
    for i, row in enumerate(rows):
        y, width = 20 + 18 * i, 360 * row.total / max(1, rows[0].total)
        body += _text(150, y + 11, "/".join(row.key), "end")
        body += _box(158, y, max(1.0, width), 14, 'fill="#359cdf"')
        body += _text(164 + width, y + 11, f"{quantity.duration(row.total)} · {quantity.percent(row.share)}")
    return picture("total time of the slowest ops", body, 26 + 18 * len(rows))


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
    body += _text(2, 12, said)
    begin, close = quantity.duration(1e9 * t[0]), quantity.duration(1e9 * end)
    body += _text(2, HEIGHT - 6, begin) + _text(WIDTH - 2, HEIGHT - 6, close, "end")
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
    body = _text(2, 12, text)
    if len(every) > limit:
        body += _text(WIDTH - 2, 12, f"the largest {limit} of {len(every)} segments", "end")
    dashed = 'fill="none" stroke="currentColor" stroke-opacity="0.6" stroke-dasharray="2 2"'
    for i, segment in enumerate(segments):
        y = 20 + 20 * i
        for block in segment.blocks:
            title = f"{block.category} {quantity.size(block.size)} {block.op} {block.scope}".rstrip()
            width = max(0.5, block.size * scale - 0.3)
            body += _box(2 + block.offset * scale, y, width, 16, _fill(block.category), title)
        body += _box(2, y, max(1.0, segment.size * scale), 16, dashed)
    inside = {block.category for segment in segments for block in segment.blocks}
    below = 24 + 20 * len(segments)
    body += _legend([name for name in palette.STACK if name in inside], 2, below)
    return picture("blocks in their segments", body, below + 14 * bool(inside))
