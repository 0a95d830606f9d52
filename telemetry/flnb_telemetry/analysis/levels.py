"""The tape as a tree of groups to open level by level: module calls, repeated blocks, parts of long sequences.

Nodes are in order of execution. So a module call is a sequence of consecutive nodes whose scope paths begin alike, and
drawing such a sequence as one box never makes a cycle. A level is computed only when it is opened, by array operations
on its own nodes. So a graph of a million nodes can be explored without reading all of them.
"""

from __future__ import annotations

import heapq
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flnb_telemetry.analysis.folding import folds
from flnb_telemetry.analysis.graph import FINE, ORIGIN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.analysis.graph import Graph
    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.schema import Ints


WIDEST = 60  # items on one level; more are divided into portions
PORTIONS = 24  # the most portions on one level
NAMED = 6  # the most different names in the name of a sequence of calls
NOT_A_MODULE = -1


class Parts(NamedTuple):
    """The contents of a group of nodes as columns: the nodes are divided into calls, and the calls into entries.

    A call is a module call or a single op. Call j consists of the nodes `bound[j]` to `bound[j + 1]` - 1; `token[j]` is
    the string id of the module's name (NOT_A_MODULE for an op), `depth[j]` the number of names in its scope path. An
    entry is one item on the level, perhaps a repeated block of calls. Entry i consists of the calls `cut[i]` to
    `cut[i + 1]` - 1; `period[i]` is the length, in calls, of the block that entry i repeats; 0 for
    an entry that is no repetition.
    """

    bound: Ints
    token: Ints
    depth: Ints
    cut: Ints
    period: Ints

    def calls(self, a: int, b: int, cut: Ints, period: Ints) -> Parts:
        """Return calls a to b - 1, divided into entries by new columns `cut` (counted from call a) and `period`."""
        return Parts(self.bound[a : b + 1], self.token[a:b], self.depth[a:b], cut, period)

    def between(self, first: int, last: int) -> Parts:
        """Return the contents that consist of entries `first` to `last` - 1."""
        a, b = int(self.cut[first]), int(self.cut[last])
        return self.calls(a, b, self.cut[first : last + 1] - a, self.period[first:last])


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Nodes `first` to `last` - 1 as one box.

    A box is a module call, a sequence of nodes that repeats `repeat` times, one of its repetitions, or a portion of a
    long list of items.

    `key` identifies the group within the tape; it begins with the key of the enclosing group. `path` is the scope path
    of a module, and `depth` the number of names in that path.
    """

    key: str
    name: str
    path: str
    first: int
    last: int
    repeat: int = 0
    depth: int = 0
    parts: Parts | None = field(default=None, repr=False)


class Level(NamedTuple):
    """The contents of an open group: its items, and the edges between them.

    An item is a `Group`, or an int: the row of a single node in the graph's columns. `edges` are pairs (from, to) of
    indices in `items`. `entered` has the indices of items that read results from outside the group. `left` has the
    indices of items whose results are read outside the group.
    """

    items: list[Group | int]
    edges: list[tuple[int, int]]
    entered: list[int]
    left: list[int]


class Levels:
    """The tree of groups of a graph, from `root`, which holds all nodes.

    `level(group)` returns the groups and nodes directly inside a group; `find(key)` returns the group with a key.
    """

    def __init__(self, graph: Graph, catalog: Catalog) -> None:
        self.graph, self.catalog = graph, catalog
        self._tokens: list[Ints] = []
        self._known: dict[str, Group] = {}
        self._made: dict[str, Level] = {}
        self.root = Group("", "", "", 0, len(graph), parts=self._outermost())

    def over(self, graph: Graph) -> Levels:
        """Return the tree of another graph with the same structure; the levels computed so far are reused."""
        other = copy(self)
        other.graph = graph
        return other

    # ---- which groups there are

    @cached_property
    def _scopes(self) -> dict[int, list[str]]:
        """Return the names in the scope path of each context id that occurs."""
        found = np.unique(self.graph.context).tolist()
        return {context: self.catalog.contexts.items[context].scope.split(".") for context in found}

    def _token(self, depth: int) -> Ints:
        """Return for each context id the string id of the name at position `depth` (from 0) in its scope path.

        If the path is too short, the entry is NOT_A_MODULE.
        """
        while len(self._tokens) <= depth:
            at = len(self._tokens)
            table = np.full(max(self._scopes, default=0) + 1, NOT_A_MODULE)
            for context, names in self._scopes.items():
                if at < len(names) and names[at]:
                    table[context] = self.catalog.strings.id_of(names[at])
            self._tokens.append(table)
        return self._tokens[depth]

    @cached_property
    def _powers(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the prefix sums of hash(plan of node i) * r**i modulo 2**64, and the powers r**-i: a rolling hash.

        The hash of nodes first to last - 1 is (sums[last] - sums[first]) * r**-first. Equal sequences of plans have
        equal hashes, wherever they begin.
        """
        plan = self.graph.plan.astype(np.uint64)
        mixed = (plan + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
        ratio = 0x5851F42D4C957F2D
        size = len(plan)
        up, down = (np.full(size + 1, r, np.uint64) for r in (ratio, pow(ratio, -1, 1 << 64)))
        up[0] = down[0] = 1
        up, down = np.multiply.accumulate(up), np.multiply.accumulate(down)
        total = np.zeros(size + 1, np.uint64)
        np.cumsum(mixed * up[:size], out=total[1:])
        return total, down

    def _outermost(self) -> Parts:
        """Return the contents of the root. A module with more than half of the nodes is replaced by its contents."""
        size = len(self.graph)
        bound, token, depth = self._calls(0, size, 0)
        for _ in range(64):
            length = np.diff(bound)
            main = int(np.argmax(length)) if len(length) else 0
            if not len(length) or 2 * length[main] <= size or token[main] == NOT_A_MODULE:
                break
            inner = self._calls(int(bound[main]), int(bound[main + 1]), int(depth[main]))
            bound = np.concatenate([bound[:main], inner[0][:-1], bound[main + 1 :]])
            token = np.concatenate([token[:main], inner[1], token[main + 1 :]])
            depth = np.concatenate([depth[:main], inner[2], depth[main + 1 :]])
        return self._folded(bound, token, depth)

    def _calls(self, first: int, last: int, depth: int) -> tuple[Ints, Ints, Ints]:
        """Return the calls in nodes `first` to `last` - 1, as the columns bound, token and depth of `Parts`.

        The scope paths of these nodes share their first `depth` names.
        """
        token = self._token(depth)[self.graph.context[first:last]]
        begins = np.ones(len(token), np.bool_)
        begins[1:] = (token[1:] != token[:-1]) | (token[1:] == NOT_A_MODULE)
        at = np.flatnonzero(begins)
        return np.append(at, last - first) + first, token[at], np.full(len(at), depth + 1)

    def _folded(self, bound: Ints, token: Ints, depth: Ints) -> Parts:
        """Divide calls into entries: consecutive blocks of calls that run the same plans become one entry.

        The arguments are the columns of `Parts` of the same names.
        """
        total, down = self._powers
        kind = (total[bound[1:]] - total[bound[:-1]]) * down[bound[:-1]] + np.diff(bound).astype(np.uint64)
        cut, period = folds(kind, token == NOT_A_MODULE)
        return Parts(bound, token, depth, cut, period)

    def _parts(self, group: Group) -> Parts:
        """Return the contents of a group: its calls and their division into entries."""
        if group.parts is None:
            return self._folded(*self._calls(group.first, group.last, group.depth))
        if len(group.parts.cut) == 0:  # a single block, whose contents may repeat in turn
            return self._folded(group.parts.bound, group.parts.token, group.parts.depth)
        return group.parts

    def _children(self, group: Group) -> list[Group | int]:
        """Return the items of a group: other groups, and for a single node its row (an int) in the graph."""
        parts = self._parts(group)
        count = len(parts.period)
        if count > WIDEST:
            size = -(-count // min(PORTIONS, -(-count // 8)))
            return [self._portion(group, parts, at, min(at + size, count)) for at in range(0, count, size)]
        names: dict[str, int] = {}
        return [self._entry(group, parts, i, names) for i in range(count)]

    def _portion(self, group: Group, parts: Parts, first: int, last: int) -> Group | int:
        """Return entries `first` to `last` - 1 of a large group as one group; a single entry is returned as it is.

        ``parts`` are the contents of the large group.
        """
        if last - first == 1:
            return self._entry(group, parts, first, {})
        own = parts.between(first, last)
        a, b = int(own.bound[0]), int(own.bound[-1])
        return Group(f"{group.key}/~{a}", f"{a + 1:,}–{b:,}".replace(",", " "), "", a, b, parts=own)

    def _entry(self, group: Group, parts: Parts, i: int, names: dict[str, int]) -> Group | int:
        """Return entry i of a group as a group of its own, or as a row number if it is a single node.

        Args:
            group: the group that contains the entry.
            parts: the contents of that group.
            i: the index of the entry.
            names: a dict from a module's name to the number of the module's last call. This method updates the dict.
                The number is a part of the key of the call's group.
        """
        a, b = int(parts.cut[i]), int(parts.cut[i + 1])
        first, last = int(parts.bound[a]), int(parts.bound[b])
        if last - first == 1:
            return first
        period = int(parts.period[i])
        if period:
            cut = np.arange(0, b - a + 1, period)
            own = parts.calls(a, b, cut, np.zeros(len(cut) - 1, np.int64))
            return Group(f"{group.key}/*{first}", self._fold_name(own), "", first, last, len(cut) - 1, parts=own)
        if b - a > 1:
            own = parts.calls(a, b, *np.empty((2, 0), np.int64))
            return Group(f"{group.key}/@{first}", self._block_name(own), "", first, last, parts=own)
        return self._module(group, first, last, int(parts.depth[a]), names)

    def _module(self, group: Group, first: int, last: int, depth: int, names: dict[str, int]) -> Group:
        """Return the group of a module call, nodes `first` to `last` - 1.

        The first `depth` names of the scope path are the module's path. If the module only calls one other module, the
        group has the contents of that call. For `names` see `_entry`.
        """
        scope = self._scopes[int(self.graph.context[first])]
        name, path = _shown(scope, depth), ".".join(scope[:depth])
        call = names[name] = names.get(name, -1) + 1
        while True:
            token = self._token(depth)[self.graph.context[first:last]]
            if token[0] == NOT_A_MODULE or (token != token[0]).any():
                break
            depth += 1
        return Group(f"{group.key}/{name.replace('/', '∕')}#{call}", name, path, first, last, depth=depth)

    def _fold_name(self, parts: Parts) -> str:
        """Return a name for a repetition: its first and last module ("block0–11"), or the name of its first repeat.

        The second form, by `_block_name`, is used if the repetition begins or ends with an op that is no module call.
        """
        if NOT_A_MODULE in (parts.token[0], parts.token[-1]):
            return self._block_name(parts.between(0, 1))
        first, last = (self.catalog.strings.items[int(parts.token[i])] for i in (0, -1))
        name = _shown(self._scopes[int(self.graph.context[parts.bound[0]])], int(parts.depth[0]))
        return name if first == last else f"{name}–{last.removeprefix(first.rstrip('0123456789'))}"

    def _block_name(self, parts: Parts) -> str:
        """Return a name for a sequence of calls: the first few different ops and modules in it."""
        strings, names = self.catalog.strings.items, []
        for token, at in zip(parts.token[:8].tolist(), parts.bound[:8].tolist(), strict=False):
            op = self.catalog.plans.items[int(self.graph.plan[at])].op
            names.append(op if token == NOT_A_MODULE else strings[token])
        different = list(dict.fromkeys(names))
        return " ".join(different[:NAMED]) + ("…" if len(different) > NAMED or len(parts.token) > 8 else "")

    # ---- one level of them

    def level(self, group: Group) -> Level:
        """Return the items of a group and the edges between them, computed at the first call."""
        found = self._made.get(group.key)
        if found is None:
            items = self._children(group)
            self._known |= {item.key: item for item in items if isinstance(item, Group)}
            found = self._made[group.key] = self._connected(group, items)
        return found

    def find(self, key: str) -> Group | None:
        """Return the group with a key, or None; the levels that contain the group are computed if necessary."""
        if key == "":
            return self.root
        if key not in self._known:
            above = self.find(key.rpartition("/")[0])
            if above is not None:
                self.level(above)
        return self._known.get(key)

    def way(self, row: int) -> list[str]:
        """Return the keys of the groups that must be opened, the outermost first, to see the node in row `row`."""
        keys: list[str] = []
        group = self.root
        while True:
            inside = [item for item in self.level(group).items if isinstance(item, Group)]
            around = next((item for item in inside if item.first <= row < item.last), None)
            if around is None:
                return keys
            keys.append(around.key)
            group = around

    def owners(self, group: Group, items: list[Group | int]) -> Ints:
        """Return for each node of a group the index in `items` of the item that contains it."""
        firsts = [item if isinstance(item, int) else item.first for item in items]
        return np.repeat(np.arange(len(items)), np.diff([*firsts, group.last]))

    def _connected(self, group: Group, items: list[Group | int]) -> Level:
        """Return a group's `Level`: the given items and the edges between them."""
        graph, count = self.graph, len(items)
        if not count:
            return Level([], [], [], [])
        owner = self.owners(group, items)
        edges = slice(int(graph.start[group.first]), int(graph.start[group.last]))
        parent, to = graph.parent[edges], owner[graph.child[edges] - group.first]
        inside = parent >= group.first
        source, target = owner[parent[inside] - group.first], to[inside]
        pairs = np.unique(source[source != target] * count + target[source != target])
        entered = np.unique(to[(parent >= 0) & ~inside])
        left = np.unique(owner[graph.last_reader[group.first : group.last] >= group.last])
        found = list(zip((pairs // count).tolist(), (pairs % count).tolist(), strict=True))
        return Level(items, found, entered.tolist(), left.tolist())

    def opened(self, most: int) -> list[str]:
        """Return the keys of the groups to open initially, until about `most` items are shown.

        Groups where NaN, Inf or an error first appeared come first, then those that took longest.
        """
        graph, found = self.graph, list[str]()
        waiting: list[tuple[bool, int, int, Group]] = []
        count, work = len(self.level(self.root).items), len(graph)

        def push(groups: list[Group | int]) -> None:
            for item in groups:
                if isinstance(item, Group):
                    took = int(graph.forward[item.first : item.last].sum())
                    origin = self.worst(item) == ORIGIN or (graph.failed > 0 and item.last == len(graph))
                    heapq.heappush(waiting, (not origin, -took, item.first, item))

        push(self.level(self.root).items)
        while waiting and count < most and work <= 4 * max(len(graph), most):
            *_, group = heapq.heappop(waiting)
            items = self.level(group).items
            count += len(items) - 1
            work += group.last - group.first
            found.append(group.key)
            push(items)
        return found

    def worst(self, group: Group) -> int:
        """Return the worst of FINE, SPREAD and ORIGIN (see `Graph.health`) among the nodes of a group."""
        return int(self.graph.health[group.first : group.last].max(initial=FINE))


def _shown(scope: list[str], depth: int) -> str:
    """Return the name at position `depth` (from 1) of a scope path, such as "head".

    If the name is a number, the name before it in the path is put in front, as in "layers.0".
    """
    name = scope[depth - 1]
    return f"{scope[depth - 2]}.{name}" if name.isdigit() and depth > 1 else name
