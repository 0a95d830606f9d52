"""Predicts how tensor lifetimes in a recorded training step change if some modules are recomputed in backward.

The calls of a module are found from the scopes that the recording entered and left. If a call allocated a block, and
the block was still live when the call ended, the block was saved for backward or is the call's output. If the call is
recomputed, the saved blocks are freed at the end of the call and allocated again when backward reaches the call. The
inputs of the call are freed after the call's backward.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry import schema
from flnb_telemetry.analysis.memory import NEVER

from flnb.memory_lab.nodes import Node, Nodes
from flnb.memory_lab.offload_lifetimes import STAYING, Idle, movable, moved
from flnb.memory_lab.traces import Trace, trace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from flnb_telemetry import Recording
    from flnb_telemetry.schema import Columns, Ints


class Call(NamedTuple):
    """One call of a module through which gradients flow.

    A trace lists allocations and frees in order; positions in this list serve as times here.

    Attributes:
        scope: the module's path.
        begin, end: the positions in the trace where this call's forward pass begins and ends; ``end`` is exclusive.
        back, done: the same for this call's backward pass; if no backward was recorded, both are the trace's length.
        outputs: the numbers of allocations made in this forward pass and read by ops outside of it.
        inputs: the numbers of allocations made outside of this forward pass and read by ops in it.
        seconds: the seconds that the ops of the forward pass took.
        nodes: the ops of the forward pass.
    """

    scope: str
    begin: int
    end: int
    back: int
    done: int
    outputs: frozenset[int]
    inputs: frozenset[int]
    seconds: float
    nodes: list[Node]


class Choice(NamedTuple):
    """One or several modules that can be recomputed or offloaded together, with the benefit and the cost.

    Attributes:
        method: "recompute" or "offload".
        scopes: the paths of the modules.
        worth: the benefit: for each block its bytes x the number of trace calls during which it is freed, summed over
            blocks.
        seconds: the cost: the seconds that recomputing or moving takes.
    """

    method: str
    scopes: tuple[str, ...]
    worth: float
    seconds: float


class Activation(NamedTuple):
    """A tensor saved for backward, and the decision about it: "keep", "recompute" or "offload"."""

    scope: str
    op: str
    shape: tuple[int, ...]
    nbytes: int
    decision: str


class Step:
    """Predicts the lifetimes of tensors from a recording of training steps and the calls of modules in it.

    Args:
        run: the recording.
        rows: the rows of `Memory.block` from which the trace is made; all by default.
        asked: the trace made from ``rows``; further calls may have been appended.
        until: a time in seconds; later events are ignored, so a module call that ends later has no end.
    """

    def __init__(
        self, run: Recording, rows: Columns | None = None, asked: Trace | None = None, until: float = math.inf
    ) -> None:
        rows = run.memory.block if rows is None else rows
        self.trace, self.until = trace(run) if asked is None else asked, until
        self._at = np.asarray(self.trace.t)
        self._row = {number: row for row, number in enumerate(rows["alloc_id"].tolist())}
        self.nodes = Nodes(run, self.trace, self._row, until)
        self._pulled = np.zeros(len(self.trace.nbytes), bool)  # allocations of backward
        for i in np.flatnonzero(self.nodes.back).tolist():
            self._pulled[self.nodes.asked(i)] = True
        self.calls = self._calls(run)
        self._begins, self._ends = np.array(self.spans).reshape(-1, 2).T

    @cached_property
    def movable(self) -> dict[int, Idle]:
        """A dict of the blocks that can be offloaded; a key is the block's row in the trace."""
        return movable(self)

    def own(self, scope: str) -> str:
        """Return a scope without the user's scopes around the outermost module; "" if the scope contains no module."""
        outside = max((path for path in self.around if f"{scope}.".startswith(f"{path}.")), key=len, default="")
        return scope.removeprefix(outside).removeprefix(".")

    def outermost(self, scope: str) -> str:
        """Return the scope of the outermost module that contains a scope; "" if there is none."""
        own = self.own(scope)
        return own and scope.removesuffix(own) + own.partition(".")[0]

    def recomputable(self) -> list[Choice]:
        """Return a `Choice` for each module that can be recomputed: it has a single output and saves some tensor."""
        worth: dict[str, float] = defaultdict(float)
        single: dict[str, bool] = defaultdict(lambda: True)
        born, died = self.trace.lifetimes
        for call in self.calls:
            made = range_of(born, call)  # what outlives the call was saved, or is its output
            kept = np.array([row for row in made[died[made] >= call.end].tolist() if row not in call.outputs], np.int64)
            waits = np.minimum(died[kept], call.done) - call.end
            worth[call.scope] += float((self.trace.nbytes[kept] * np.maximum(0, waits)).sum())
            single[call.scope] &= len(call.outputs) == 1
        useful = [scope for scope in worth if worth[scope] > 0 and single[scope]]
        return [Choice("recompute", (scope,), worth[scope], self.seconds(scope)) for scope in useful]

    def offloadable(self, bandwidth: float) -> list[Choice]:
        """Return a `Choice` for each module that can be offloaded; modules that save the same tensors share one.

        Args:
            bandwidth: the bandwidth of moves in bytes/s.
        """
        worth: dict[frozenset[str], float] = defaultdict(float)
        nbytes: dict[frozenset[str], int] = defaultdict(int)
        for row, away, back in moved(self, {scope for idle in self.movable.values() for scope in idle.scopes}):
            until = back[0][0] if back else len(self.trace) * Trace.TICK
            scopes, size = self.movable[row].scopes, int(self.trace.nbytes[row])
            worth[scopes] += size * (until - away) / Trace.TICK
            nbytes[scopes] += 2 * size
        return [Choice("offload", tuple(sorted(s)), worth[s], nbytes[s] / bandwidth) for s in worth if worth[s] > 0]

    def seconds(self, scope: str) -> float:
        """Return the seconds that it takes to run all calls of a module once more."""
        return sum(call.seconds for call in self.calls if call.scope == scope)

    def decided(self, recompute: Collection[str], offload: Collection[str]) -> tuple[Activation, ...]:
        """Return every saved tensor with its decision, "keep", "recompute" or "offload"; arguments as for `changed`."""
        asked, (born, _) = self.trace, self.trace.lifetimes
        calls = [call for call in self.calls if call.scope in recompute]
        again = {row for call in calls for row in range_of(born, call).tolist() if row not in call.outputs}
        decision = dict.fromkeys(again, "recompute") | {one.row: "offload" for one in moved(self, offload, calls)}
        return tuple(
            Activation(
                asked.scope[row],
                asked.op[row],
                tuple(asked.shapes[row]),
                int(asked.nbytes[row]),
                decision.get(row, "keep"),
            )
            for row in sorted(self.nodes.saved_by)
            if asked.category[row] not in STAYING
        )

    def changed(self, recompute: Iterable[str], offload: Collection[str] = ()) -> tuple[Trace, int]:
        """Return the trace with some modules recomputed and others offloaded, and the bytes moved.

        Args:
            recompute: scopes of modules, none inside another.
            offload: scopes of modules; modules inside them are offloaded too.
        """
        chosen = [call for call in self.calls if call.scope in set(recompute)]
        born, died = self.trace.lifetimes
        tick, n = Trace.TICK, len(self.trace)
        ends = np.where(died < n, died * tick, NEVER)
        extra: list[tuple[int, int, int]] = []
        inside = {row: call for call in chosen for row in range_of(born, call)}
        for call in chosen:
            for row in range_of(born, call).tolist():
                again = call.back * tick - (call.end - int(born[row]))
                if call.back == n:  # its backward was not recorded
                    if died[row] >= call.end and row not in call.outputs:
                        ends[row] = min(ends[row], call.end * tick)
                elif died[row] < call.end:  # made and freed within the call, also when it runs again
                    extra.append((row, again, call.back * tick - (call.end - int(died[row]))))
                elif row in call.outputs:  # the second one is held until the backward of the whole call is done
                    extra.append((row, again, call.done * tick))
                    if self.nodes.held_alone(row):
                        ends[row] = self._outside(row, call) * tick
                else:
                    extra.append((row, again, int(died[row]) * tick if died[row] > call.back else call.back * tick))
                    ends[row] = min(ends[row], call.end * tick)
            arrived = range_of(born, (call.end, call.back))  # among it the output's gradient, held meanwhile
            arrived = arrived[(died[arrived] > call.back) & (died[arrived] <= call.done) & self._pulled[arrived]]
            ends[arrived] = np.maximum(ends[arrived], call.done * tick)
        for call in chosen:
            for row in call.inputs:
                if row not in inside or row in inside[row].outputs:
                    ends[row] = max(ends[row], call.done * tick)
        ends[ends >= n * tick] = NEVER
        nbytes = 0
        for row, away, back in moved(self, offload, chosen) if offload else ():
            ends[row] = min(ends[row], away)
            extra += [(row, since, until) for since, until in back]
            returns = max(len(back), self.until < math.inf)  # what was moved away will come back
            nbytes += int(self.trace.nbytes[row]) * (1 + returns)
        rows, starts, stops = np.array(extra, np.int64).reshape(-1, 3).T
        stops = np.where(stops < n * tick, stops, NEVER)
        changed = self.trace.with_lifetimes(
            np.concatenate([np.arange(len(born)), rows]),
            np.concatenate([born * tick, starts]),
            np.concatenate([ends, stops]),
        )
        return changed, nbytes

    def _calls(self, run: Recording) -> list[Call]:
        """Return the calls of modules through which gradients flow, and fill in `around` and `spans`."""
        table, contexts = run.table("scope"), run.catalog.contexts.items
        t = run.seconds_at(table["t"])
        rows = zip(t.tolist(), table["enter"].tolist(), table["context"].tolist(), table["lane"].tolist(), strict=True)
        open_: dict[int, list[tuple[str, float, bool]]] = defaultdict(list)
        self.around: set[str] = set()  # scopes outside of all modules
        self.spans: list[tuple[float, float]] = []
        found: list[tuple[str, float, float]] = []
        for now, enter, context, lane in rows:
            if now > self.until:
                break
            scope, is_module = contexts[context].scope, enter == schema.ENTER_MODULE
            if enter:
                if not is_module and not any(called for _, _, called in open_[lane]):
                    self.around.add(scope)
                open_[lane].append((scope, now, is_module))
            elif open_[lane]:
                scope, since, is_module = open_[lane].pop()
                self.spans.append((since, now))
                if is_module:
                    found.append((scope, since, now))
        self.spans += [(since, math.inf) for left in open_.values() for _, since, _ in left]
        return [call for span in found if (call := self._call(*span)) is not None]

    def _call(self, scope: str, since: float, until: float) -> Call | None:
        """Return the call, from ``since`` to ``until`` (s), of the module at the path ``scope``.

        None if no gradient flows through the call.
        """
        nodes = self.nodes
        first, last = (int(i) for i in np.searchsorted(nodes.t0, [since, until]))
        inside = nodes.between(first, last)
        if not inside:
            return None
        begin, end = (int(i) for i in np.searchsorted(self._at, [since, until]))
        born, _ = self.trace.lifetimes
        back = done = len(self.trace)
        pulls = [node.pulled for node in inside if node.pulled is not None]
        if pulls:
            done = max(end for _, end in pulls)
            back = min(done, *[begin for begin, _ in pulls])  # where a backward allocates nothing, it is over before
        read = {row for node in inside for row in node.reads}
        outputs = {row for row in range_of(born, (begin, end)).tolist() if self._leaves(row, first, last)}
        outputs |= {row for row in [inside[-1].block] if row is not None and begin <= born[row] < end}
        inputs = frozenset(row for row in read if not begin <= born[row] < end)
        own = np.flatnonzero(~nodes.back[first:last]) + first
        seconds = float(nodes.seconds[own].sum())
        return Call(scope, begin, end, back, done, frozenset(outputs), inputs, seconds, inside)

    def _leaves(self, row: int, first: int, last: int) -> bool:
        """Return whether an op outside the given range of the recording's ops reads the block of allocation ``row``.

        The range goes from op ``first`` to ``last - 1``.
        """
        return any(not first <= node.first < last for node in self.nodes.read_by[row])

    def _outside(self, row: int, call: Call) -> int:
        """Return when the output of a module call would be freed if the module call saved nothing for backward.

        The time is the index of an allocation or free in the trace. Ops outside of the module call still need the
        output, also in their backward. ``row`` is the output's row in the trace.
        """
        until = call.end
        for node in self.nodes.read_by[row]:
            if call.begin <= np.searchsorted(self._at, node.t0, "right") - 1 < call.end:
                continue
            until = max(until, int(np.searchsorted(self._at, self.passed_on(node, call.begin), "right")))
            if node.pulled is not None and row in node.saves:
                until = max(until, node.pulled[1])
        return until

    def passed_on(self, node: Node, made: int) -> float:
        """Return the time (s) until which the module calls around a node may use a block that the node reads.

        A block that was allocated before a module call began is an input of the call, and may be used until the call
        ends. The result is the end of the last such call that contains the node, or else the end of the node's op.

        Args:
            node: an op that reads the block.
            made: the allocation of the block, as the index of a call of the trace.
        """
        born, begins, ends = self._at[made], self._begins, self._ends
        around = (begins <= node.t0) & (node.t0 <= ends) & ~((begins <= born) & (born <= ends))
        return float(ends[around].max(initial=node.t1))


def range_of(born: Ints, call: Any) -> Ints:
    """Return the rows of the allocations made in a module's `Call`, or in a range (begin, end) of the trace's calls.

    Args:
        born: int64 (m,), for each allocation the index of the trace's call that makes it, sorted.
        call: the `Call` of a module, or the range.
    """
    begin, end = (call.begin, call.end) if isinstance(call, Call) else call
    first, last = np.searchsorted(born, [begin, end])
    return np.arange(first, last)
