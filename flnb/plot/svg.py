"""Draws plotly figures as SVG pictures without scripts, for pages where plotly's own script does not run.

A picture can have what flnb's own figures consist of: lines, markers, areas, bars, heat maps, axes, a legend,
annotations, rectangles and straight lines. A line below it names the types of all other traces. In notebooks each
figure is stored with its picture (`show`), which nbconvert, GitHub and viewers without plotly display. These prefer
HTML with plotly's script to a picture, even where the script cannot run, so that HTML is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.extras import require
from flnb_telemetry.formats import png
from flnb_telemetry.safe_text import html_text

from flnb.plot import marks
from flnb.plot.frame import Frame, short

if TYPE_CHECKING:
    from flnb.plot.axes import Array, Axis

DASHES = {"dot": "2 3", "dash": "7 4", "dashdot": "7 3 2 3", "longdash": "11 5"}
PLOTLY = "application/vnd.plotly.v1+json"
"""The MIME type of figures that JupyterLab and VS Code draw by plotly."""
DRAWN = ("scatter", "scattergl", "bar", "heatmap")
MOST = 4000
"""The most points of a line or markers of a trace that are drawn."""


def show(figure: Any) -> None:
    """Display a plotly figure in a notebook with its picture beside it, for viewers that cannot run plotly."""
    display = require("IPython.display", "lab", "showing a figure")
    pio = require("plotly.io", "lab", "showing a figure")
    bundle = figure._repr_mimebundle_() if pio.renderers.render_on_display and pio.renderers.default else None
    if not bundle:  # in a terminal, say, where figures open in a browser
        type(figure)._ipython_display_(figure)
        return
    picture, about = svg(figure), dict[str, Any]()
    if PLOTLY in bundle:  # beside an image/png, JupyterLab would draw the figure only after a click
        bundle["text/html"] = png.as_image(picture)
    else:
        image, about = png.bundle(picture)
        bundle |= image
    display.publish_display_data(bundle, about)


def svg(figure: Any) -> str:
    """Return a plotly figure as an SVG document.

    >>> import flnb
    >>> with flnb.record("example") as run:
    ...     y = flnb.exp(flnb.ones((64, 64)))
    >>> text = flnb.plot.svg.svg(flnb.plot.op_times(run))
    >>> text.startswith("<svg "), "Op times of example" in text, ">exp</text>" in text
    (True, True, True)
    """
    return _Picture(figure).text()


class _Picture(Frame):
    """Draws a plotly figure as SVG.

    ``parts`` lists the SVG elements drawn so far; later elements cover earlier ones.
    """

    def __init__(self, figure: Any) -> None:
        super().__init__(figure)
        self.stacks: dict[Any, Array] = {}
        self.tops: dict[Any, dict[float, float]] = {}
        self.parts: list[str] = []

    def text(self) -> str:
        """Draw the whole figure and return the SVG document."""
        self._grids()
        for shape in self.layout.get("shapes") or ():
            self._shape(shape)
        bars = [trace for trace in self.traces if trace["type"] == "bar"]
        for trace in self.traces:
            below, self.parts = self.parts, []
            if trace["type"] == "heatmap":
                self._heatmap(trace)
            elif trace["type"] == "bar":
                self._bars(trace, bars)
            elif trace["type"] in DRAWN:
                self._scatter(trace)
            self.parts = [*below, *self._clipped(trace)]
        self._labels()
        for note in self.layout.get("annotations") or ():
            self._note(note)
        other = sorted({trace["type"] for trace in self.traces} - set(DRAWN))
        if other:
            self._write(8, self.height - 6, f"not in this picture: {', '.join(other)}")
        title = " ".join(marks.lines(marks.title_of(self.layout)))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html_text(title or "figure")}" '
            f'viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" height="{self.height:g}" '
            f'font-family="sans-serif" font-size="12" fill="{self.ink}">{"".join(self.parts)}</svg>'
        )

    def _clipped(self, trace: dict[str, Any]) -> list[str]:
        """Return a trace's SVG elements (``self.parts``) inside an ``<svg>`` element that clips them to the plot area.

        The clip of bars has a margin for the bars' texts.
        """
        (left, right), (low, high) = (sorted((axis.begin, axis.end)) for axis in self._of(trace))
        wide, tall = right - left + 8 + 40 * (trace["type"] == "bar"), high - low + 8 + 12 * (trace["type"] == "bar")
        box = f"{left - 4:.1f} {high - tall + 4:.1f} {wide:.1f} {tall:.1f}"
        x, y, width, height = box.split()
        return [f'<svg x="{x}" y="{y}" width="{width}" height="{height}" viewBox="{box}">', *self.parts, "</svg>"]

    def _write(self, x: float, y: float, text: str, anchor: str = "start", **more: Any) -> None:
        """Add a text of one or several lines; (x, y) is where the baseline of the first line is anchored.

        ``more`` has further attributes of the SVG element.
        """
        about = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        for number, line in enumerate(marks.lines(text)):
            if line:
                at = f'x="{x:.1f}" y="{y + 15 * number:.1f}"'
                self.parts.append(f'<text {at} text-anchor="{anchor}"{about}>{html_text(line)}</text>')

    def _line(self, x: Array, y: Array, style: str) -> None:
        """Add a line through points in pixels, with a gap at each point that is not finite."""
        finite = np.isfinite(x) & np.isfinite(y)
        for part in np.split(np.arange(len(x)), np.flatnonzero(~finite)):
            part = part[finite[part]]
            if len(part) > MOST:
                part = part[np.unique(np.linspace(0, len(part) - 1, MOST).astype(int))]
            if len(part) > 1:
                points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[part], y[part], strict=True))
                self.parts.append(f'<polyline points="{points}" fill="none" {style}/>')

    def _grids(self) -> None:
        for name, axis in self.axes.items():
            other = self._anchor(axis)
            if axis.spec.get("overlaid") or axis.spec.get("showgrid") is False or axis.spec.get("visible") is False:
                continue
            for at, _ in axis.ticks():
                ends = (at, other.begin, at, other.end) if name[0] == "x" else (other.begin, at, other.end, at)
                x0, y0, x1, y1 = (f"{value:.1f}" for value in ends)
                line = f'x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}"'
                self.parts.append(f'<line {line} stroke="#7f7f7f" stroke-opacity="0.25"/>')

    def _labels(self) -> None:
        """Add ticks, titles of the axes and of the figure, and the legend."""
        for name, axis in self.axes.items():
            if axis.spec.get("visible") is False:
                continue
            beside, title = self._anchor(axis), marks.title_of(axis.spec)
            right = axis.spec.get("side") == "right"
            for at, text in axis.ticks() if axis.spec.get("showticklabels") is not False else ():
                self._tick(axis, beside, at, short(marks.plain(text)))
            middle = (axis.begin + axis.end) / 2
            if name[0] == "x":
                below = 30 + 4 * max(map(len, axis.categories)) if axis.slanted else 34
                self._write(middle, beside.begin + below, title, "middle")
            else:
                left = beside.end + 52 if right else 14.0
                self._write(left, middle, title, "middle", transform=f"rotate(-90 {left:.1f} {middle:.1f})")
        x, y = self.axes["x"], self.axes["y"]
        self._write(x.begin, 22, marks.title_of(self.layout), font_size=16)
        self._write(x.begin, 40, ((self.layout.get("title") or {}).get("subtitle") or {}).get("text") or "")
        for number, (label, colour, mark, dash) in enumerate(self.legend):
            at = y.end + 8 + 18 * number
            left = max(axis.end for key, axis in self.axes.items() if key[0] == "x") + 12
            left += 50 * any(axis.spec.get("side") == "right" for axis in self.axes.values())
            style = f'fill="{colour}" stroke="{colour}" stroke-dasharray="{DASHES.get(dash, "none")}"'
            if mark == "hatched":
                self.parts.append(marks.hatched(left + 3.5, at - 8.5, 9, 9, colour))
            else:
                self.parts.append(marks.mark(mark, left + 8, at - 4, 9, style))
            self._write(left + 20, at, short(label))

    def _tick(self, axis: Axis, beside: Axis, at: float, label: str) -> None:
        """Write a tick's label at the pixel ``at`` along ``axis``, just outside of the plot.

        ``beside`` is the axis at whose end ``axis`` is drawn.
        """
        if axis.slanted:
            x, y = at + 4, beside.begin + 14
            self._write(x, y, label, "end", transform=f"rotate(-35 {x:.1f} {y:.1f})")
        elif axis.name[0] == "x":
            self._write(at, beside.begin + 16, label, "middle")
        elif axis.spec.get("side") == "right":
            self._write(beside.end + 6, at + 4, label)
        else:
            self._write(beside.begin - 6, at + 4, label, "end")

    def _scatter(self, trace: dict[str, Any]) -> None:
        x_axis, y_axis = self._of(trace)
        values = np.asarray(trace.get("y", ()))
        given = trace.get("x") if trace.get("x") is not None else np.arange(len(values))
        mode = trace.get("mode") or ("lines" if len(values) > 20 or "line" in trace else "lines+markers")
        below: Any = None
        if trace.get("stackgroup"):
            key = trace["stackgroup"], trace.get("yaxis")
            below = self.stacks.get(key, np.zeros(len(values)))
            values = self.stacks[key] = below + values.astype(float)
        elif trace.get("fill") == "tozeroy":
            below = np.zeros(len(values))
        x, y = x_axis.place(given), y_axis.place(values)
        line = trace.get("line") or {}
        hv = str(line.get("shape", "")).endswith("hv")
        if below is not None and len(x):
            under = y_axis.place(below)
            corners = [marks.steps(x, level) if hv else (x, level) for level in (y, under)]
            around = (
                np.concatenate([corners[0][0], corners[1][0][::-1]]),
                np.concatenate([corners[0][1], corners[1][1][::-1]]),
            )
            points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(*around, strict=True) if np.isfinite(a + b))
            self.parts.append(
                f'<polygon points="{points}" fill="{marks.colour(trace.get("fillcolor"), trace["colour"])}"/>'
            )
        if "lines" in mode and line.get("width") != 0:
            style = f'stroke="{trace["colour"]}" stroke-width="{line.get("width") or 1.8:g}"'
            if line.get("dash") in DASHES:
                style += f' stroke-dasharray="{DASHES[line["dash"]]}"'
            self._line(*(marks.steps(x, y) if hv else (x, y)), style)
        if "markers" in mode:
            self._markers(trace, x, y)

    def _markers(self, trace: dict[str, Any], x: Array, y: Array) -> None:
        marker = trace.get("marker") or {}
        size, symbol = marker.get("size", 6), str(marker.get("symbol") or "circle")
        sizes = np.broadcast_to(np.asarray(6 if size is None else size, float), x.shape)
        style = f'fill="{trace["colour"]}" stroke="{trace["colour"]}" opacity="{marker.get("opacity") or 1:g}"'
        for a, b, one in list(zip(x.tolist(), y.tolist(), sizes.tolist(), strict=True))[:MOST]:
            if np.isfinite(a + b):
                self.parts.append(marks.mark(symbol, a, b, one, style))

    def _bars(self, trace: dict[str, Any], bars: list[dict[str, Any]]) -> None:
        """Add the bars of one trace, placed beside, on top of or in front of other traces' bars, as barmode says.

        ``bars`` are all traces of bars in the figure.
        """
        across = trace.get("orientation") == "h"
        axes = self._of(trace)
        along, place = axes if across else axes[::-1]
        values = np.asarray(trace["x" if across else "y"], float)
        where = trace.get("y" if across else "x")
        at = place.place(where if where is not None else np.arange(len(values)))
        mode = self.layout.get("barmode") or "group"
        alike = [one for one in bars if self._of(one) == axes]
        every = [
            place.place(one["y" if across else "x"]) for one in alike if one.get("y" if across else "x") is not None
        ]
        different = np.unique(np.concatenate([at, *every]))
        beside = mode == "group" and len(different) < sum(map(len, every))  # as in plotly, alone a bar is in the middle
        count, number = (len(alike), alike.index(trace)) if beside else (1, 0)
        apart = np.min(np.diff(different), initial=np.inf) if len(different) > 1 else place.unit
        wide: Any = min(0.8 * (apart if np.isfinite(apart) else place.unit), 200.0) / count
        if trace.get("width") is not None:
            wide = place.unit * np.asarray(trace["width"], float)
        base = np.zeros(len(values)) if trace.get("base") is None else np.asarray(trace["base"], float) + 0 * values
        if mode in ("stack", "relative") and trace.get("base") is None:
            base = self._stacked(trace, at, values)
        first, last = along.place(base), along.place(base + values)
        starts = at - wide * count / 2 + wide * number
        colours = marks.colours_of(trace, len(values))
        pattern = (trace.get("marker") or {}).get("pattern") or {}
        ink = marks.colour(pattern.get("fgcolor"), trace["colour"]) if pattern.get("shape") else ""
        for start, a, b, thick, colour in zip(
            starts, first, last, np.broadcast_to(wide, at.shape), colours, strict=True
        ):
            if np.isfinite(start + a + b):
                low, length = min(a, b), max(abs(b - a), 0.4)
                x, y, w, h = (low, start, length, thick) if across else (start, low, thick, length)
                filled = f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{colour}"/>'
                self.parts.append(marks.hatched(x, y, w, h, ink) if ink else filled)
        texts = marks.texts(trace.get("text"), len(values))
        if across and trace.get("textposition") == "inside":
            self._write_inside(texts, starts + wide / 2, first, last, colours)
            return
        for text, start, end in zip(texts, starts, last, strict=True):
            middle = start + np.mean(wide) / 2
            self._write(
                *((end + 4, middle + 4) if across else (middle, end - 4)), text, "start" if across else "middle"
            )

    def _write_inside(self, texts: list[str], middles: Array, first: Array, last: Array, colours: list[str]) -> None:
        """Write texts inside horizontal bars. As in plotly, a text for which a bar is too small is left out.

        Args:
            texts: a text for each bar.
            middles: the vertical position of each bar's middle, in pixels.
            first, last: the horizontal positions of each bar's ends, in pixels.
            colours: the colour of each bar.
        """
        for text, y, a, b, colour in zip(texts, middles, first, last, colours, strict=True):
            if 7 * len(marks.plain(text)) + 8 < abs(b - a):
                ink = "#fff" if colour.startswith("#") else self.ink
                self._write(min(a, b) + 4, y + 4, text, fill=ink)

    def _stacked(self, trace: dict[str, Any], at: Array, values: Array) -> Array:
        """Return the value at which each bar of a trace begins: the top of the bars that were drawn there before.

        ``at`` has the pixel at which each bar is drawn, and ``values`` the length of each bar.
        """
        tops = self.tops.setdefault((trace.get("xaxis"), trace.get("yaxis")), {})
        found = np.array([tops.get(round(float(pixel), 2), 0.0) for pixel in at])
        tops.update({round(float(pixel), 2): top for pixel, top in zip(at, found + values, strict=True)})
        return found

    def _heatmap(self, trace: dict[str, Any]) -> None:
        x_axis, y_axis = self._of(trace)
        z = np.asarray(trace["z"], float)
        given = [
            trace.get(key) if trace.get(key) is not None else np.arange(n)
            for key, n in zip("xy", z.shape[::-1], strict=True)
        ]
        coloured = self.layout.get(trace.get("coloraxis") or "", {}) if trace.get("coloraxis") else trace
        scale, finite = (
            coloured.get("colorscale") or [[0, "#0d0887"], [0.5, "#cc4778"], [1, "#f0f921"]],
            z[np.isfinite(z)],
        )
        low = coloured.get("cmin", trace.get("zmin"))
        high = coloured.get("cmax", trace.get("zmax"))
        low, high = (
            (finite.min(initial=0.0) if low is None else low),
            (finite.max(initial=0.0) if high is None else high),
        )
        x, y = x_axis.place(given[0]), y_axis.place(given[1])
        steps = [
            (np.median(np.abs(np.diff(one))) if len(one) > 1 else axis.unit) + 0.3
            for one, axis in ((x, x_axis), (y, y_axis))
        ]
        for row, top in zip(z, y, strict=False):
            for value, left in zip(row, x, strict=False):
                if np.isfinite(value):
                    fill = marks.shade(scale, (value - low) / ((high - low) or 1.0))
                    corner = f'x="{left - steps[0] / 2:.1f}" y="{top - steps[1] / 2:.1f}"'
                    self.parts.append(f'<rect {corner} width="{steps[0]:.1f}" height="{steps[1]:.1f}" fill="{fill}"/>')

    def _shape(self, shape: dict[str, Any]) -> None:
        x0, x1 = (self._point(shape, "x", shape[key]) for key in ("x0", "x1"))
        y0, y1 = (self._point(shape, "y", shape[key]) for key in ("y0", "y1"))
        if not np.isfinite(x0 + x1 + y0 + y1):
            return
        line = shape.get("line") or {}
        if shape.get("type") == "rect":
            box = f'x="{min(x0, x1):.1f}" y="{min(y0, y1):.1f}" width="{abs(x1 - x0):.1f}" height="{abs(y1 - y0):.1f}"'
            fill = marks.colour(shape.get("fillcolor"), "none")
            self.parts.append(f'<rect {box} fill="{fill}" fill-opacity="{shape.get("opacity") or 1:g}"/>')
        elif shape.get("type") in (None, "line"):
            dash = DASHES.get(str(line.get("dash")), "")
            style = f'stroke="{marks.colour(line.get("color"), self.ink)}" stroke-dasharray="{dash or "none"}"'
            self.parts.append(f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" {style}/>')

    def _note(self, note: dict[str, Any]) -> None:
        """Add an annotation; without an anchor, its text is aligned to the nearest edge of the plot."""
        x, y = (self._point(note, letter, note.get(letter, 0.5)) for letter in "xy")
        if not np.isfinite(x + y):
            return
        paper = note.get("xref") == "paper"
        auto = ("start", "middle", "end")[0 if note.get("x", 0) < 1 / 3 else 2 if note.get("x", 0) > 2 / 3 else 1]
        anchor = {"left": "start", "center": "middle", "right": "end"}.get(
            str(note.get("xanchor")), auto if paper else "middle"
        )
        text, lines = note.get("text") or "", len(marks.lines(note.get("text") or ""))
        top = {"top": 12.0, "middle": 4.0 - 7.5 * (lines - 1), "bottom": -1.0 - 15 * (lines - 1)}
        own = top.get(note.get("yanchor") or ("bottom" if paper and note.get("y", 0) > 2 / 3 else "middle"), 4.0)
        if note.get("showarrow") is not False and note.get("ayref"):
            end = x + (note.get("ax") or 0), self._point({"yref": note["ayref"]}, "y", note["ay"])
            self._line(np.array([x, end[0]]), np.array([y, end[1]]), f'stroke="{self.ink}"')
            x, y = end
        self._write(x + (note.get("xshift") or 0), y + own - (note.get("yshift") or 0), text, anchor)
