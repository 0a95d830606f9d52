"""What checkpointing a module does to the lifetimes of a recorded step, worked out from its events.

The calls of modules are the scopes that were entered and left. What one call allocated and did not free before it
ended was saved for backward, or is its output. Checkpointed, the first goes when the call ends and is made again when
backward reaches the call; its inputs stay until backward is through with it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry import schema
from flnb_telemetry.analysis.memory import NEVER

from flnb.memory.traces import Trace, trace
from flnb.ops.table import OPS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flnb_telemetry import Recording
    from flnb_telemetry.schema import Ints

__all__ = ["Call", "Step"]


class Call(NamedTuple):
    """One call of a module that backward came to.

    Attributes:
        scope: the module's path.
        begin, end: of its forward, as indices of the calls to the memory manager: from begin up to, not with, end.
        back, done: of its backward, likewise.
        outputs: allocations that ops outside read.
        inputs: allocations from outside that its ops read.
        seconds: what its forward ops took.
    """

    scope: str
    begin: int
    end: int
    back: int
    done: int
    outputs: frozenset[int]
    inputs: frozenset[int]
    seconds: float


class Step:
    """A recording of training steps, with the calls of modules in it."""

    def __init__(self, run: Recording) -> None:
        self.trace = trace(run)
        self._at = np.asarray(self.trace.t)
        self._row = {number: row for row, number in enumerate(run.memory.block["alloc_id"].tolist())}
        self._least = int(run.meta.get("min_block") or 0)
        self._graph(run)
        self.calls = [call for call in self._calls(run) if call is not None]

    def candidates(self) -> list[str]:
        """Scopes that could be checkpointed, the most bytes x waiting time for the time of running again first."""
        worth: dict[str, float] = defaultdict(float)
        time: dict[str, float] = defaultdict(float)
        single: dict[str, bool] = defaultdict(lambda: True)
        _born, died = self.trace.lifetimes
        for call in self.calls:
            kept = np.array([row for row in self._saved(call) if row not in call.outputs], np.int64)
            waits = np.minimum(died[kept], call.done) - call.end
            worth[call.scope] += float((self.trace.nbytes[kept] * np.maximum(0, waits)).sum())
            time[call.scope] += call.seconds
            single[call.scope] &= len(call.outputs) == 1
        useful = [scope for scope in worth if worth[scope] > 0 and single[scope]]
        return sorted(useful, key=lambda scope: -worth[scope] / max(1e-9, time[scope]))

    def seconds(self, scope: str) -> float:
        """What running a scope's calls once more takes."""
        return sum(call.seconds for call in self.calls if call.scope == scope)

    def recomputed(self, scopes: Iterable[str]) -> Trace:
        """The trace, had the modules of these scopes been checkpointed; of scopes none may lie in another."""
        chosen = [call for call in self.calls if call.scope in set(scopes)]
        born, died = self.trace.lifetimes
        tick, n = Trace.TICK, len(self.trace)
        ends = np.where(died < n, died * tick, NEVER)
        extra: list[tuple[int, int, int]] = []
        inside = {row: call for call in chosen for row in range_of(born, call)}
        for call in chosen:
            for row in range_of(born, call).tolist():
                again = call.back * tick - (call.end - int(born[row]))
                if died[row] < call.end:  # made and freed within the call: so it is when it runs again
                    extra.append((row, again, call.back * tick - (call.end - int(died[row]))))
                elif row in call.outputs:  # the second one is held until the whole call is pulled
                    extra.append((row, again, call.done * tick))
                    if call.back <= died[row] <= call.done:
                        ends[row] = self._outside(row, call) * tick
                else:
                    extra.append((row, again, int(died[row]) * tick if died[row] > call.back else call.back * tick))
                    ends[row] = min(ends[row], call.end * tick)
            arrived = range_of(born, (call.end, call.back))  # the cotangent of the output is held meanwhile
            arrived = arrived[(died[arrived] > call.back) & (died[arrived] <= call.done) & self._pulled[arrived]]
            ends[arrived] = np.maximum(ends[arrived], call.done * tick)
        for call in chosen:
            for row in call.inputs:
                if row not in inside or row in inside[row].outputs:
                    ends[row] = max(ends[row], call.done * tick)
        rows, starts, stops = np.array(extra, np.int64).reshape(-1, 3).T
        return self.trace.with_lifetimes(
            np.concatenate([np.arange(len(born)), rows]),
            np.concatenate([born * tick, starts]),
            np.concatenate([ends, stops]),
        )

    # The graph ------------------------------------------------------------------------------------------------------

    def _graph(self, run: Recording) -> None:
        """Ops in order of time: their nodes, the nodes they read, the blocks they made, and what those save."""
        table, edges = run.table("op"), run.table("edge")
        self.t0, self.t1 = run.seconds_at(table["t0"]), run.seconds_at(table["t1"])
        self.node, self.alloc = table["node"], table["alloc_id"]
        self.back = run.catalog.phase[table["context"]] == schema.BACKWARD
        self.plans = [run.catalog.plans.items[number] for number in table["plan"].tolist()]
        more = {row[0]: row[1:] for row in schema.tuples(edges, "node", *(f"parent{i}" for i in range(2, 7)))}
        self._pulled = np.zeros(len(self.trace.nbytes), bool)  # allocations of backward
        for alloc in self.alloc[self.back].tolist():
            if alloc in self._row:
                self._pulled[self._row[alloc]] = True
        self.block: dict[int, int] = {}  # of a node
        self.reads: list[tuple[int, list[int]]] = []  # the index of an op, and the blocks it reads
        self.saved_by: dict[int, list[int]] = defaultdict(list)  # the indices of the ops that save a block's values
        self.read_by: dict[int, list[int]] = defaultdict(list)
        self.op_of: dict[int, int] = {}
        rows = zip(self.node.tolist(), self.alloc.tolist(), schema.tuples(table, "parent0", "parent1"), strict=True)
        for i, (node, alloc, first) in enumerate(rows):
            if not node or self.back[i]:
                continue
            parents = [parent for parent in (*first, *more.get(node, ())) if parent]
            read = [self.block[parent] for parent in parents if parent in self.block]
            self.reads.append((i, read))
            self.op_of[node] = i
            plan = self.plans[i]
            if alloc in self._row:
                self.block[node] = self._row[alloc]
            elif not alloc and plan.nbytes >= self._least and read:  # a view
                self.block[node] = read[0]
            keeps = OPS[plan.op].saves_for(len(plan.inputs))[-1] if plan.op in OPS else ()
            for row in read:
                self.read_by[row].append(i)
                if any(keeps[:-1]):
                    self.saved_by[row].append(i)

    def _calls(self, run: Recording) -> Iterable[Call | None]:
        table, contexts = run.table("scope"), run.catalog.contexts.items
        t = run.seconds_at(table["t"])
        rows = zip(t.tolist(), table["enter"].tolist(), table["context"].tolist(), table["lane"].tolist(), strict=True)
        open_: dict[int, list[tuple[str, float]]] = defaultdict(list)
        self.spans: list[tuple[float, float]] = []
        found = []
        for now, enter, context, lane in rows:
            if enter:
                open_[lane].append((contexts[context].scope, now))
            elif open_[lane]:
                scope, since = open_[lane].pop()
                self.spans.append((since, now))
                found.append((scope, since, now))
        return [self._call(*span) for span in found]

    def _call(self, scope: str, since: float, until: float) -> Call | None:
        """The call between two times, None where no backward came to it."""
        first, last = np.searchsorted(self.t0, [since, until])
        own = np.flatnonzero(~self.back[first:last]) + first
        nodes = self.node[own][self.node[own] > 0]
        pulls = np.flatnonzero(self.back & np.isin(self.node, nodes))
        if not len(pulls):
            return None
        begin, end = (int(i) for i in np.searchsorted(self._at, [since, until]))
        born, _ = self.trace.lifetimes
        made = [int(born[self._row[a]]) for a in self.alloc[pulls].tolist() if a in self._row]
        allocates = np.flatnonzero(self.trace.calls > 0)  # what was let go of before is freed when one allocates next
        following = allocates[allocates >= np.searchsorted(self._at, self.t0[pulls[0]])]
        back = min([*following[:1].tolist(), *made], default=len(self.trace))
        done = int(np.searchsorted(self._at, self.t1[pulls].max(), "right"))
        inside = set(nodes.tolist())
        read = {row for i, rows in self.reads if first <= i < last for row in rows}
        outputs = {row for row in range_of(born, (begin, end)).tolist() if self._leaves(row, first, last)}
        outputs |= {row for row in [self.block.get(max(nodes.tolist()), -1)] if row >= 0 and begin <= born[row] < end}
        inputs = frozenset(row for row in read if not begin <= born[row] < end)
        seconds = float((self.t1[own] - self.t0[own]).sum())
        return Call(scope, begin, end, back, done, frozenset(outputs), inputs, seconds) if inside else None

    def _leaves(self, row: int, first: int, last: int) -> bool:
        return any(not first <= i < last for i in self.read_by[row])

    def _saved(self, call: Call) -> list[int]:
        """What a call made that outlives it."""
        born, died = self.trace.lifetimes
        return [row for row in range_of(born, call).tolist() if died[row] >= call.end]

    def _outside(self, row: int, call: Call) -> int:
        """Until when a call's output is held, which in the recording was held longest by what the call saved."""
        until = call.end
        for i in self.read_by[row]:
            if call.begin <= np.searchsorted(self._at, self.t0[i], "right") - 1 < call.end:
                continue
            until = max(until, self._passed_on(i, call))
            if i in self.saved_by[row]:
                pulls = np.flatnonzero(self.back & (self.node == self.node[i]))
                until = max([until, *np.searchsorted(self._at, self.t1[pulls], "right").tolist()])
        return until

    def _passed_on(self, i: int, call: Call) -> int:
        """The end of the outermost call of a module that reads an output and is not around the call that made it."""
        made = self._at[call.begin]
        ends = [end for begin, end in self.spans if begin <= self.t0[i] <= end and not begin <= made <= end]
        return int(np.searchsorted(self._at, max([self.t1[i], *ends]), "right"))


def range_of(born: Ints, call: Any) -> Ints:
    """The allocations that were made in a call: a `Call`, or a pair of begin and end."""
    begin, end = (call.begin, call.end) if isinstance(call, Call) else call
    first, last = np.searchsorted(born, [begin, end])
    return np.arange(first, last)
