"""Where the axes, shapes and annotations of a plotly figure lie in its SVG picture, in pixels."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from flnb.plot import marks
from flnb.plot.axes import Array, Axis

WIDTH, HEIGHT = 760, 450
COLOURS = ("#636efa", "#ef553b", "#00cc96", "#ab63fa", "#ffa15a", "#19d3f3", "#ff6692", "#b6e880", "#ff97ff", "#fecb52")
LONGEST = 32
"""The most characters of a tick's or legend's text that are drawn."""
Layout = dict[str, Any]


class Frame:
    """Reads traces, colours, legend and axes of a plotly figure, and computes their places in a picture, in pixels."""

    def __init__(self, figure: Any) -> None:
        layout: Layout = figure.layout.to_plotly_json()
        template = ((layout.get("template") or {}).get("layout")) or {}
        self.layout = marks.merged(template, layout)
        self.colours = self.layout.get("colorway") or COLOURS
        self.traces = [trace.to_plotly_json() for trace in figure.data]
        self.traces = [trace for trace in self.traces if trace.get("visible", True) is True]
        self.width, self.height = self.layout.get("width") or WIDTH, self.layout.get("height") or HEIGHT
        self.ink = marks.colour((self.layout.get("font") or {}).get("color"), "#444")
        for number, trace in enumerate(self.traces):
            trace["colour"] = marks.colour_of(trace, self.colours[number % len(self.colours)])
        self.legend = self._legend()
        self.axes = self._axes()

    def _axes(self) -> dict[str, Axis]:
        """Return a dict of the axes by plotly's names for them in traces, such as "x" and "y2"."""
        margin = {"l": 80, "r": 80, "t": 100, "b": 80} | dict(self.layout.get("margin") or {})
        wide = max((min(len(name), LONGEST) for name, *_ in self.legend), default=0)
        room = 46 * any(trace.get("yaxis", "y") != "y" for trace in self.traces if trace.get("xaxis", "x") == "x")
        right = self.width - max(min(margin["r"], 80), room + (36 + 7 * wide if self.legend else 0))
        left = max(min(margin["l"], 80), 16 + 7 * self._widest_tick())
        top = min(max(56, margin["t"]), 0.3 * self.height)
        self.areas = {"x": (left, right), "y": (self.height - min(max(48, margin["b"]), 0.35 * self.height), top)}
        seen: dict[str, list[Any]] = {}
        for trace in self.traces:
            for letter in "xy":
                seen.setdefault(trace.get(f"{letter}axis") or letter, []).extend(self._seen(trace, letter))
        named = {f"{key[0]}{key[5:]}" for key in self.layout if re.fullmatch(r"[xy]axis\d*", key)}
        seen = {name: self._ordered(name, values) for name, values in seen.items()}
        for name, spec in ((name, self._spec(name)) for name in sorted(named)):
            if spec.get("matches") in seen:  # one scale, such as that of all plots in a row
                together = [*seen[spec["matches"]], *seen.get(name, [])]
                seen |= {spec["matches"]: together}
        found = self._made(sorted({*seen, *named, "x", "y"}), seen)
        slanted = [axis for name, axis in found.items() if name[0] == "x" and axis.slanted]
        if slanted:  # what their labels need below the plots
            low, high = self.areas["y"]
            deep = max(4 * len(text) for axis in slanted for text in axis.categories)
            self.areas["y"] = (max(low - min(deep, 4 * LONGEST), (low + high) / 2), high)
            found = self._made(list(found), seen)
        for axis in found.values():
            if (other := found.get(str(axis.spec.get("scaleanchor")))) is not None:
                unit = min(axis.unit, other.unit)  # pixels of images are squares
                axis.shrink(unit)
                other.shrink(unit)
        return found

    def _made(self, names: list[str], seen: dict[str, list[Any]]) -> dict[str, Axis]:
        """Return a dict of the axes with these names; ``seen`` has for each name the values that must be visible."""
        from_zero = {
            trace.get(f"{letter}axis") or letter
            for trace in self.traces
            for letter in "xy"
            if trace["type"] == "bar"
            and trace.get("base") is None
            and (trace.get("orientation") == "h") == (letter == "x")
        }
        found = {}
        for name in names:
            spec = self._spec(name) | ({"rangemode": "tozero"} if name in from_zero else {})
            found[name] = Axis(
                name, spec, self.areas[name[0]], seen.get(str(spec.get("matches"))) or seen.get(name, [])
            )
        return found

    def _spec(self, name: str) -> dict[str, Any]:
        spec = dict(self.layout.get(f"{name[0]}axis{name[1:]}") or {})
        over = spec.get("overlaying")
        return (dict(self._spec(over)) | spec if over and over != name and "domain" not in spec else spec) | (
            {"overlaid": True} if over else {}
        )

    def _ordered(self, name: str, values: list[Any]) -> list[Any]:
        """Return ``values``, preceded by a list of all categories if the axis ``name`` sorts them by their totals.

        ``values`` are lists of values on the axis. The order in which categories first occur in the result is their
        order on the axis.
        """
        if (self.layout.get(f"{name[0]}axis{name[1:]}") or {}).get("categoryorder") != "total ascending":
            return values
        totals: dict[str, float] = {}
        for trace in self.traces:
            places, numbers = (trace["y"], trace["x"]) if name[0] == "y" else (trace["x"], trace["y"])
            for place, number in zip(places, numbers, strict=False):
                totals[str(place)] = totals.get(str(place), 0.0) + float(number)
        return [sorted(totals, key=totals.__getitem__), *values]

    def _widest_tick(self) -> int:
        texts = [str(y) for trace in self.traces for y in np.asarray(trace.get("y", ()), object).ravel()[:100]
                 if isinstance(y, str)]  # fmt: skip
        texts += map(str, (self.layout.get("yaxis") or {}).get("ticktext") or ())
        return max((len(short(marks.plain(text))) for text in texts), default=5)

    def _seen(self, trace: dict[str, Any], letter: str) -> list[Any]:
        """Return the values that must be visible on a trace's axis in the direction ``letter`` ("x" or "y")."""
        values = trace.get(letter)
        other = trace.get("y" if letter == "x" else "x")
        if trace["type"] == "heatmap":
            shape = np.shape(trace["z"])[::-1]
            return [values if values is not None else np.arange(shape["xy".index(letter)])]
        if trace["type"] == "bar" and (trace.get("orientation") == "h") == (letter == "x"):
            base = np.asarray(trace.get("base", 0) if trace.get("base") is not None else 0, float)
            total = (
                self._total(trace, letter)
                if self.layout.get("barmode") in ("stack", "relative")
                else np.asarray(values, float)
            )
            return [[0.0], base + total] if trace.get("base") is None else [base, base + np.asarray(values, float)]
        if letter == "y" and trace.get("stackgroup"):
            group = [one for one in self.traces if one.get("stackgroup") == trace["stackgroup"]]
            return [[0.0], np.sum([np.asarray(one["y"], float) for one in group], axis=0)]
        return [values if values is not None else np.arange(len(other) if other is not None else 0)]

    def _total(self, trace: dict[str, Any], letter: str) -> Array:
        """Return the total height of the stack of bars at each position where a trace has a bar.

        ``letter`` is the axis, "x" or "y", along which bars extend.
        """
        where, sums = ("y" if letter == "x" else "x"), dict[str, float]()
        for one in self.traces:
            if one["type"] == "bar" and one.get(f"{where}axis") == trace.get(f"{where}axis"):
                for place, value in zip(one[where], one[letter], strict=False):
                    sums[str(place)] = sums.get(str(place), 0.0) + float(value)
        return np.array([sums[str(place)] for place in trace[where]])

    def _of(self, trace: dict[str, Any]) -> tuple[Axis, Axis]:
        return self.axes[trace.get("xaxis") or "x"], self.axes[trace.get("yaxis") or "y"]

    def _anchor(self, axis: Axis) -> Axis:
        """Return the axis to which ``axis`` is anchored: for an x axis, the y axis at whose end the x axis is drawn."""
        letter = "y" if axis.name[0] == "x" else "x"
        found = self.axes.get(str(axis.spec.get("anchor") or f"{letter}{axis.name[1:]}"))
        return found or self.axes[letter]

    def _legend(self) -> list[tuple[str, str, str, str]]:
        """Return the text, colour, kind of marker and dash of each entry of the legend.

        A kind of marker is a symbol of plotly, "square" for areas and bars, "hatched" for bars with a pattern, or
        "line".
        """
        shown = [trace for trace in self.traces if trace.get("name") and trace.get("showlegend") is not False]
        if self.layout.get("showlegend") is False or (len(shown) < 2 and not self.layout.get("showlegend")):
            return []
        found = {
            marks.plain(str(trace["name"])): (
                trace["colour"],
                _entry(trace),
                str((trace.get("line") or {}).get("dash") or ""),
            )
            for trace in shown
        }
        return [(name, *about) for name, about in found.items()]

    def _point(self, owner: dict[str, Any], letter: str, value: Any) -> float:
        """Return the position in pixels of a coordinate of a shape or annotation (``owner``) in one direction.

        ``letter`` is "x" or "y"; ``value`` is a value on an axis or a share of the plot, as ``xref`` or ``yref`` says.
        """
        reference = str(owner.get(f"{letter}ref") or letter)
        base, _, domain = reference.partition(" ")
        axis = self.axes.get(base)
        if axis is None or domain:
            begin, end = (axis.begin, axis.end) if axis is not None else self.areas[letter]
            return float(begin + float(value) * (end - begin))
        if isinstance(value, (int, float)):  # on a logarithmic axis these are exponents already
            share = (float(value) - axis.low) / ((axis.high - axis.low) or 1.0)
            return float(axis.begin + share * (axis.end - axis.begin))
        return float(axis.place([value])[0])


def _entry(trace: dict[str, Any]) -> str:
    """Return the kind of marker with which the legend shows a trace."""
    marker = trace.get("marker") or {}
    if trace["type"] == "bar":
        return "hatched" if (marker.get("pattern") or {}).get("shape") else "square"
    if "fillcolor" in trace or trace.get("fill"):
        return "square"
    symbol = marker.get("symbol")
    return (symbol if isinstance(symbol, str) else "circle") if trace.get("mode") == "markers" else "line"


def short(text: str) -> str:
    """Return a text of at most `LONGEST` characters: a longer one ends in an ellipsis."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
