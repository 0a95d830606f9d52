"""Formatting of numbers with three significant digits and units, and parsing of sizes in bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

_SECONDS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_COUNTS = {"k": 1e3, "M": 1e6, "G": 1e9}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(?:(?:([KMGTP])(i?))?B)?\s*", re.IGNORECASE)
UNKNOWN = "–"


def significant(value: float) -> str:
    """Format a number with three significant digits and no exponent: 412, 1.98, 0.0314; "–" for NaN and infinity."""
    if not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    value = float(f"{value:.3g}")
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def norm(value: float) -> str:
    """Format a norm with three significant digits, with an exponent if far from 1: 412, 0.0314, 3.92e-08."""
    return f"{value:.2e}" if 0 < value < 1e-6 or 1e9 <= value < math.inf else significant(value)


def _in(units: Mapping[str, float], value: float) -> str:
    """Format a number in the first unit in which it is below 1000, else in the last; `units` has the units' sizes."""
    if not math.isfinite(value):
        return UNKNOWN
    unit = next((unit for unit, scale in units.items() if abs(value) < 999.5 * scale), list(units)[-1])
    return f"{value:.0f} B" if unit == "B" else f"{significant(value / units[unit])} {unit}"


def duration(ns: float) -> str:
    """Format a time in nanoseconds: 412 µs, 1.98 ms."""
    return _in(_SECONDS, ns)


def size(nbytes: float) -> str:
    """Format a number of bytes: 512 B, 9.00 MiB."""
    return _in(_BYTES, nbytes)


def count(number: float) -> str:
    """Format a count: whole below 10,000, then 10.4 k, 1.20 M."""
    return f"{number:.0f}" if abs(number) < 10_000 else _in(_COUNTS, number)


def percent(share: float) -> str:
    """Format a fraction (0 to 1) as a percentage with one decimal: 12.3 %."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else UNKNOWN


def extents(shape: Iterable[int]) -> str:
    """Format a shape: 64×3×3; "scalar" for ()."""
    return "×".join(map(str, shape)) or "scalar"


def bytes_of(text: str | int, what: str = "a size") -> int:
    """Return the number of bytes that a text ("16MiB", "1.5 GB") or an int stands for.

    Raises:
        ValueError: `text` is neither a size nor an int, or is less than one byte; `what` is its name in the message.
    """
    number = text if isinstance(text, int) and not isinstance(text, bool) else 0
    if isinstance(text, str) and (found := _SIZE.fullmatch(text)):
        digits, prefix, binary = found.groups()
        number = int(float(digits) * (1024 if binary else 1000) ** " KMGTP".index((prefix or " ").upper()))
    if number < 1:
        raise ValueError(f"flnb: {what} is {text!r}; expected bytes, as a positive int or text such as '16MiB'")
    return number
