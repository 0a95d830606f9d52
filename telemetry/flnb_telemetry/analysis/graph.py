"""The graph of one backward as columns, so that a million nodes cost arrays and not a million objects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.intern import joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.schema import Ints

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]
    Table = Callable[[str], schema.Columns]

FINE, SPREAD, ORIGIN = 0, 1, 2  # from good to worst
"""Gradients through a node: fine, bad before they arrived there, or made bad by the node's own backward."""


class Gradients(NamedTuple):
    """What `grad_stat` said, a value for each row; norm is NaN and seen False where nothing was sampled."""

    norm: Floats
    seen: Bools
    bad: Ints
    numel: Ints


@dataclass(frozen=True)
class Graph:
    """Nodes in the order in which they ran, leaves, and who reads whom.

    Row i of `id, plan, context, forward, backward, saved` (ns, bytes) and of `gradient` is node i. It reads
    `parent[start[i]:start[i + 1]]`: a row if not negative, else leaf `-1 - value`, a row of the `leaf_*` columns.
    """

    id: Ints
    plan: Ints
    context: Ints
    forward: Ints
    backward: Ints
    saved: Ints
    gradient: Gradients
    start: Ints
    parent: Ints
    leaf_id: Ints
    leaf_plan: Ints
    leaf_name: Ints
    leaf_parameter: Bools
    leaf_gradient: Gradients
    line: Ints | None = None
    """For each row the number of the text of the user's line, 0 where it was not told."""
    failed: int = 0
    """Where the forward ended in an error: the number of its message. The op that failed is the last row."""
    origin: int | None = None
    """The row where NaN or Inf came up first in the backward, -1 where none saw it, None where nobody looked."""

    def __len__(self) -> int:
        return len(self.id)

    @cached_property
    def child(self) -> Ints:
        """For each entry of `parent` the row that reads it."""
        return np.repeat(np.arange(len(self.id)), np.diff(self.start))

    @cached_property
    def last_reader(self) -> Ints:
        """For each row the last row that reads it, -1 where none does."""
        last = np.full(len(self.id), -1)
        inner = self.parent >= 0
        last[self.parent[inner]] = self.child[inner]  # in order: the last one stays
        return last

    @cached_property
    def health(self) -> NDArray[np.int8]:
        """FINE, SPREAD or ORIGIN for each row.

        Where nobody looked for the origin while the backward ran, it is the op that got a good gradient and gave a bad
        one: a node's gradient is the one that arrives at its output. A bad one that nothing here made began where it
        arrived first.
        """
        if self.origin is not None:
            found = np.where(_bad(self.gradient), SPREAD, FINE).astype(np.int8)
            if self.origin >= 0:
                found[self.origin] = ORIGIN
            return found
        bad, leaf_bad = _bad(self.gradient), _bad(self.leaf_gradient)
        gave = np.zeros(len(bad), np.bool_)
        inner = self.parent >= 0
        given = np.zeros(len(self.parent), np.bool_)
        given[inner] = bad[self.parent[inner]]
        given[~inner] = leaf_bad[-1 - self.parent[~inner]]
        gave[self.child[given]] = True
        arrived = np.where(self.last_reader >= 0, SPREAD, ORIGIN)
        return np.where(bad, arrived, np.where(gave, ORIGIN, FINE)).astype(np.int8)

    @property
    def origins(self) -> Ints:
        """Rows where NaN or Inf begins, the first in the backward first."""
        return np.flatnonzero(self.health == ORIGIN)[::-1]

    def parents(self, row: int) -> list[int]:
        """Numbers of what a row reads, in the order of its arguments; leaves are negative."""
        above = self.parent[self.start[row] : self.start[row + 1]]
        return [int(self.id[p] if p >= 0 else self.leaf_id[-1 - p]) for p in above.tolist()]


def _bad(gradient: Gradients) -> Bools:
    bad: Bools = (gradient.bad > 0) | (gradient.seen & np.isnan(gradient.norm))
    return bad


def read(
    table: Table,
    ops: schema.Columns,
    sampled: schema.Columns,
    root: int,
    catalog: Catalog,
    limit: int | None,
    failed: dict[str, int] | None = None,
    origin: int | None = None,
) -> tuple[Graph, int]:
    """What `root` needs, or without one (0) the last node there is; and how many older nodes are left out.

    `ops` are the op records to look at, `sampled` the `grad_stat` rows of one backward. At most `limit` nodes are
    taken. With `failed`, the record of an op that raised, all nodes of `ops` and last that op. `origin`: the number of
    the node where NaN or Inf came up, 0 where none saw it.
    """
    child, parent = pairs(ops, table("edge"))
    if failed is not None:
        made = ops["node"][(ops["parent0"] != 0) | (ops["parent1"] != 0)]
        kept = child >= made.min(initial=child.max(initial=0) + 1)
        raised = max(made.max(initial=0), child.max(initial=0)) + 1
        args = [failed[name] for name in ("parent0", "parent1")]
        child = np.append(child[kept], [raised] * 2)
        parent = np.append(parent[kept], [a or raised for a in args])  # without any it reads nothing: itself
    if root > 0:
        child, parent = child[child <= root], parent[child <= root]
    every = _ascending(child)
    row, _ = located(every, child)
    order = np.argsort(row, kind="stable")
    row, parent = row[order], parent[order]
    up, inside = located(every, parent)
    needed = np.ones(len(every), np.bool_) if failed else _needed(len(every), row[inside], up[inside])
    known = every[needed]
    lacking = len(_ascending(parent[needed[row] & (parent > 0) & ~inside]))  # made before what is recorded
    ids = known if limit is None else known[max(0, len(known) - limit) :]
    if len(ids) < len(every):
        kept = needed[row] & (every[row] >= ids[0])
        row, parent = located(ids, every[row[kept]])[0], parent[kept]
        up, inside = located(ids, parent)
    leaf_ids = _ascending(np.concatenate([parent[parent < 0], sampled["node"][sampled["node"] < 0]]))
    leaf, _ = located(leaf_ids, parent)
    leaf_ids = leaf_ids[::-1]  # -1 first
    up = np.where(parent < 0, leaf - len(leaf_ids), up)  # the last of the ascending ids is leaf 0, written -1
    kept = (inside | (parent < 0)) & (up != row) & ~_again(row, up)
    row, up = row[kept], up[kept]
    start = np.searchsorted(row, np.arange(len(ids) + 1))
    own, forward, backward = _times(ops, ids, catalog)
    plan, context = (np.append(ops[name].astype(np.int64), 0)[own] for name in ("plan", "context"))
    at, seen = located(sampled["node"], ids, sort=True)
    told = {key: np.where(seen, sampled[key][at], 0) if len(sampled["node"]) else np.zeros(len(ids), np.int64)
            for key in ("plan", "saved", "name")}  # fmt: skip
    if failed is not None:
        plan[-1], context[-1] = failed["plan"], failed["context"]
    plan = np.where(told["plan"] > 0, told["plan"], plan)  # a composite's, where the op records are those of its body
    saved = np.where(seen, told["saved"], catalog.saved[plan])  # what was not looked at: by its plan
    graph = Graph(
        ids, plan, context, forward, backward, saved, _gradients(sampled, at, seen), start,
        up,
        leaf_ids, *_leaves(leaf_ids, table("leaf"), sampled),
        line=told["name"], failed=failed["message"] if failed else 0, origin=_row(ids, origin),
    )  # fmt: skip
    return graph, lacking + len(known) - len(ids)


def pairs(ops: schema.Columns, edges: schema.Columns) -> tuple[Ints, Ints]:
    """Node and what it reads, for every argument that is on the tape, the first arguments first."""
    made = np.flatnonzero((ops["node"] > 0) & ((ops["parent0"] != 0) | (ops["parent1"] != 0)))
    pairs = [(ops["node"][made], ops[name][made]) for name in ("parent0", "parent1")]
    pairs += [(edges["node"], edges[f"parent{i}"]) for i in range(2, 7)]
    child, parent = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return child[parent != 0], parent[parent != 0]


def _ascending(values: Ints) -> Ints:
    """The different values, ascending. (`numpy.unique` hashes, which takes several times as long for ids.)"""
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])] if len(values) else values


def _again(row: Ints, up: Ints) -> Bools:
    """Whether a row has named the same thing before; rows ascend."""
    found = np.zeros(len(row), np.bool_)
    most = int(np.bincount(row).max(initial=0)) if len(row) else 0
    for back in range(1, most):
        found[back:] |= (row[back:] == row[:-back]) & (up[back:] == up[:-back])
    return found


def _needed(size: int, row: Ints, up: Ints) -> Bools:
    """Which rows the last one needs, itself included: row i reads row up[i] < row[i], rows ascend."""
    read = np.zeros(size, np.bool_)
    read[up] = True
    if read[:-1].all():  # everything is read by something later, and so in the end by the last
        return np.ones(size, np.bool_)
    start, above = np.searchsorted(row, np.arange(size + 1)).tolist(), up.tolist()
    reached = bytearray(size)
    reached[-1] = 1
    waiting = [size - 1]
    while waiting:
        node = waiting.pop()
        for parent in above[start[node] : start[node + 1]]:
            if not reached[parent]:
                reached[parent] = 1
                waiting.append(parent)
    return np.frombuffer(reached, np.bool_)


def located(keys: Ints, ids: Ints, sort: bool = False) -> tuple[Ints, Bools]:
    """Where each id stands among the keys (ascending, or with `sort` in any order), and whether it does at all."""
    if not len(keys):
        return np.zeros(len(ids), np.int64), np.zeros(len(ids), np.bool_)
    if keys[-1] - keys[0] + 1 == len(keys) and not sort:  # without gaps
        found = (ids >= keys[0]) & (ids <= keys[-1])
        return np.where(found, ids - keys[0], 0), found
    order = np.argsort(keys, kind="stable") if sort else None
    ascending = keys if order is None else keys[order]
    at = np.minimum(np.searchsorted(ascending, ids), len(keys) - 1)
    found = ascending[at] == ids
    return (at if order is None else order[at]), found


def _row(ids: Ints, number: int | None) -> int | None:
    """Where a node stands, -1 where it does not; None for None."""
    if number is None:
        return None
    at, found = located(ids, np.array([number]))
    return int(at[0]) if found[0] else -1


def _gradients(sampled: schema.Columns, at: Ints, seen: Bools) -> Gradients:
    if not len(sampled["node"]):
        nothing = np.zeros(len(at), np.int64)
        return Gradients(np.full(len(at), np.nan), seen, nothing, nothing)
    bad, numel = (np.where(seen, sampled[key][at], 0) for key in ("bad", "numel"))
    return Gradients(np.where(seen, sampled["norm"][at], np.nan), seen, bad, numel)


def _times(ops: schema.Columns, ids: Ints, catalog: Catalog) -> tuple[Ints, Ints, Ints]:
    """For each node the row of the op that made it (-1: not seen), ns forward and ns backward.

    A composite's inner ops work for the composite's node; those within the time of its own record count once.
    """
    size = len(ids)
    slot, known = located(ids, ops["node"])
    slot[~known] = size  # for what works for no node here
    t0, t1, first, second, context = (ops[name] for name in ("t0", "t1", "parent0", "parent1", "context"))
    back, made = catalog.phase[context] == schema.BACKWARD, (first != 0) | (second != 0)
    own = np.full(size + 1, -1, np.int64)
    for ahead in (~back, ~back & made):  # the one that names parents is the node's own
        own[slot[ahead]] = np.flatnonzero(ahead)
    mine = own[slot]
    within = (t0 >= t0[mine]) & (t1 <= t1[mine]) & (np.arange(len(slot)) != mine) & (mine >= 0)
    forward = np.bincount(slot, np.where(back | within, 0, t1 - t0), size + 1)[:size].astype(np.int64)
    backward = np.bincount(slot, np.where(back, t1 - t0, 0), size + 1)[:size].astype(np.int64)
    return own[:size], forward, backward


def _leaves(ids: Ints, leaves: schema.Columns, sampled: schema.Columns) -> tuple[Ints, Ints, Bools, Gradients]:
    """Plan, name, whether a parameter, and the gradient of each leaf."""
    plan, told, parameter = (joined(ids, leaves["leaf"], leaves[name]) for name in ("plan", "name", "parameter"))
    name, known = (joined(ids, sampled["node"], sampled[name]) for name in ("name", "parameter"))
    gradients = _gradients(sampled, *located(sampled["node"], ids, sort=True))
    return plan, np.where(told > 0, told, name), (parameter | known) > 0, gradients
