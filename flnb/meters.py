"""Meters: numbers gathered over many steps. Each has `value`, `reset()` and a short repr."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

__all__ = ["AccuracyMeter", "AverageMeter", "CountMeter", "TimeMeter"]


def _array(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(x.detach().numpy() if hasattr(x, "detach") else x)


class Meter:
    value: Any

    def reset(self) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value:.6g})"


class AverageMeter(Meter):
    """The mean of what was added, each with its weight; NaN while empty. Variables are taken as their number.

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
        self._sum += float(_array(value)) * weight
        self._weight += weight

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else float("nan")


class CountMeter(Meter):
    """How many.

    >>> images = CountMeter()
    >>> images.add(64)
    >>> images.add()
    >>> images.value
    65
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.value: int = 0

    def add(self, count: int = 1) -> None:
        self.value += count


class AccuracyMeter(Meter):
    """The share of rows whose true class is among the `top` highest scores; NaN while empty.

    >>> accuracy = AccuracyMeter()
    >>> accuracy.add([[0.1, 0.9], [0.8, 0.2]], [1, 1])
    >>> accuracy.value, accuracy.correct, accuracy.total
    (0.5, 1, 2)
    """

    def __init__(self, top: int = 1) -> None:
        self.top = top
        self.reset()

    def reset(self) -> None:
        self.correct = self.total = 0

    def add(self, scores: Any, targets: Any) -> None:
        """scores (N, classes), targets (N,) integers."""
        scores, targets = _array(scores), _array(targets)
        if scores.ndim != 2 or targets.shape != scores.shape[:1]:
            raise ValueError(
                f"flnb: AccuracyMeter takes scores (N, classes) and targets (N,), got shapes {scores.shape} and "
                f"{targets.shape}"
            )
        # Ties go to the first class, as with argmax; a NaN score is never right.
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.top]
        hits = (best == targets[:, None]) & ~np.isnan(np.take_along_axis(scores, best, 1))
        self.correct += int(hits.sum())
        self.total += len(targets)

    @property
    def value(self) -> float:
        return self.correct / self.total if self.total else float("nan")


class TimeMeter(Meter):
    """Seconds spent inside its `with` blocks.

    >>> clock = TimeMeter()
    >>> with clock:
    ...     _ = sum(range(1000))
    >>> 0.0 < clock.value < 1.0, clock.blocks
    (True, 1)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._spent, self._entered = 0.0, None
        self.blocks = 0

    _entered: float | None

    def __enter__(self) -> TimeMeter:
        if self._entered is not None:
            raise RuntimeError("flnb: TimeMeter is already running; use one meter for each of two nested blocks")
        self._entered = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self._spent = self.value
        self._entered = None
        self.blocks += 1

    @property
    def value(self) -> float:
        """Seconds, the running block's included."""
        return self._spent + (0.0 if self._entered is None else time.perf_counter() - self._entered)
