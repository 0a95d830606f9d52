"""The tape nodes of a recording: ops through which gradients flow, with the blocks that each read, made and saved."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from flnb_telemetry import schema

from flnb.dispatch.table import OPS

if TYPE_CHECKING:
    from flnb_telemetry import Recording
    from flnb_telemetry.intern import Plan
    from flnb_telemetry.schema import Ints
    from numpy.typing import NDArray

    from flnb.memory_lab.traces import Trace


@dataclass(slots=True, eq=False)
class Node:
    """A forward op on the tape. Blocks of memory are given as rows of the trace.

    Attributes:
        seq: the op's sequence number on the tape.
        op, scope: the op's name, and the module in which it ran.
        first, last: the op's first and last row in the recording's table of ops (a composite op may have several).
        t0, t1: the begin and the end of the op's forward, in seconds.
        pulled: the op's backward as a range [begin, end) of the trace's calls; the first of these calls is an
            allocation. None if the backward was not recorded.
        largest: the bytes of the largest tensor among the op's inputs and its result.
        block: the block of the result, None if it has none.
        reads: the blocks of the inputs.
        saves: the blocks that the op saves for its gradient.
    """

    seq: int
    op: str
    scope: str
    first: int
    last: int
    t0: float
    t1: float
    pulled: tuple[int, int] | None
    largest: int
    block: int | None
    reads: list[int]
    saves: list[int]


class Nodes:
    """The tape nodes of a recording in order of time; for each block, the nodes that read and save it.

    Args:
        run: the recording.
        trace: the recording's trace.
        rows: a dict from an allocation's number in the recording to its row in the trace.
        until: a time in seconds; later ops are left out.
    """

    def __init__(self, run: Recording, trace: Trace, rows: dict[int, int], until: float) -> None:
        self.trace, self.rows = trace, rows
        table, contexts = run.table("op"), run.catalog.contexts.items
        table = {name: column[run.seconds_at(table["t0"]) <= until] for name, column in table.items()}
        self.t0, self.t1 = run.seconds_at(table["t0"]), run.seconds_at(table["t1"])
        self.seconds = usual(table["plan"], self.t1 - self.t0)
        self.node, self.alloc = table["node"], table["alloc_id"]
        self.back = run.catalog.phase[table["context"]] == schema.BACKWARD
        self._at = np.asarray(trace.t)
        self._born = self._at[trace.lifetimes[0]]
        self._died = trace.lifetimes[1]
        self._least = int(run.meta.get("min_block") or 0)
        self.results: set[int] = set()
        plans = run.catalog.plans.items
        self._names = [plans[number].op for number in table["plan"].tolist()]
        self._pulled = self._pulls()
        self.block: dict[int, int] = {}  # of a node's result, by sequence number
        self.read_by: dict[int, list[Node]] = defaultdict(list)
        self.saved_by: dict[int, list[Node]] = defaultdict(list)
        used = table["plan"].tolist()
        more: dict[int, list[int]] = defaultdict(list)
        whole: dict[int, Plan] = {}  # of composites, and of ops with more parents than an op's record holds
        columns = ("node", "plan", *(f"parent{i}" for i in range(2, 7)))
        for seq, number, *further in schema.tuples(run.table("edge"), *columns):
            more[seq] += further
            whole[seq] = plans[number]
        self.list: list[Node] = []
        for group in self._grouped():
            first = int(group[0])
            seq = int(self.node[first])
            plan = whole.get(seq, plans[used[first]])
            composite = plan.op not in OPS or OPS[plan.op].joint is not None
            own = [] if composite else [int(table[name][first]) for name in ("parent0", "parent1")]
            parents = ([*own, *more.get(seq, ())] + [0] * len(plan.inputs))[: max(1, len(plan.inputs))]
            self._add(group, plan, parents, contexts[table["context"][first]].scope)

    def _add(self, group: Ints, plan: Plan, parents: list[int], scope: str) -> None:
        """Add the node of one forward op.

        Args:
            group: the op's rows in the table of ops.
            plan: the op's plan.
            parents: for each input, the sequence number of the node that made the input; 0 if no node did.
            scope: the module in which the op ran.
        """
        first, last = int(group[0]), int(group[-1])
        seq = int(self.node[first])
        t0, t1, pulled = float(self.t0[first]), float(self.t1[last]), self._pulled.get(seq)
        made = [row for i in group.tolist() for row in self.asked(i)]
        result = next((self.rows[a] for a in self.alloc[group][::-1].tolist() if a in self.rows), None)
        before = made[0] if made else int(np.searchsorted(self._born, t0))
        inputs = [
            self.block.get(parent) if parent else self._plain(shape, scope, before, t1)
            for parent, shape in zip(parents, plan.inputs, strict=False)
        ]
        reads = [row for row in inputs if row is not None]
        if result is None and reads and plan.nbytes >= self._least:
            result = reads[0]
        if result is not None:
            self.block[seq] = result
            self.results.add(result)
        node = Node(seq, plan.op, scope, first, last, t0, t1, pulled, _largest(plan), result, reads, [])
        node.saves = self._saves(node, plan, parents, inputs, made) if plan.op in OPS else list(reads)
        self.list.append(node)
        for row in dict.fromkeys(reads):
            self.read_by[row].append(node)
        for row in node.saves:
            self.saved_by[row].append(node)

    def _grouped(self) -> list[Ints]:
        """Return for each node the rows of its forward ops in the table of ops, in order of time."""
        forward = np.flatnonzero((self.node > 0) & ~self.back)
        forward = forward[np.argsort(self.node[forward], kind="stable")]
        groups = np.split(forward, np.flatnonzero(np.diff(self.node[forward])) + 1) if len(forward) else []
        return sorted(groups, key=lambda rows: int(rows[0]))

    def asked(self, i: int) -> list[int]:
        """Return the blocks allocated for an op, given its row in the table of ops.

        These are the block of the result and, if a composite op ran as one kernel, the blocks of its saved values.
        """
        since = self.t1[i - 1] if i else -math.inf
        first, last = np.searchsorted(self._born, [since, self.t0[i]], "right").tolist()
        return [row for row in range(first, last) if self.trace.op[row] == self._names[i]]

    def _pulls(self) -> dict[int, tuple[int, int]]:
        """Return, by a node's sequence number, the range of the trace's calls during which its backward ran."""
        rows = np.flatnonzero(self.back & (self.node > 0))
        born, _ = self.trace.lifetimes
        later = np.append(born, len(self.trace))
        begins = later[np.searchsorted(born, np.searchsorted(self._at, self.t0[rows]))]
        ends = np.searchsorted(self._at, self.t1[rows], "right")
        found: dict[int, tuple[int, int]] = {}
        each = (self.node[rows], rows, begins, ends)
        for seq, row, begin, end in zip(*(column.tolist() for column in each), strict=True):
            for asked in self.asked(row):  # these come before the op begins
                begin = min(begin, int(born[asked]))
            before = found.get(seq, (begin, end))
            found[seq] = min(begin, before[0]), max(end, before[1])
        return found

    def _saves(
        self, node: Node, plan: Plan, parents: list[int], inputs: list[int | None], made: list[int]
    ) -> list[int]:
        """Return the blocks that a node saves for its gradient: inputs, result, and values from within a composite.

        Args:
            node: the node.
            plan: the op's plan in telemetry.
            parents: for each input, the sequence number of the node that made it; 0 if no gradient flows to the input.
            inputs: the block of each input, None if unknown.
            made: the blocks that the op has allocated.
        """
        op, count = OPS[plan.op], len(plan.inputs)
        found: list[int] = []
        if op.joint is not None:
            gone = self.following(node.t1)
            found += [row for row in made if row != node.block and self._died[row] > gone]
        *keeps, result = op.saved(sum(1 << i for i, parent in enumerate(parents) if parent), count)
        found += [row for row, keep in zip(inputs, keeps, strict=False) if keep and row is not None]
        if result and node.block is not None:
            found.append(node.block)
        return list(dict.fromkeys(found))

    def _plain(self, shape: tuple[int, ...], scope: str, before: int, t1: float) -> int | None:
        """Return the likely block of an input that no node made, such as a mask; None if there is none.

        Candidates are blocks with the right number of elements, allocated in the op's module or a module that contains
        it, and not freed before the end of the op. The latest of them is returned.

        Args:
            shape: the shape of the input.
            scope: the module in which the op ran.
            before: the row of the trace before which to search.
            t1: the end of the op in seconds.
        """
        count, trace = math.prod(shape), self.trace
        if count < 2:
            return None
        passed = self.following(t1)
        for row in range(before - 1, max(-1, before - 9), -1):
            near = not trace.scope[row] or f"{scope}.".startswith(f"{trace.scope[row]}.")
            alike = math.prod(trace.shapes[row]) == count and row not in self.results
            if near and alike and self._died[row] > passed:
                return row
        return None

    def held_alone(self, row: int) -> bool | None:
        """Return whether the tape held the last reference to a block; None if unknown.

        This is true if the block was freed right after the backward of the last node that saved it. ``row`` is the
        block's row in the trace.
        """
        (born, died), n = self.trace.lifetimes, len(self.trace)
        last = max((node.pulled[1] if node.pulled else n for node in self.saved_by.get(row, ())), default=n)
        later = int(np.searchsorted(born, last))  # dropped blocks are freed by the next allocation
        return bool(died[row] <= born[later]) if later < len(born) else None

    def between(self, first: int, last: int) -> list[Node]:
        """Return the nodes whose first row in the table of ops is in [first, last)."""
        begin, end = (bisect_left(self.list, row, key=lambda node: node.first) for row in (first, last))
        return self.list[begin:end]

    def following(self, t: float) -> int:
        """Return the index of the trace's first call that allocates after the time ``t`` (s)."""
        born, _ = self.trace.lifetimes
        later = int(np.searchsorted(born, np.searchsorted(self._at, t, "right")))
        return int(born[later]) if later < len(born) else len(self.trace)


def _largest(plan: Plan) -> int:
    """Return the bytes of the largest tensor among an op's result and inputs, as if all had the same dtype."""
    item = plan.nbytes / max(1, math.prod(plan.shape))
    return max([plan.nbytes, *(round(item * math.prod(shape)) for shape in plan.inputs)])


def usual(plans: Ints, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each op, the median time of all ops with the same plan (op, shapes and dtypes).

    Args:
        plans: int64 (n,), the number of each op's plan.
        seconds: float64 (n,), the time of each op.

    >>> usual(np.array([7, 3, 7, 7]), np.array([1.0, 5.0, 9.0, 2.0]))
    array([2., 5., 2., 2.])
    """
    order = np.lexsort((seconds, plans))
    _, first, which, count = np.unique(plans[order], return_index=True, return_inverse=True, return_counts=True)
    found = np.empty(len(plans))
    found[order] = seconds[order][first + count // 2][which]
    return found
