"""The steps, metrics and memory marks of a live view, which keyframes repeat, and the names of its leaves."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from flnb_telemetry import schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.live.memory import Arrays
    from flnb_telemetry.recording import Recording
    from flnb_telemetry.run import Run

STORED = 8192
"""The largest number of steps, and of values of metrics, that a keyframe repeats."""
LEAVES = 1 << 16
"""The largest number of parameters and inputs whose names are stored for the next tapes."""
TOLD = {
    "step": ("index", "t0", "t1"),
    "metric": ("name", "t", "step", "value"),
    "locked": ("t", "alloc_id", "locks"),
    "released": ("t", "nbytes", "segments"),
}
"""The columns that frames contain, by kind of event."""


class History:
    """The records of steps, metrics, locked blocks, released memory and leaves that a live view stores.

    Args:
        run: the view; times in frames are counted from its `start`.
        most: the largest number of records of a kind; if there are more, those of every second step are dropped from
            the older half.

    Attributes:
        sent: for each kind of event the number of records that frames have contained so far.
    """

    def __init__(self, run: Run, most: float = STORED) -> None:
        self.run, self.most = run, most
        self.sent: Counter[str] = Counter()
        self._past = {kind: np.empty((0, schema.WORDS), np.int64) for kind in (*TOLD, "leaf")}
        self._left_out = np.zeros(2, np.int64)  # of steps that _past no longer has: how many, and their time in ns

    @property
    def steps(self) -> schema.Records:
        """Return the records of the stored steps."""
        return self._past["step"]

    @property
    def leaves(self) -> schema.Records:
        """Return the records of the stored leaves."""
        return self._past["leaf"]

    def load(self, run: Recording) -> None:
        """Store all steps, metrics and memory marks of a recording."""
        self._past |= {name: schema.rows(schema.KINDS[name], run.table(name)) for name in TOLD}

    def take(self, of: Callable[[int], schema.Records]) -> None:
        """Store new records; ``of`` returns the records of one kind of event, given the kind's number in the schema."""
        for name, past in self._past.items():
            if len(news := of(schema.KINDS[name].number)):
                self._past[name] = np.concatenate([past, news])
        if len(of(schema.LEAF)):  # each measured pass emits all its leaves again
            leaves = self._past["leaf"]
            self._past["leaf"] = leaves[np.sort(np.unique(leaves[:, 2], return_index=True)[1])[-LEAVES:]]

    def news(self) -> Arrays:
        """Return the steps, metrics and memory marks that no frame has contained yet."""
        found: Arrays = {}
        for kind, names in TOLD.items():
            rows = self._past[kind]
            news = self.run.in_seconds(schema.columns(schema.KINDS[kind], rows[self.sent[kind] :]))
            found |= {f"{kind}.{name}": news[name] for name in names if len(news[name])}
            if len(rows) > self.most:
                before = rows
                self._past[kind] = rows = _shortened(rows, 3 if kind == "step" else 2)
                if kind == "step":
                    self._left_out += number_and_time(before) - number_and_time(rows)
            self.sent[kind] = len(rows)
        return found

    def number_and_time(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the number of all steps so far and the sum of their durations, ns: int64 (2,)."""
        return number_and_time(self.steps) + self._left_out


def _shortened(rows: schema.Records, step: int) -> schema.Records:
    """Drop the records of every second step from the older half of `rows`; column `step` has the steps' indices."""
    half = len(rows) // 2
    old = rows[:half]
    numbers = np.unique(old[:, step])
    return np.concatenate([old[np.isin(old[:, step], numbers[::2])], rows[half:]])


def number_and_time(steps: schema.Records) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return how many steps there are and the sum of their durations, ns: int64 (2,)."""
    return np.array([len(steps), (steps[:, 2] - steps[:, 1]).sum()], np.int64)
