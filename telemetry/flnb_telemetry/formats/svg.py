"""Small inline pictures, SVG without scripts: what a recording shows where no widget can run."""

from __future__ import annotations

import itertools
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from flnb_telemetry import palette, quantity, schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.analysis.memory import Memory, MemoryState
    from flnb_telemetry.analysis.ops import OpStats

WIDTH, HEIGHT = 640, 150
COLUMNS = 320


def picture(label: str, body: str, height: int = HEIGHT) -> str:
    """An SVG element in the surrounding text's colour, `label` for those who cannot see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {WIDTH} {height}" width="100%" '
        f'style="max-width:{WIDTH}px;display:block;margin:6px 0" font-family="sans-serif" font-size="11" '
        f'fill="currentColor">{body}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x: NDArray[np.float64], y: NDArray[np.float64], style: str) -> str:
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<polyline points="{points}" fill="none" {style}/>'


def curve(name: str, step: NDArray[np.int64], value: NDArray[np.float64]) -> str:
    """One metric over steps, every value where there are few and the extremes of each pixel where there are many."""
    keep = np.isfinite(value)
    step, value = step[keep], value[keep]
    if len(value) < 2:
        return ""
    if len(value) > 2 * COLUMNS:
        parts = itertools.pairwise(np.linspace(0, len(value), COLUMNS + 1).astype(int))
        chosen = np.unique([a + f(value[a:b]) for a, b in parts for f in (np.argmin, np.argmax)])
        step, value = step[chosen], value[chosen]
    low, high = float(value.min()), float(value.max())
    x = 2 + (WIDTH - 4) * (step - step[0]) / max(1, step[-1] - step[0])
    y = HEIGHT - 4 - (HEIGHT - 28) * (value - low) / ((high - low) or 1.0)
    label = f"{name}: {quantity.significant(value[0])} → {quantity.significant(value[-1])}"
    head = _text(2, 12, label) + _text(WIDTH - 2, 12, f"steps {step[0]}–{step[-1]}", "end")
    return picture(label, head + _line(x, y, 'stroke="#359cdf" stroke-width="1.5"'))


def op_bars(stats: OpStats, limit: int = 10) -> str:
    """Total time of the slowest ops as bars."""
    rows = sorted(stats, key=lambda row: row.total, reverse=True)[:limit]
    if not rows:
        return ""
    body = _text(2, 12, "op time")
    for i, row in enumerate(rows):
        y, width = 20 + 18 * i, 360 * row.total / max(1, rows[0].total)
        body += _text(150, y + 11, "/".join(row.key), "end")
        body += f'<rect x="158" y="{y}" width="{max(1.0, width):.1f}" height="14" fill="#359cdf"/>'
        body += _text(164 + width, y + 11, f"{quantity.duration(row.total)} · {quantity.percent(row.share)}")
    return picture("total time of the slowest ops", body, 26 + 18 * len(rows))


def memory_timeline(memory: Memory) -> str:
    """Live bytes by category, stacked, under the line of reserved bytes; each column shows its largest moment."""
    line = memory.timeline()
    if not len(line.t):
        return ""
    # What a column shows: the state carried into it, or the moment within it when most was allocated.
    span = (line.t[-1] - line.t[0]) or 1.0
    edges = np.searchsorted(line.t, line.t[0] + span * np.arange(COLUMNS + 1) / COLUMNS)
    edges[-1] = len(line.t)
    starts = np.maximum(edges[:-1] - 1, 0)
    pick = [a + int(np.argmax(line.allocated[a : max(b, a + 1)])) for a, b in zip(starts, edges[1:], strict=True)]
    top = float(max(line.reserved.max(), line.allocated.max(), 1))
    x = np.linspace(2, WIDTH - 2, COLUMNS)
    below, body, legend = np.zeros(COLUMNS), "", 150
    for name in palette.STACK:
        level = below + line.by_category[pick, schema.CATEGORIES.index(name)]
        if (level > below).any():
            colour = palette.CATEGORY[name][0]
            ys = HEIGHT - 20 - (HEIGHT - 44) * np.concatenate([level, below[::-1]]) / top
            points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(np.concatenate([x, x[::-1]]), ys, strict=True))
            body += f'<polygon points="{points}" fill="{colour}"/>'
            body += f'<rect x="{legend}" y="4" width="9" height="9" fill="{colour}"/>'
            body += _text(legend + 12, 12, name.replace("_", " "))
            legend += 24 + 6 * len(name)
        below = level
    body += _line(
        x, HEIGHT - 20 - (HEIGHT - 44) * line.reserved[pick] / top, 'stroke="currentColor" stroke-dasharray="3 2"'
    )
    body += _text(2, 12, f"reserved ≤ {quantity.size(line.reserved.max())}")
    body += _text(2, HEIGHT - 6, f"{line.t[0]:.2f} s") + _text(WIDTH - 2, HEIGHT - 6, f"{line.t[-1]:.2f} s", "end")
    return picture("memory by category over time", body)


def block_map(state: MemoryState, limit: int = 24) -> str:
    """Segments as bars of one scale with their blocks in them; what stays empty is free."""
    segments = sorted(state.segments, key=lambda segment: segment.size, reverse=True)[:limit]
    if not segments:
        return "<p>no segments</p>"
    scale = (WIDTH - 4) / segments[0].size
    body = _text(2, 12, f"{quantity.size(state.allocated)} in {quantity.size(state.reserved)} at {state.t:.3f} s")
    if len(state.segments) > limit:
        body += _text(WIDTH - 2, 12, f"the largest {limit} of {len(state.segments)} segments", "end")
    for i, segment in enumerate(segments):
        y = 20 + 20 * i
        for block in segment.blocks:
            title = f"{block.category} {quantity.size(block.size)} {block.op} {block.scope}".rstrip()
            body += (
                f'<rect x="{2 + block.offset * scale:.2f}" y="{y}" width="{max(0.5, block.size * scale - 0.3):.2f}" '
                f'height="16" fill="{palette.CATEGORY[block.category][0]}"><title>{escape(title)}</title></rect>'
            )
        body += (
            f'<rect x="2" y="{y}" width="{max(1.0, segment.size * scale):.2f}" height="16" fill="none" '
            'stroke="currentColor" stroke-opacity="0.6" stroke-dasharray="2 2"/>'
        )
    return picture("blocks in their segments", body, 24 + 20 * len(segments))
