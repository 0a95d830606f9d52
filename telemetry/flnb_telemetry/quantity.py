"""Numbers for people: three significant digits, binary units, and sizes read back from text."""

from __future__ import annotations

import math
import re

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([KMGTP]i?B|B|)\s*", re.IGNORECASE)
UNKNOWN = "–"


def significant(value: float) -> str:
    """Three significant digits without an exponent: 412, 1.98, 0.0314; "–" for what is not a number."""
    if not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    value = float(f"{value:.3g}")
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def norm(value: float) -> str:
    """Three significant digits, with an exponent where it is far from 1: 412, 0.0314, 3.92e-08."""
    return f"{value:.2e}" if 0 < value < 1e-6 or 1e9 <= value < math.inf else significant(value)


def duration(ns: float) -> str:
    """A time in nanoseconds as text: 412 µs, 1.98 ms."""
    for unit, scale in (("ns", 1.0), ("µs", 1e3), ("ms", 1e6)):
        if abs(ns) < 999.5 * scale:
            return f"{significant(ns / scale)} {unit}"
    return f"{significant(ns / 1e9)} {'s' if math.isfinite(ns) else ''}".strip()


def size(nbytes: float) -> str:
    """Bytes as text: whole below 1000, then 9.00 MiB."""
    if not math.isfinite(nbytes):
        return UNKNOWN
    if abs(nbytes) < 1000:
        return f"{nbytes:.0f} B"
    power = min(len(_BINARY) - 1, max(1, int(math.log2(abs(nbytes)) // 10)))
    return f"{significant(nbytes / 1024**power)} {_BINARY[power]}"


def count(number: float) -> str:
    """A count as text: whole below 10,000, then 10.4 k, 1.20 M."""
    if abs(number) < 10_000:
        return f"{number:.0f}"
    for unit, scale in (("k", 1e3), ("M", 1e6)):
        if abs(number) < 999.5 * scale:
            return f"{significant(number / scale)} {unit}"
    return f"{significant(number / 1e9)} G"


def percent(share: float) -> str:
    """A share of 1 with one decimal: 12.3 %."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else UNKNOWN


def bytes_of(text: str | int, what: str = "a size") -> int:
    """Bytes of "16MiB", "1.5 GB" (decimal) or a number; `ValueError` for anything else, and for less than one byte."""
    found = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if found is not None:
        unit = found[2].upper()
        base = 1024 if unit.endswith("IB") else 1000
        number = int(float(found[1]) * base ** (" KMGTP".index(unit[0]) if unit and unit != "B" else 0))
    elif isinstance(text, int) and not isinstance(text, bool):
        number = text
    else:
        number = 0
    if number < 1:
        raise ValueError(f"flnb: {what} is {text!r}; expected bytes, as a positive int or text such as '16MiB'")
    return number
