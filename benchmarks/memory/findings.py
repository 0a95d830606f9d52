"""Conclusions of the study: the best limits, the effect of restricted splitting, the distance to the bounds."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.memory.sweep import Limits, Measures, effective

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["CLAIM", "READINGS", "Moved", "Result", "best", "best_over_all", "less_than_default", "moved", "name_of"]

CLAIM = 0.2
"""The paper's "by over 20%"."""

NO_LIMIT: Limits = (None, None)
COLUMNS = tuple(Measures.__dataclass_fields__)


def name_of(limits: Limits) -> str:
    """Describe limits in words, such as "split 64, recycle 256 MiB"."""
    told = [f"{word} {mib:g}" for word, mib in zip(("split", "recycle"), limits, strict=True) if mib is not None]
    return f"{', '.join(told)} MiB" if told else "no limit"


@dataclass(frozen=True)
class Result:
    """A trace of a model's training, and the measurements of all managers on it.

    Attributes:
        largest: the largest request, in bytes.
        packed: the bytes of the best offline packing found.
        optimal: whether no packing can take fewer bytes.
        sweep: the caching manager's measures, by limits; the default manager has the limits NO_LIMIT.
        others: the measures of the other managers, by name.
    """

    kind: str
    model: str
    calls: int
    peak_live: int
    largest: int
    packed: int
    optimal: bool
    sweep: dict[Limits, Measures]
    others: dict[str, Measures]

    @property
    def default(self) -> Measures:
        return self.sweep[NO_LIMIT]

    def at(self, limits: Limits) -> Measures:
        """Return the caching manager's measures with these limits.

        A limit that is larger than every block of the trace has no effect; it is treated as no limit.
        """
        return self.sweep[effective(limits, self.largest)]

    def to_json(self) -> dict[str, Any]:
        """Return the result in its form for a JSON file; the measurements are lists in the order of `COLUMNS`."""
        about = {
            key: getattr(self, key) for key in ("kind", "model", "calls", "peak_live", "largest", "packed", "optimal")
        }
        sweep = [[*limits, *_row(measures)] for limits, measures in self.sweep.items()]
        return about | {"sweep": sweep, "others": {name: _row(measures) for name, measures in self.others.items()}}


def _row(measures: Measures) -> list[float]:
    values = (getattr(measures, name) for name in COLUMNS)
    return [value if isinstance(value, int) else round(value, 4) for value in values]


def peak(result: Result, measures: Measures) -> float:
    """Return the peak of the bytes that a manager reserved, divided by the peak of the trace's live bytes."""
    return measures.peak_reserved / result.peak_live


READINGS: dict[str, Any] = {
    "in blocks, at the peak": lambda result, of: of.waste_at_peak,
    "in blocks, on average": lambda result, of: of.waste,
    "free in segments in use, at the peak": lambda result, of: of.stranded_at_peak,
    "free in segments in use, on average": lambda result, of: of.stranded,
    "both, at the peak": lambda result, of: of.waste_at_peak + of.stranded_at_peak,
    "both, on average": lambda result, of: of.waste + of.stranded,
    "in idle segments, on average": lambda result, of: of.idle,
    "all that is not live, at the peak": lambda result, of: of.at_peak - 1,
    "all that is not live, on average": lambda result, of: of.average - 1,
    "most reserved beyond most live": lambda result, of: peak(result, of) - 1,
    "smallest device beyond most live": lambda result, of: of.needed / result.peak_live - 1,
}
"""Measures that the paper may mean by "internal fragmentation", and others that may change, per live byte."""


class Moved(NamedTuple):
    """The effect of one limit of splitting on one measure of fragmentation.

    Attributes:
        falls: the number of models for which the measure falls by more than 20 %.
        before, after: medians over the models, without the limit and with it.
        least, most: the smallest and the largest change of a single model, relative to the default.
        reserved: the change of the peak of reserved bytes (geometric mean over the models).
    """

    reading: str
    limits: Limits
    falls: int
    models: int
    before: float
    after: float
    least: float
    most: float
    reserved: float

    @property
    def holds(self) -> bool:
        """Return whether the measure falls by more than 20 % for most models."""
        return 2 * self.falls > self.models


def moved(results: Sequence[Result], reading: str, limits: Iterable[Limits]) -> Moved:
    """Return the effect of the largest limit of splitting with which a measure falls by over 20 % for most models.

    If there is no such limit, return the effect of the limit with which the measure falls by over 20 % for the largest
    number of models; of several such limits, the one with the lowest median of the measure.

    Args:
        results: the measurements of each model.
        reading: the name of the measure, a key of `READINGS`.
        limits: the limits to compare.
    """
    found = [_moved(results, reading, pair) for pair in limits]
    holding = [one for one in found if one.holds]
    if holding:
        return max(holding, key=lambda one: one.limits[0] or 0)
    return max(found, key=lambda one: (one.falls, -one.after))


def _moved(results: Sequence[Result], reading: str, limits: Limits) -> Moved:
    value = READINGS[reading]
    before = [value(result, result.default) for result in results]
    after = [value(result, result.at(limits)) for result in results]
    changes = [_change(old, new) for old, new in zip(before, after, strict=True)]
    falls = sum(change < -CLAIM for change in changes)
    return Moved(
        reading, limits, falls, len(results), median(before), median(after), min(changes), max(changes),
        change_of(results, limits, peak),
    )  # fmt: skip


def change_of(results: Sequence[Result], limits: Limits, measure: Any) -> float:
    """Return by which fraction limits change a measure, compared with no limits: a geometric mean over the models."""
    ratios = [measure(result, result.at(limits)) / measure(result, result.default) for result in results]
    return geometric_mean(ratios) - 1


def _change(before: float, after: float) -> float:
    """Return the relative change of a number; a change from zero is 0 or infinite."""
    if before <= 0:
        return float("inf") if after > before else 0.0
    return after / before - 1


def splits(results: Sequence[Result]) -> list[Limits]:
    """Return the measured pairs of limits that limit splitting and not recycling."""
    return [limits for result in results for limits in result.sweep if limits[0] is not None and limits[1] is None]


def best(result: Result, measure: Any = peak) -> Limits:
    """Return the pair of limits with which a model's measure is least; of equally good pairs, one with fewer limits."""
    return min(result.sweep, key=lambda limits: (measure(result, result.sweep[limits]), 2 - limits.count(None)))


def best_over_all(results: Sequence[Result], measure: Any = peak) -> tuple[Limits, float]:
    """Return the limits that are best for all models together, and the change of the measure (see `change_of`)."""
    tried = {limits for result in results for limits in result.sweep}
    changes = {limits: change_of(results, limits, measure) for limits in tried}
    found = min(changes, key=lambda limits: (round(changes[limits], 6), 2 - limits.count(None)))
    return found, changes[found]


def less_than_default(result: Result) -> dict[str, float]:
    """Return by which fraction each other manager reserves less at its peak than the default caching manager, by name.

    The fraction is negative for a manager that reserves more. The entry "best setting" is the caching manager with its
    best limits, the entry "offline packing" is the best packing found with knowledge of all requests.
    """
    reserved = {name: measures.peak_reserved for name, measures in result.others.items()}
    reserved |= {"best setting": result.sweep[best(result)].peak_reserved, "offline packing": result.packed}
    return {name: 1 - nbytes / result.default.peak_reserved for name, nbytes in reserved.items()}
