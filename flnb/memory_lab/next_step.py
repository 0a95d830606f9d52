"""Continues a trace that ends in the middle of a training step: through this step, and through one whole further step.

A later step makes the calls of an earlier step again, on its own blocks. A block of the earlier step is matched by its
number in the step, a block of the step before that by its op, module and category.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from flnb_telemetry import Recording
    from flnb_telemetry.schema import Ints

    from flnb.memory_lab.traces import Trace

COMPARED = 64
"""The most earlier steps with which the unfinished step is compared."""


class Whole(NamedTuple):
    """A step that ended: its number, and when it ended, in seconds since the recording began."""

    number: int
    end: float


class Continued(NamedTuple):
    """A continued trace.

    Attributes:
        trace: the trace with the rest of the unfinished step and one whole step appended.
        begin: the position of the first call of the whole step.
        like: the number of the step whose calls were appended.
    """

    trace: Trace
    begin: int
    like: int


def whole_steps(run: Recording, t: int) -> list[Whole]:
    """Return the steps of a recording that ended until the time ``t`` (ns), of the thread that ended the last one."""
    steps = run.table("step")
    ended = np.flatnonzero(steps["t1"] <= t)
    ended = ended[np.argsort(steps["t1"][ended], kind="stable")]
    ended = ended[steps["lane"][ended] == steps["lane"][ended[-1]]] if len(ended) else ended
    seconds = run.seconds_at(steps["t1"][ended])
    return [Whole(*about) for about in zip(steps["index"][ended].tolist(), seconds.tolist(), strict=True)]


def continued(trace: Trace, steps: list[Whole]) -> Continued | None:
    """Append the rest of a trace's last, unfinished step, and one whole step, to a copy of the trace.

    Both repeat the newest whole step that made the same requests up to the point where the trace ends. It must have a
    whole step before it, because the first step makes what later steps only use, such as the state of an optimizer.

    Args:
        trace: the trace, which ends with an allocation.
        steps: the whole steps in the trace, in order of time.

    Returns:
        The continued trace, or None if no whole step made the same requests, or if that step freed blocks of the step
        before it that have no counterpart.

    >>> import flnb
    >>> from flnb.memory_lab.next_step import Whole, continued
    >>> calls = flnb.memory.Trace.of_calls([1, -1, 2, -2, 3], [8, 8, 8])  # at 0, 1, 2, 3, 4 s
    >>> continued(calls, [Whole(0, 1.5), Whole(1, 3.5)]).trace.calls
    array([ 1, -1,  2, -2,  3, -3,  4, -4])
    """
    periods = _Periods(trace, steps)
    asked = periods.sizes(len(steps))
    for model in range(len(steps) - 1, max(0, len(steps) - 1 - COMPARED), -1):
        if np.array_equal(periods.sizes(model)[: len(asked)], asked):
            return periods.repeated(model, len(asked), steps[model].number)
    return None


class _Periods:
    """The calls of a trace by steps: period k ends with step k, the last one is unfinished.

    A block is known by its period and its number in the period, both counted from 0.
    """

    def __init__(self, trace: Trace, steps: list[Whole]) -> None:
        self.trace = trace
        stops = np.searchsorted(trace.t, [step.end for step in steps], "right")
        self.stops = np.array([0, *stops.tolist(), len(trace)], np.int64)
        self.first = np.concatenate([[0], np.cumsum(trace.calls > 0)])[self.stops]  # allocations before each period
        self._likeness: dict[int, tuple[list[Any], dict[Any, int]]] = {}

    def sizes(self, period: int) -> Ints:
        """Return the sizes of the allocations of a period in bytes, in order."""
        return self.trace.nbytes[self.first[period] : self.first[period + 1]]

    def calls(self, period: int) -> list[tuple[int, int, int]]:
        """Return a period's calls as (1 or -1 for a free, periods since the allocation, number of the block)."""
        calls = self.trace.calls[self.stops[period] : self.stops[period + 1]]
        rows = np.abs(calls) - 1
        born = np.searchsorted(self.first, rows, "right") - 1
        about = np.sign(calls).tolist(), (period - born).tolist(), (rows - self.first[born]).tolist()
        return list(zip(*about, strict=True))

    def likeness(self, period: int) -> tuple[list[Any], dict[Any, int]]:
        """Return the keys of a period's blocks, by which equal blocks of other periods are found, and a dict by key.

        A key is op, module, category and the place among blocks for which these are equal, counted from the period's
        end. The dict has the numbers of the blocks.
        """
        if period not in self._likeness:
            first, stop = self.first[period : period + 2].tolist()
            trace, before, keys = self.trace, Counter[Any](), list[Any]()
            for row in range(stop - 1, first - 1, -1):
                own = trace.op[row], trace.scope[row], int(trace.category[row])
                keys.append((*own, before[own]))
                before[own] += 1
            keys.reverse()
            self._likeness[period] = keys, {key: number for number, key in enumerate(keys)}
        return self._likeness[period]

    def matched(self, period: int, number: int, other: int) -> int | None:
        """Return the number in the period ``other`` of the block that corresponds to a block of ``period``."""
        return self.likeness(other)[1].get(self.likeness(period)[0][number])

    def repeated(self, model: int, asked: int, step: int) -> Continued | None:
        """Return the trace continued by the period ``model``, or None if a block of the period before has no match.

        Args:
            model: the period to repeat.
            asked: the number of allocations of the unfinished period.
            step: the number of the step of ``model``.
        """
        trace, last, size = self.trace, len(self.stops) - 2, len(self.sizes(model))
        calls = self.calls(model)
        done = [i for i, (sign, _, _) in enumerate(calls) if sign > 0][asked - 1] + 1
        live = {call for call in np.setdiff1d(trace.calls, -trace.calls).tolist() if call > 0}
        more: list[int] = []
        begin = 0
        for period, some in ((last, calls[done:]), (last + 1, calls)):
            begin = len(trace) + len(more)
            for sign, lag, number in some:
                at = period - lag  # the period of the block, of which those from `last` on are like the model
                own = self.matched(model - lag, number, at if at < last else model) if lag else number
                if own is None and lag == 1:
                    return None
                block = int(self.first[min(at, last)]) + size * (at > last) + (own or 0) + 1
                if sign > 0:
                    live.add(block)
                    more.append(block)
                elif own is not None and block in live:
                    live.remove(block)
                    more.append(-block)
        rows = np.arange(size) + int(self.first[model])
        return Continued(self._appended(np.array(more, np.int64), np.concatenate([rows[asked:], rows])), begin, step)

    def _appended(self, calls: Ints, rows: Ints) -> Trace:
        """Return the trace with more calls at its end, whose allocations are like those in ``rows``."""
        trace = self.trace
        return replace(
            trace,
            calls=np.append(trace.calls, calls),
            nbytes=np.append(trace.nbytes, trace.nbytes[rows]),
            t=np.append(trace.t, np.full(len(calls), trace.t[-1])),
            category=np.append(trace.category, trace.category[rows]),
            op=np.append(trace.op, trace.op[rows]),
            scope=np.append(trace.scope, trace.scope[rows]),
            shapes=[*trace.shapes, *(trace.shapes[row] for row in rows.tolist())] if len(trace.shapes) else (),
        )
