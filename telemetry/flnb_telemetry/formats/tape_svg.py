"""A tape as a small SVG picture without scripts: boxes for ops and modules, lines from results to their readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flnb_telemetry import palette, quantity
from flnb_telemetry.formats.svg import WIDTH, picture
from flnb_telemetry.safe_text import html_text

if TYPE_CHECKING:
    from flnb_telemetry.analysis.levels import Group, Levels
    from flnb_telemetry.schema import Ints

MOST = 36  # boxes
ROW, BOX, WIDEST = 40, 26, 200  # distance of rows, height and largest width of a box, in pixels
LETTER = 6.2  # width in pixels
BAD = "#d32f2f"


def tape_picture(levels: Levels) -> str:
    """Return the graph of a tape as SVG with at most `MOST` boxes and inputs at the top; some modules are one box.

    A box in which a gradient has NaN or Inf has a red frame.
    """
    items = _opened(levels)
    if not items:
        return ""
    spans = [(item, item + 1) if isinstance(item, int) else (item.first, item.last) for item in items]
    edges = _edges(levels, spans)
    layer = _layers(len(items), edges)
    places = _places(layer)
    lines = "".join(_line(places[a], places[b], layer[b] - layer[a]) for a, b in edges)
    boxes = "".join(_box(levels, item, places[at]) for at, item in enumerate(items))
    return picture(f"tape of {len(levels.graph)} ops", lines + boxes, ROW * (max(layer) + 1) + 8)


def _opened(levels: Levels) -> list[Group | int]:
    """Return the items that have a box, in order of execution: groups, and row numbers of single nodes.

    A group is replaced by its contents if there are at most `MOST` boxes then. The outermost group is always replaced.
    """
    items: list[Group | int] = [levels.root] if len(levels.graph) else []
    waiting = items[:1]
    while waiting:
        group = waiting.pop(0)
        if isinstance(group, int):
            continue
        inside = levels.level(group).items
        if len(items) - 1 + len(inside) > MOST and group is not levels.root:
            continue
        at = items.index(group)
        items[at : at + 1] = inside
        waiting += inside
    return items


def _edges(levels: Levels, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return pairs (from, to) of boxes, where box `to` reads a result of box `from`.

    ``spans`` has the nodes of each box: the first, and the one after the last.
    """
    graph = levels.graph
    box_of = np.repeat(np.arange(len(spans)), [last - first for first, last in spans])
    inner = graph.parent >= 0
    pairs = np.stack([box_of[graph.parent[inner]], box_of[graph.child[inner]]])
    return [(a, b) for a, b in np.unique(pairs, axis=1).T.tolist() if a != b]


def _layers(count: int, edges: list[tuple[int, int]]) -> list[int]:
    """Return the row of each of ``count`` boxes: below the rows of all boxes whose results it reads.

    ``edges`` are pairs (from, to) of boxes.
    """
    layer = [0] * count
    for a, b in sorted(edges, key=lambda edge: edge[1]):  # a box reads from earlier ones only
        layer[b] = max(layer[b], layer[a] + 1)
    return layer


def _places(layer: list[int]) -> list[tuple[float, float, float]]:
    """Return the left edge, the top and the width of each box, given the row (``layer``) of each box."""
    count: Ints = np.bincount(layer)
    seen = [0] * len(count)
    places = []
    for row in layer:
        width = min(WIDEST, (WIDTH - 8) / count[row] - 8)
        left = (WIDTH - count[row] * (width + 8) + 8) / 2 + seen[row] * (width + 8)
        seen[row] += 1
        places.append((left, 6.0 + ROW * row, width))
    return places


def _line(above: tuple[float, float, float], below: tuple[float, float, float], rows: int) -> str:
    """Return a line between two boxes as SVG; each box is given by its left edge, top and width.

    ``rows`` is the number of rows from the upper to the lower box. If it is more than one, the line bends to one side,
    past the boxes between them.
    """
    (x0, y0), (x1, y1) = (above[0] + above[2] / 2, above[1] + BOX), (below[0] + below[2] / 2, below[1])
    side = min(30 + 12 * rows, 150) + WIDEST / 2 if rows > 1 else 0
    c0, c1 = (min(x + side, max(x, WIDTH - 2)) for x in (x0, x1))  # the curve stays left of both, inside the picture
    path = f"M{x0:.1f} {y0:.1f}C{c0:.1f} {y0 + 14:.1f} {c1:.1f} {y1 - 14:.1f} {x1:.1f} {y1:.1f}"
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.5"/>'


def _box(levels: Levels, item: Group | int, place: tuple[float, float, float]) -> str:
    """Return a box with its name as SVG; the full description is shown while the mouse pointer is over the box.

    ``item`` is a group, or the row of a single node; ``place`` has the left edge, the top and the width.
    """
    graph, (left, top, width) = levels.graph, place
    if isinstance(item, int):
        plan, first, last = levels.catalog.plans.items[int(graph.plan[item])], item, item + 1
        text, colour = f"{plan.op} {quantity.extents(plan.shape)}", palette.FAMILY.get(plan.family)
        about = " ".join([text, plan.dtype, levels.catalog.contexts.items[int(graph.context[item])].scope]).strip()
    else:
        first, last, colour = item.first, item.last, None
        times = f" ×{item.repeat}" if item.repeat else ""
        text = f"{item.name}{times} · {quantity.count(last - first)} ops"
        about = f"{item.path or item.name}{times}, {quantity.count(last - first)} ops"
    most = max(1, int((width - 14) / LETTER))
    shown = text if len(text) <= most else text[: most - 1] + "…"
    stroke = BAD if graph.health[first:last].any() else "currentColor"
    return (
        f'<g><title>{html_text(about)}</title><rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BOX}" '
        f'rx="3" fill="{colour[0] if colour else "currentColor"}" fill-opacity="{0.25 if colour else 0.08}" '
        f'stroke="{stroke}"/><text x="{left + width / 2:.1f}" y="{top + 17:.1f}" text-anchor="middle">'
        f"{html_text(shown)}</text></g>"
    )
