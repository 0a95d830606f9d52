"""Tapes of a live view: built from the records of backward passes whose gradient norms were measured."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.analysis import passes, tape
from flnb_telemetry.live.ring import Ring
from flnb_telemetry.live.tape import LiveTape

if TYPE_CHECKING:
    from flnb_telemetry.analysis.passes import Measured
    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.schema import Batches

RECENT = 1 << 20
"""The most recent records to store for the next tapes."""
AGE = 2_000_000_000
"""The age (ns) up to which all records are stored; older ones are stored only if they are of the last step or later."""
QUIET = 100_000_000
"""Nanoseconds without a new gradient after which the measured part of an unfinished backward pass is shown."""
KINDS = {"walk": schema.WALK, "grad_stat": schema.GRAD_STAT, "nan_origin": schema.NAN_ORIGIN}
OWN = schema.among(*KINDS.values())


class Backwards:
    """Collects the records of backward passes with measured gradients, and makes their tapes for the dashboard.

    A pass ends only when the next pass begins, so all its gradients are in one tape, however late they arrive. A tape
    with NaN or Inf is shown until another tape has NaN or Inf, or `dismiss` is called.

    Args:
        start: the beginning of the run, ns.
        catalog: the names behind the ids in records.
    """

    def __init__(self, start: int, catalog: Catalog) -> None:
        self._start, self._catalog = start, catalog
        self._recent = Ring(RECENT)
        self._step = 0  # the beginning of the last step that has ended; 0 if there is none
        self._samples: Batches = []  # gradient records of the pass that is shown, and of later ones
        self._latest = self._failed_at = 0  # when the newest gradient was measured, when an op raised an error
        self._sent_end = (0, False)  # the newest gradient that was returned (ns), and whether its step had ended
        self._before: LiveTape | None = None  # the newest tape
        self._final = 0  # the beginning of the last pass that was returned when complete

    def take(self, batches: Batches) -> None:
        """Store the next records, given in batches by thread."""
        for lane, rows in filter(lambda batch: len(batch[1]), batches):
            kinds = schema.numbers(rows)
            own = rows[OWN[kinds]]
            if len(own):
                self._samples.append((lane, own))
                self._latest = max(self._latest, int(own[-1, 1]))
            if len(failed := rows[kinds == schema.OP_FAILED]):
                self._failed_at = max(self._failed_at, int(failed[-1, 1]))
            if len(steps := rows[kinds == schema.STEP]):
                self._step = int(steps[-1, 1])
            self._recent.drop(min(self._step, int(rows[-1, 1]) - AGE))
            self._recent.append(lane, rows)

    def dismiss(self) -> None:
        """Show the newest tape from now on, instead of an earlier tape with NaN or Inf."""
        if found := self._measured():
            self._samples = self._of(found[-1])
            self._sent_end, self._final = (0, False), 0

    def news(
        self, steps: schema.Records, leaves: schema.Records, ended: bool
    ) -> tuple[LiveTape | None, LiveTape | None]:
        """Return the tape to show and, if different, the newest tape; each is None if it was already returned.

        A tape is returned when its step has ended, or when no gradient has arrived for `QUIET` ns.

        Args:
            steps: the latest records of steps.
            leaves: the latest records of leaves (parameters and inputs).
            ended: whether the run has ended.
        """
        failed, t = self._failed_at > self._latest, max(self._latest, self._failed_at)
        over = ended or bool(len(steps) and steps[-1, 2] >= t)
        now = (t, over or failed)
        if t == 0 or now == self._sent_end or not (over or clock() - t >= QUIET):
            return None, None
        self._sent_end = now
        if failed:
            return self._tape(None, steps, leaves), None
        found = self._measured()
        shown, newest = passes.worth_showing(found), found[-1]
        self._samples = self._of(*{shown.t0: shown, newest.t0: newest}.values())
        known = self._final == shown.t0
        if over or newest is not shown:  # it is complete
            self._final = shown.t0
        return (
            None if known else self._tape(shown, steps, leaves),
            None if newest is shown else self._tape(newest, steps, leaves),
        )

    def _measured(self) -> list[Measured]:
        """Return the backward passes among the stored gradient records, in order of time."""
        if not self._samples:
            return []
        stats, walks = (schema.table(schema.KINDS[name], self._samples) for name in ("grad_stat", "walk"))
        return passes.measured(stats, walks)

    def _of(self, *kept: Measured) -> Batches:
        """Return the stored gradient records of the given backward passes."""
        found = []
        for lane, rows in self._samples:
            t = rows[:, 1]
            own = np.any([(one.lane == lane) & (one.t0 <= t) & (t <= one.t1) for one in kept], axis=0)
            if own.any():
                found.append((lane, rows[own]))
        return found

    def _tape(self, shown: Measured | None, steps: schema.Records, leaves: schema.Records) -> LiveTape:
        """Make the tape of the backward pass `shown` or, if it is None, of the last forward pass with an error."""
        batches: dict[str, Batches] = {"step": [(0, steps)], "leaf": [(0, leaves)], "op": self._recent.batches()}
        samples, recent, first = self._samples, batches["op"], 0
        if shown is not None:
            step = steps[steps[:, 2] >= shown.t1][:1]
            samples = self._of(shown)
            recent = [(lane, part) for lane, part in recent if not len(step) or part[-1, 1] >= step[0, 1]]
            nodes = np.concatenate([part[part[:, 0] & 0xFF == schema.GRAD_STAT, 2] for _, part in samples])
            first = int(nodes[nodes > 0].min(initial=shown.root))
        batches |= dict.fromkeys(KINDS, samples) | dict.fromkeys(("edge", "op_failed"), recent)

        def table(name: str) -> schema.Columns:
            return schema.table(schema.KINDS[name], batches[name])

        # If all nodes of the pass were measured, older records need not be searched for the others.
        batches["op"] = batches["record"] = [(lane, part[part[:, 4] >= first]) for lane, part in recent]
        found = tape.of(table, self._start, self._catalog)
        if found.truncated and first:
            batches["op"] = batches["record"] = recent
            found = tape.of(table, self._start, self._catalog)
        if found.index < 0:  # the open step has no record yet: it is the one after the last
            found = replace(found, index=int(steps[-1, 3]) + 1 if len(steps) else 0)
        self._before = LiveTape(found, self._before)
        return self._before
