"""Meters: numbers gathered over many steps."""

from __future__ import annotations

from typing import Any

__all__ = ["AverageMeter"]


class AverageMeter:
    """The mean of what was added, each with its weight; NaN while empty. Tensors and Variables count as their number.

    >>> loss = AverageMeter()
    >>> loss.add(1.0, weight=64)
    >>> loss.add(4.0, weight=32)
    >>> loss
    AverageMeter(2)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._sum = self._weight = 0.0

    def add(self, value: Any, weight: float = 1.0) -> None:
        self._sum += (value.item() if hasattr(value, "item") else float(value)) * weight
        self._weight += weight

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else float("nan")

    def __repr__(self) -> str:
        return f"AverageMeter({self.value:.6g})"
