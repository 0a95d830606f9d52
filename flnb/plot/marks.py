"""Converts colours, markers and texts of plotly figures to SVG, and merges a figure's layout with its template."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from flnb.plot.axes import Array


def colour(value: Any, otherwise: str) -> str:
    """Return ``value`` if it is text that can be a colour in an SVG attribute, and ``otherwise`` for anything else."""
    return value if isinstance(value, str) and re.fullmatch(r"#?[\w(),.% ]{1,40}", value) else otherwise


def colour_of(trace: dict[str, Any], otherwise: str) -> str:
    """Return the colour of a trace's lines, markers or bars, or ``otherwise`` if the trace does not state one."""
    places = ("line", "marker") if trace["type"] != "bar" else ("marker", "line")
    given = ((trace.get(place) or {}).get("color") for place in places)
    return next((value for each in given if (value := colour(each, ""))), otherwise)


def colours_of(trace: dict[str, Any], count: int) -> list[str]:
    """Return the colour of each of the ``count`` bars of a trace."""
    each = (trace.get("marker") or {}).get("color")
    listed = list(each) if each is not None and not isinstance(each, str) and np.ndim(each) == 1 else [each] * count
    return [colour(one, trace["colour"]) for one in listed]


def texts(given: Any, count: int) -> list[str]:
    return [str(one) for one in given] if given is not None and not isinstance(given, str) else [given or ""] * count


def steps(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the corners of a step line, which keeps the height of each point until the next point."""
    return np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]


def mark(symbol: str, x: float, y: float, size: float, style: str) -> str:
    """Return plotly's marker ``symbol`` at (x, y) as an SVG element with the attributes ``style``."""
    half = size / 2
    if symbol == "line":
        return f'<line x1="{x - 8:.1f}" y1="{y:.1f}" x2="{x + 8:.1f}" y2="{y:.1f}" stroke-width="2.5" {style}/>'
    if symbol == "line-ns":
        return f'<line x1="{x:.1f}" y1="{y - half:.1f}" x2="{x:.1f}" y2="{y + half:.1f}" stroke-width="1.5" {style}/>'
    if symbol.startswith("square"):
        return f'<rect x="{x - half:.1f}" y="{y - half:.1f}" width="{size:.1f}" height="{size:.1f}" {style}/>'
    if symbol == "diamond":
        corners = f"{x:.1f},{y - half:.1f} {x + half:.1f},{y:.1f} {x:.1f},{y + half:.1f} {x - half:.1f},{y:.1f}"
        return f'<polygon points="{corners}" {style}/>'
    turns = {"triangle-up": 0, "triangle-right": 90, "triangle-down": 180, "triangle-left": 270}
    if symbol in turns:
        corners = f"{x:.1f},{y - half:.1f} {x + half:.1f},{y + half:.1f} {x - half:.1f},{y + half:.1f}"
        return f'<polygon points="{corners}" transform="rotate({turns[symbol]} {x:.1f} {y:.1f})" {style}/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{half:.1f}" {style}/>'


def hatched(x: float, y: float, width: float, height: float, ink: str) -> str:
    """Return the outline of a rectangle, filled with diagonal lines of the same colour, as SVG elements."""
    corners = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    lines = []
    for reach in np.arange(2.5, width + height, 5.0).tolist():  # from the left or lower edge to the upper or right one
        low, high = max(0.0, reach - height), min(width, reach)
        lines.append(f"M{x + low:.1f},{y + reach - low:.1f}L{x + high:.1f},{y + reach - high:.1f}")
    return f'<path d="{"".join(lines)}" fill="none" stroke="{ink}"/><rect {corners} fill="none" stroke="{ink}"/>'


def shade(scale: Any, share: float) -> str:
    """Return the interpolated colour at ``share`` (0 to 1) in a scale of pairs of a share and a colour."""
    stops = [float(stop) for stop, _ in scale]
    colours = np.array([rgb(str(colour)) for _, colour in scale], float)
    red, green, blue = (int(np.interp(share, stops, channel)) for channel in colours.T)
    return f"#{red:02x}{green:02x}{blue:02x}"


def rgb(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue (0 to 255) of a colour like "#08306b" or "rgb(8, 48, 107)"; grey for other texts."""
    if re.fullmatch(r"#[0-9a-fA-F]{6}", colour):
        return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
    numbers = [float(part) for part in re.findall(r"[\d.]+", colour)] if colour.startswith("rgb") else []
    return (int(numbers[0]), int(numbers[1]), int(numbers[2])) if len(numbers) >= 3 else (128, 128, 128)


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two nested dicts, a template (``below``) and a layout (``above``). The layout's values have priority.

    An axis such as "xaxis2" gets the template's values for "xaxis".
    """
    found = dict(below)
    for key, value in above.items():
        under = below.get(re.sub(r"^([xy]axis)\d+$", r"\1", key))
        found[key] = merged(under, value) if isinstance(value, dict) and isinstance(under, dict) else value
    return found


def title_of(owner: dict[str, Any]) -> str:
    title = owner.get("title")
    return str((title.get("text") or "") if isinstance(title, dict) else title or "")


def plain(text: str) -> str:
    """Convert a text of plotly, which may contain HTML, to plain text: without tags, and with entities decoded."""
    return html.unescape(re.sub(r"<[^<>]*>", "", text))


def lines(text: str) -> list[str]:
    return [plain(line) for line in re.split(r"<br\s*/?>", text)]
