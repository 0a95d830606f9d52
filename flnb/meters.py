"""Meters, which accumulate a metric over steps: `add` results, read `value`, `reset` to start over.

Outputs and targets may be Tensors, Variables, NumPy arrays or lists.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Hashable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flnb.ops.documentation import readable
from flnb.tensor import Tensor

__all__ = [
    "AverageMeter", "CountMeter", "EditDistanceMeter", "FrameErrorMeter", "MSEMeter", "TimeMeter", "TopKMeter",
]  # fmt: skip


class _Mean:
    """Base of meters whose value is a sum divided by the sum of the weights; NaN before anything is added."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything that was added."""
        self._sum = self._weight = 0.0

    @property
    def value(self) -> float:
        """The meter's value up to now, a float; NaN before anything is added."""
        return self._sum / self._weight if self._weight else float("nan")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value:.6g})"


class AverageMeter(_Mean):
    """The weighted mean of the numbers added; NaN before any is added.

    >>> import flnb
    >>> loss = flnb.meters.AverageMeter()
    >>> loss.add(1.0, weight=64)
    >>> loss.add(4.0, weight=32)
    >>> loss
    AverageMeter(2)
    """

    def add(self, value: Any, weight: float = 1.0) -> None:
        """Add a number, or a tensor with one element, with a weight such as the number of examples."""
        weight = float(weight)  # NumPy's small ints would overflow
        self._sum += (value.item() if hasattr(value, "item") else float(value)) * weight
        self._weight += weight


class CountMeter:
    """Counts how often each key was added; its value is a dict from keys to counts.

    >>> import flnb
    >>> seen = flnb.meters.CountMeter()
    >>> seen.add("cat")
    >>> seen.add("dog", 3)
    >>> seen.value
    {'cat': 1, 'dog': 3}
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything that was added."""
        self._counts: dict[Hashable, int] = {}

    def add(self, key: Hashable, count: int = 1) -> None:
        """Add an integer ``count`` to the count of a key, which may be any hashable object."""
        self._counts[key] = self._counts.get(key, 0) + operator.index(count)

    @property
    def value(self) -> dict[Hashable, int]:
        """A dict with the count of each key that was added."""
        return dict(self._counts)

    def __repr__(self) -> str:
        return f"CountMeter({self._counts})"


class EditDistanceMeter(_Mean):
    """Word or letter error rate: the edits that turn targets into outputs, divided by the targets' lengths.

    The number of edits is the smallest possible (Wagner and Fischer 1974). The attributes ``deletions`` (items that
    only the target has), ``insertions`` (items that only the output has) and ``substitutions`` count each kind of edit.
    If several sequences of edits are shortest, the one with most substitutions counts. The value is NaN while all
    targets are empty.

    >>> import flnb
    >>> errors = flnb.meters.EditDistanceMeter()
    >>> errors.add("sitting", "kitten")
    >>> errors.value, errors.substitutions, errors.insertions, errors.deletions
    (0.5, 2, 1, 0)
    """

    def reset(self) -> None:
        """Set all counts to zero."""
        super().reset()
        self.deletions = self.insertions = self.substitutions = 0

    def add(self, output: Any, target: Any) -> None:
        """Add the edits of one pair of sequences: strings, lists of hashable items, or arrays with one axis.

        Raises:
            ValueError: an array that does not have one axis.
        """
        got, wanted = _sequence("output", output), _sequence("target", target)
        names = {item: number for number, item in enumerate(dict.fromkeys([*got, *wanted]))}
        table = _distances([names[item] for item in got], [names[item] for item in wanted])
        i, j = len(wanted), len(got)
        self._sum += float(table[i, j])
        self._weight += i
        while i or j:
            if i and j and table[i, j] == table[i - 1, j - 1] + (wanted[i - 1] != got[j - 1]):
                i, j = i - 1, j - 1
                self.substitutions += wanted[i] != got[j]
            elif i and table[i, j] == table[i - 1, j] + 1:
                i -= 1
                self.deletions += 1
            else:
                j -= 1
                self.insertions += 1


def _distances(got: list[int], wanted: list[int]) -> npt.NDArray[np.int64]:
    """Compute the edit distance of every prefix of ``wanted`` to every prefix of ``got``.

    Returns:
        An array (len(wanted) + 1, len(got) + 1).
    """
    places, row = np.arange(len(got) + 1), np.arange(len(got) + 1)
    table = [row]
    output = np.asarray(got, np.int64)
    for item in wanted:
        above = np.append(row[0] + 1, np.minimum(row[1:] + 1, row[:-1] + (output != item)))
        row = np.minimum.accumulate(above - places) + places  # an insertion costs one more than its left neighbour
        table.append(row)
    return np.stack(table)


class FrameErrorMeter(_Mean):
    """The share of elements in which output and target differ; NaN before anything is added.

    >>> import flnb
    >>> errors = flnb.meters.FrameErrorMeter()
    >>> errors.add([1, 2, 3, 4], [1, 2, 0, 4])
    >>> errors.value
    0.25
    """

    def add(self, output: Any, target: Any) -> None:
        """Add the outputs and targets of a step: two arrays of equal shapes, with any number of axes."""
        got, wanted = _alike("FrameErrorMeter", output, target)
        self._sum += float((got != wanted).sum())
        self._weight += wanted.size


class MSEMeter(_Mean):
    """The mean squared difference of all elements added, computed in float64; NaN before anything is added.

    >>> import flnb
    >>> error = flnb.meters.MSEMeter()
    >>> error.add([1.0, 2.0], [1.0, 4.0])
    >>> error.value
    2.0
    """

    def add(self, output: Any, target: Any) -> None:
        """Add the outputs and targets of a step: two arrays of equal shapes, with any number of axes."""
        got, wanted = _alike("MSEMeter", output, target)
        with np.errstate(all="ignore"):
            self._sum += float(((got.astype(np.float64) - wanted) ** 2).sum())
        self._weight += wanted.size


class TimeMeter:
    """A stopwatch: adds up the seconds between each `start` and `stop`, or inside ``with`` blocks.

    `add` counts units of work, such as examples, for the seconds per unit.

    >>> import flnb
    >>> work = flnb.meters.TimeMeter()
    >>> with work:
    ...     work.add(10)
    >>> 0 < work.per_unit < work.value
    True
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Stop, and set seconds and units to zero."""
        self._seconds, self._units = 0.0, 0.0
        self._began: float | None = None

    def start(self) -> None:
        """Start the clock; nothing changes if it runs already."""
        if self._began is None:
            self._began = time.perf_counter()

    def stop(self) -> None:
        """Stop the clock; nothing changes if it is stopped already."""
        self._seconds, self._began = self.value, None

    def add(self, units: float = 1) -> None:
        """Add to the number of units of work, such as examples."""
        self._units += float(units)

    @property
    def value(self) -> float:
        """The seconds measured up to now, also while the clock runs."""
        return self._seconds + (0.0 if self._began is None else time.perf_counter() - self._began)

    @property
    def per_unit(self) -> float:
        """The seconds per unit added; NaN before any unit is added."""
        return self.value / self._units if self._units else float("nan")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"TimeMeter({self.value:.6g} s)"


class TopKMeter(_Mean):
    """Top-k accuracy: the share of samples whose label is among the ``k`` highest scores; NaN before any is added.

    Among equal scores, the lower class ranks higher. A label with the score NaN counts as not found.

    Raises:
        ValueError: ``k`` is below 1.

    >>> import flnb
    >>> top2 = flnb.meters.TopKMeter(2)
    >>> top2.add([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]], [2, 2])
    >>> top2.value
    0.5
    """

    def __init__(self, k: int) -> None:
        if k < 1:
            raise ValueError(f"flnb: TopKMeter's k must be at least 1, got {k}")
        self.k = k
        super().__init__()

    def add(self, output: Any, target: Any) -> None:
        """Add the scores (N, classes) and the integer labels (N,) of N samples.

        Raises:
            ValueError: other shapes, or labels that are not integers in range(classes).
        """
        scores, labels = _array(output), _array(target)
        if scores.ndim != 2 or labels.shape != scores.shape[:1]:
            raise ValueError(
                f"flnb: TopKMeter takes scores (N, classes) and labels (N,), got {scores.shape} and {labels.shape}"
            )
        if labels.dtype.kind not in "iu" or ((labels < 0) | (labels >= scores.shape[1])).any():
            raise ValueError(
                f"flnb: TopKMeter's labels must be whole numbers in range({scores.shape[1]}), "
                f"got {labels.dtype} {labels[:8].tolist()}"
            )
        own = np.take_along_axis(scores, labels[:, None], axis=1)
        before = np.arange(scores.shape[1]) < labels[:, None]
        ahead = np.where(before, scores >= own, scores > own).sum(axis=1)
        self._sum += float(((ahead < self.k) & ~np.isnan(own[:, 0])).sum())
        self._weight += len(labels)

    def __repr__(self) -> str:
        return f"TopKMeter({self.value:.6g}, k={self.k})"


def _array(values: Any) -> npt.NDArray[Any]:
    """Convert a Tensor, a Variable or anything that NumPy accepts to a NumPy array."""
    return np.asarray(values._values() if isinstance(values, Tensor) else values)


def _alike(name: str, output: Any, target: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Convert output and target to arrays; raise a ValueError that names the meter ``name`` if their shapes differ."""
    got, wanted = _array(output), _array(target)
    if got.shape != wanted.shape:
        raise ValueError(f"flnb: {name} takes output and target of equal shapes, got {got.shape} and {wanted.shape}")
    return got, wanted


def _sequence(name: str, values: Any) -> list[Any]:
    """Convert a sequence to a list; raise a ValueError that names ``name`` for an array with 0 or several axes."""
    if isinstance(values, (str, list, tuple)):
        return list(values)
    array = _array(values)
    if array.ndim != 1:
        raise ValueError(f"flnb: EditDistanceMeter's {name} is a sequence (one axis), got shape {array.shape}")
    return array.tolist()


for _name in __all__:
    readable(globals()[_name])
