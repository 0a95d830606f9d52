"""Numbers for people."""

from __future__ import annotations

import pytest
from flnb_telemetry import quantity


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (quantity.duration, 0, "0 ns"),
        (quantity.duration, 412, "412 ns"),
        (quantity.duration, 412_345, "412 µs"),
        (quantity.duration, 999_600, "1.00 ms"),
        (quantity.duration, 1_980_000, "1.98 ms"),
        (quantity.duration, 61e9, "61.0 s"),
        (quantity.duration, float("nan"), "–"),
        (quantity.size, 0, "0 B"),
        (quantity.size, 999, "999 B"),
        (quantity.size, 1000, "0.977 KiB"),
        (quantity.size, 9 << 20, "9.00 MiB"),
        (quantity.size, 3 << 40, "3.00 TiB"),
        (quantity.count, 9999, "9999"),
        (quantity.count, 10_400, "10.4 k"),
        (quantity.count, 2.5e9, "2.50 G"),
        (quantity.percent, 0.1234, "12.3 %"),
        (quantity.percent, float("nan"), "–"),
        (quantity.significant, 0.0314159, "0.0314"),
        (quantity.norm, 3.9221e-8, "3.92e-08"),
        (quantity.norm, 2.0, "2.00"),
        (quantity.norm, 1e30, "1.00e+30"),
        (quantity.norm, 0.0, "0"),
        (quantity.norm, float("nan"), "–"),
        (quantity.significant, 123456.0, "123000"),
        (quantity.significant, -1.314, "-1.31"),
        (quantity.significant, 9.999, "10.0"),
    ],
)
def test_text(function: object, value: float, text: str) -> None:
    assert function(value) == text  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "number"),
    [("16MiB", 16 << 20), ("1.5 GB", 1_500_000_000), ("4KiB", 4096), ("7", 7), ("2 kb", 2000), ("9B", 9), (12, 12)],
)
def test_sizes_are_read(text: str | int, number: int) -> None:
    assert quantity.bytes_of(text) == number
