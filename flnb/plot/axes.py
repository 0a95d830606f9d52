"""The axes of a plotly figure, for drawing it as SVG: the range of values, the ticks, and positions in pixels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
TICKS = 6


class Axis:
    """Converts values on one axis of a plotly figure to pixels, and chooses the ticks.

    Args:
        name: plotly's name of the axis in traces, such as "x" or "y2".
        spec: the settings of the axis in the figure's layout, merged with those of the template.
        area: the first and the last pixel of all plots in this direction; the axis covers the share that ``domain`` in
            its settings states.
        seen: arrays of the values that must be visible on this axis: numbers, texts or dates.
    """

    def __init__(self, name: str, spec: dict[str, Any], area: tuple[float, float], seen: list[Any]) -> None:
        self.name, self.spec = name, spec
        low, high = spec.get("domain") or (0, 1)
        self.begin, self.end = (area[0] + share * (area[1] - area[0]) for share in (low, high))
        self.categories = _categories(spec, seen)
        self.log = spec.get("type") == "log"
        numbers = [self.numbers(values).ravel() for values in seen]
        known = np.concatenate([np.empty(0), *numbers])
        self.low, self.high = self._range(known[np.isfinite(known)])

    def numbers(self, values: Any) -> Array:
        """Convert values to numbers: categories to 0, 1, ...; dates to ms since 1970; log10 on a logarithmic axis."""
        if self.categories:
            place = {text: number for number, text in enumerate(self.categories)}
            return np.array([place.get(str(value), math.nan) for value in np.asarray(values, object).ravel()], float)
        array = np.asarray(values)
        if array.dtype.kind == "M":
            return array.astype("datetime64[ms]").astype(float)
        try:
            array = array.astype(float)
        except (TypeError, ValueError):  # None among numbers, or texts
            array = np.array([_number(value) for value in np.asarray(values, object).ravel()], float)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log10(array) if self.log else array

    def _range(self, known: Array) -> tuple[float, float]:
        """Return the numbers at both ends of the axis, for data with the finite numbers ``known``."""
        given = self.spec.get("range")
        if given is not None and all(value is not None for value in given):
            return (float(given[0]), float(given[1]))  # of a logarithmic axis: exponents
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        if self.categories:
            low, high = -0.5, len(self.categories) - 0.5
        else:
            zero = self.spec.get("rangemode") == "tozero" and not self.log
            low, high = (min(0.0, low), max(0.0, high)) if zero else (low, high)
            room = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
            low, high = low - room * (not zero or low < 0), high + room
        return (high, low) if self.spec.get("autorange") == "reversed" else (low, high)

    def place(self, values: Any) -> Array:
        """Return the positions of values on the axis, in pixels."""
        return self.begin + (self.numbers(values) - self.low) / ((self.high - self.low) or 1.0) * (
            self.end - self.begin
        )

    def shrink(self, unit: float) -> None:
        """Shorten the axis, around its middle, so that a distance of 1 in numbers takes ``unit`` pixels."""
        middle, half = (self.begin + self.end) / 2, unit * abs(self.high - self.low) / 2
        sign = 1 if self.end > self.begin else -1
        self.begin, self.end = middle - sign * half, middle + sign * half

    @property
    def unit(self) -> float:
        """The pixels that a distance of 1 in the axis's numbers takes, such as from one category to the next."""
        return abs((self.end - self.begin) / ((self.high - self.low) or 1.0))

    @property
    def slanted(self) -> bool:
        """Whether this is a horizontal axis of categories with names that are wider than the space for one category."""
        return self.name[0] == "x" and 7 * max(map(len, self.categories), default=0) > self.unit

    def ticks(self) -> list[tuple[float, str]]:
        """Return the position in pixels and the text of each tick."""
        low, high = sorted((self.low, self.high))
        if self.spec.get("tickvals") is not None:
            chosen = list(self.spec["tickvals"])
            texts = [str(text) for text in self.spec.get("ticktext") or map(self._text, chosen)]
            return self._inside(self.place(chosen), texts)
        if self.categories:
            every = max(1, math.ceil(14 / max(self.unit, 1e-9))) if self.name[0] == "y" else 1
            return self._inside(self.place(self.categories[::every]), self.categories[::every])
        most = max(2, min(TICKS, int(abs(self.end - self.begin) / 28)))
        step = 1.0 if self.log and high - low > 1 else nice_step(low, high, most)
        values: Array = np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step
        shown: Array = np.power(10.0, values) if self.log else values
        return self._inside(self.place(shown), [self._text(value, step) for value in shown.tolist()])

    def _inside(self, at: Array, texts: list[str]) -> list[tuple[float, str]]:
        first, last = sorted((self.begin, self.end))
        found = zip(at.tolist(), texts, strict=False)
        return [(pixel, text) for pixel, text in found if first - 0.5 <= pixel <= last + 0.5]

    def _text(self, value: Any, step: float = 0.0) -> str:
        """Return the text of the tick at a value; ``step`` is the distance between ticks, 0 if it is not known."""
        if not isinstance(value, (int, float)):
            return str(value)
        if str(self.spec.get("tickformat", "")).endswith("%"):
            return f"{value:.0%}"
        if value and (abs(value) >= 1e5 or abs(value) < 1e-3) and not (step and abs(value) < 1e-9 * step):
            return f"{value:.3g}".replace("e+0", "e").replace("e-0", "e-")
        return f"{round(value, 10):g}"


def nice_step(low: float, high: float, most: int = TICKS) -> float:
    """Return a distance for about ``most`` ticks or fewer between two numbers: 1, 2 or 5 times a power of ten.

    >>> nice_step(0, 10), nice_step(0, 0.7), nice_step(3, 3)
    (2.0, 0.2, 1.0)
    """
    rough = (high - low) / most
    if not rough > 0 or not math.isfinite(rough):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _categories(spec: dict[str, Any], seen: list[Any]) -> list[str]:
    """Return the categories of an axis in their order, or [] if its values (``seen``) are numbers or dates."""
    values = [value for each in seen for value in np.asarray(each, object).ravel()]
    texts = [value for value in values if isinstance(value, str)]
    if spec.get("type") != "category" and (not texts or not all(math.isnan(_number(text)) for text in texts)):
        return []
    return list(dict.fromkeys([*map(str, spec.get("categoryarray") or ()), *map(str, values)]))


def _number(value: Any) -> float:
    """Convert a value to a float; NaN if that is impossible."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
