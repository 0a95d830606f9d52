"""Prediction of how long a recorded training step takes on other links and more ranks, by replaying collective calls.

In the replay every rank computes between calls for as long as in the recording. A call begins when all ranks have
reached it and the link is free of earlier calls, and takes the time that `flnb.distributed.Topology` computes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry import quantity, tables
from flnb_telemetry.analysis.collectives import MERGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flnb_backends.comm.topology import Topology


class Call(NamedTuple):
    """A collective call of a step: the name of the operation, and the size of the whole buffer in bytes."""

    op: str
    nbytes: int


class Point(NamedTuple):
    """A moment of a step at which the program starts the call with index ``call`` or, if ``asks``, waits for its end.

    ``compute`` is the computing time in seconds since the point before: an array (steps, ranks), or 0.
    """

    compute: Any
    call: int
    asks: bool


class Program(NamedTuple):
    """The times of recorded training steps, all of which make the same collective calls.

    Attributes:
        calls: the collective calls of a step.
        points: the moments of a step at which a call starts or is waited for, in order.
        rest: the computing time in seconds after the last point: an array (steps, ranks), or 0.
    """

    calls: list[Call]
    points: list[Point]
    rest: Any

    @property
    def shape(self) -> tuple[Any, ...]:
        """Return the calls and points of a step, without times; steps with equal shapes can be simulated together."""
        return tuple(self.calls), tuple((point.call, point.asks) for point in self.points)


@dataclass(frozen=True, eq=False, repr=False)
class Simulation:
    """Predictions of `simulate`; prints as a table.

    Attributes:
        ranks: the number of simulated ranks.
        steps: the number of simulated steps.
        step_ms: the duration of a step in ms, the mean over steps.
        compute_ms: the time in ms for which a rank computes in a step, the mean over ranks.
        exposed_ms: the time in ms for which a rank waits for calls in a step, the mean over ranks.
        late_ms: the part of ``exposed_ms`` before the last rank has reached the call; the rest is spent on the links.
            Ranks are late because they compute for different times, so only this part remains if links cost nothing.
        calls: for each operation: the number of calls in a step, their bytes, the time for which they use the link, and
            the time for which ranks wait for them.
    """

    ranks: int
    steps: int
    step_ms: float
    compute_ms: float
    exposed_ms: float
    late_ms: float
    calls: dict[str, dict[str, float]]

    @property
    def efficiency(self) -> float:
        """Return the fraction of a step in which ranks compute, from 0 to 1."""
        return self.compute_ms / self.step_ms if self.step_ms else 1.0

    @property
    def hidden(self) -> float:
        """Return the fraction of communication time during which no rank waits, from 0 to 1."""
        wire = sum(row["wire_ms"] for row in self.calls.values())
        return max(0.0, 1.0 - (self.exposed_ms - self.late_ms) / wire) if wire else 1.0

    def summary(self) -> str:
        """Return the one-line summary that begins the repr."""
        step, exposed, late = (quantity.duration(ms * 1e6) for ms in (self.step_ms, self.exposed_ms, self.late_ms))
        ranks = f"{self.ranks:,} rank{'s' * (self.ranks != 1)}"
        return (
            f"{ranks}: {step} a step, of which {exposed} exposed ({late} for late ranks); "
            f"{quantity.percent(self.efficiency)} computing, {quantity.percent(self.hidden)} of transfers hidden"
        )

    def cells(self) -> list[list[str]]:
        """Return the table of operations as rows of texts; the first row has the titles."""
        titles = ["operation", "calls a step", "bytes a step", "on the link", "exposed"]
        return [titles] + [
            [
                op, quantity.significant(row["count"]), quantity.size(round(row["nbytes"])),
                quantity.duration(row["wire_ms"] * 1e6), quantity.duration(row["exposed_ms"] * 1e6),
            ]
            for op, row in self.calls.items()
        ]  # fmt: skip

    def __repr__(self) -> str:
        return "\n".join([self.summary(), *tables.lines(self.cells(), "<>>>>")])

    def _repr_html_(self) -> str:
        return tables.html(self.cells(), "<>>>>", self.summary())


def simulate(run: Any, ranks: int, topology: Topology, strategy: str = "recorded") -> Simulation:
    """Predict the time of the recorded steps on ``ranks`` ranks, each with a batch of the recorded size.

    If n ranks were recorded, simulated rank i computes in each step as long as recorded rank i % n. So the copies of a
    rank are slow in the same steps, and with infinitely fast links, more ranks take no longer than the recorded ranks.
    Real ranks are slow in different steps, so a large number of them will take longer than predicted.

    Collective calls of all recorded ranks are repeated with buffers of the same size. All other work takes as long as
    in the recording; messages between two ranks, and calls of smaller groups, count as computing. A link carries one
    call after the other, each for the time of `flnb.distributed.Topology.seconds`.

    Args:
        run: a `flnb.Ranks`, or one recording in which ranks are threads, with training steps that were recorded whole.
        ranks: the number of ranks to simulate.
        topology: the links between them. `Topology.fitted` makes one from measured times.
        strategy: ``"recorded"`` does not change calls. ``"at the end"`` removes overlap: all calls of a step begin when
            the last call begins, except calls whose end the program waits for earlier. ``"sharded 1"``, ``"sharded 2"``
            and ``"sharded 3"`` use the calls of `Sharded` in that stage: an all_reduce becomes a reduce_scatter, and
            parameters are gathered after each step, or in stage 3 before forward and before backward.

    Raises:
        ValueError: the strategy is unknown, ``ranks`` is less than 1, the recording lacks some of its ranks, or it has
            no training steps with collective calls.

    >>> import flnb, flnb.nn as nn
    >>> def train():
    ...     net = flnb.distributed.DataParallel(nn.Linear(64, 64))
    ...     for _ in range(2):
    ...         with flnb.step():
    ...             net(flnb.ones((8, 64))).sum().backward()
    >>> with flnb.record() as run:
    ...     done = flnb.distributed.run_threads(2, train)
    >>> link = flnb.distributed.Topology(latency=1.0, bandwidth=1e9)
    >>> found = flnb.distributed.simulate(run, 1000, link)
    >>> list(found.calls), found.calls["all_reduce"]["count"], found.step_ms > 2 * 999 * 1000.0
    (['all_reduce'], 2.0, True)
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"simulate: got strategy {strategy!r}, expected one of {', '.join(STRATEGIES)}")
    if ranks < 1:
        raise ValueError(f"simulate: got {ranks} ranks, expected 1 or more")
    return _replayed(STRATEGIES[strategy](recorded(run)), ranks, topology)


def recorded(run: Any) -> Program:
    """Return a `Program` with the recorded steps that have the most frequent sequence of calls.

    Raises:
        ValueError: no step has collective calls, or the recordings of some ranks are missing.
    """
    found = run if hasattr(run, "waited") else run.collectives
    if found.partial:
        raise ValueError(f"simulate: the recording contains only {found.partial}; {MERGE}")
    steps = [
        _step(found, index, began, ended)
        for index in np.unique(found.step[found.step >= 0]).tolist()
        for began, ended in _bounds(found.views, index)
    ]
    counts = Counter(step.shape for step in steps if step.calls)
    if not counts:
        raise ValueError(
            "simulate: the recording has no training steps with collective calls of all ranks; record some steps of a "
            "distributed program, each inside flnb.step() or ended by an optimizer"
        )
    shape = counts.most_common(1)[0][0]
    steps = [step for step in steps if step.shape == shape]
    points = [
        point._replace(compute=np.stack([step.points[i].compute for step in steps]))
        for i, point in enumerate(steps[0].points)
    ]
    return Program(steps[0].calls, points, np.stack([step.rest for step in steps]))


def _bounds(views: Any, index: int) -> Iterator[tuple[Any, Any]]:
    """Yield the begin and the end of training step ``index`` on all ranks, as two arrays of ns.

    Nothing is yielded if a rank lacks the step. ``views`` are the events of each rank.
    """
    began, ended = [], []
    for view in views:
        table = view.table("step")
        for row in np.flatnonzero(table["index"] == index)[:1]:
            began.append(table["t0"][row])
            ended.append(table["t1"][row])
    if len(began) == len(views):
        yield np.array(began), np.array(ended)


def _step(found: Any, index: int, began: Any, ended: Any) -> Program:
    """Return one step as a `Program`, with its calls and points in the order that they have on the first rank.

    Args:
        found: the joined collective calls (`flnb_telemetry.analysis.collectives.Collectives`).
        index: the index of the step.
        began, ended: the times at which the step began and ended on each rank, ns.
    """
    met = (found.begin > 0).all(axis=0) & (found.end > 0).all(axis=0)
    size, calls, moments = len(found.ranks), [], []
    for number, row in enumerate(np.flatnonzero((found.step == index) & met).tolist()):
        op, nbytes = str(found.op[row]), int(found.nbytes[row])
        calls.append(Call(op, nbytes * size if op == "all_gather" else nbytes))
        asked = np.where(found.waited[:, row] > 0, found.asked[:, row], found.end[:, row])
        moments.append((found.begin[:, row], 0, number, False))
        moments.append((asked, found.waited[:, row], number, True))
    moments.sort(key=lambda moment: (moment[0][0], moment[3], moment[2]))
    points, before = [], began
    for t, waited, number, asks in moments:
        points.append(Point(np.maximum(t - before, 0) * 1e-9, number, asks))
        before = np.maximum(before, t) + waited
    return Program(calls, points, np.maximum(ended - before, 0) * 1e-9)


def _replayed(program: Program, ranks: int, topology: Topology) -> Simulation:
    """Return the prediction for all steps of a program on ``ranks`` ranks with the links of ``topology``."""
    steps, recorded_ranks = program.rest.shape
    columns = np.arange(min(ranks, recorded_ranks))  # ranks that compute alike stay together
    share = (1 + (ranks - 1 - columns) // recorded_ranks) / ranks
    costs = [topology.seconds(call.op, call.nbytes, ranks) for call in program.calls]
    rows = {call.op: dict.fromkeys(("count", "nbytes", "wire_ms", "exposed_ms"), 0.0) for call in program.calls}
    for call, cost in zip(program.calls, costs, strict=True):
        for name, value in (("count", 1.0), ("nbytes", float(call.nbytes)), ("wire_ms", 1e3 * cost)):
            rows[call.op][name] += value
    t, computed, exposed, late, free = np.zeros(len(columns)), 0.0, 0.0, 0.0, 0.0
    for number in range(steps):
        chosen = number, columns
        ready, ends = np.zeros(len(costs)), np.zeros(len(costs))
        for point in program.points:
            spent = point.compute[chosen] if np.ndim(point.compute) else np.full(len(columns), point.compute)
            t = t + spent
            computed += float(share @ spent)
            if point.asks:
                stood = float(share @ np.maximum(ends[point.call] - t, 0))
                exposed, late = exposed + stood, late + float(share @ np.maximum(ready[point.call] - t, 0))
                rows[program.calls[point.call].op]["exposed_ms"] += 1e3 * stood / steps
                t = np.maximum(t, ends[point.call])
            else:
                ready[point.call] = t.max()
                free = ends[point.call] = max(ready[point.call], free) + costs[point.call]
        t = t + program.rest[chosen]
        computed += float(share @ program.rest[chosen])
    per = 1e3 / steps
    return Simulation(ranks, steps, float(share @ t) * per, computed * per, exposed * per, late * per, rows)


# Strategies: each changes the steps


def _at_the_end(program: Program) -> Program:
    """Return a program in which all calls of a step start together, when the last one starts.

    If the program waits for the end of a call before that time, the call starts as recorded.
    """
    last = max(i for i, point in enumerate(program.points) if not point.asks)
    early = {point.call for point in program.points[:last] if point.asks}
    points: list[Point] = []
    moved: list[Point] = []
    carried: Any = 0.0
    for i, point in enumerate(program.points):
        compute, carried = point.compute + carried, 0.0
        if i < last and not point.asks and point.call not in early:
            carried = compute
            moved.append(point._replace(compute=0.0))
        else:
            points.append(point._replace(compute=compute))
        if i == last:
            points += moved
    return program._replace(points=points)


def _sharded(stage: int) -> Callable[[Program], Program]:
    """Return a function that changes a program's calls to those of `Sharded` in a stage."""

    def change(program: Program) -> Program:
        buckets = [number for number, call in enumerate(program.calls) if call.op == "all_reduce"]
        calls = [call._replace(op="reduce_scatter") if call.op == "all_reduce" else call for call in program.calls]

        def gathered(which: list[int], compute: Any = 0.0) -> list[Point]:
            found: list[Point] = []
            for number in which:
                found += [Point(0.0 if found else compute, len(calls), False), Point(0.0, len(calls), True)]
                calls.append(Call("all_gather", program.calls[number].nbytes))
            return found

        if stage < 3:
            points = program.points + gathered(buckets, program.rest)
            return Program(calls, points, np.zeros_like(program.rest) if buckets else program.rest)
        points = gathered(buckets[::-1])
        for point in program.points:
            points += [*(gathered([point.call]) if not point.asks and point.call in buckets else ()), point]
        return Program(calls, points, program.rest)

    return change


STRATEGIES: dict[str, Callable[[Program], Program]] = {
    "recorded": lambda program: program,
    "at the end": _at_the_end,
    "sharded 1": _sharded(1),
    "sharded 2": _sharded(2),
    "sharded 3": _sharded(3),
}
