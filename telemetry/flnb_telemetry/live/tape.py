"""A tape as messages to the dashboard: the levels of its tree that are open, and others on request.

A tape of a few hundred nodes is sent as a whole. Of a longer tape the browser receives the outermost level, the levels
most worth opening, and the levels that it requests, so that a tape of a million nodes opens quickly.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry.safe_text import safe_lines, safe_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flnb_telemetry.analysis.levels import Group, Levels
    from flnb_telemetry.analysis.tape import Tape

PROTOCOL = 1
FIRST = 600  # nodes and groups that are sent without a request
INPUTS = 3  # inputs that are drawn; more are in the details of the nodes that read them
LEAVES = 2000  # up to so many leaves are all sent; of more, those that a sent node reads
OPS = 12  # different ops that are listed for a group
MARKED = 4096  # different contexts that are listed for a group whose ops are to be marked


class LiveTape:
    """The messages about one tape: `whole` for frames to the dashboard, `answer` for requests of the user.

    For a long tape, a message contains only the levels that the user looks at. A level lists the members of one group
    of nodes (see `Levels`), and is named by the group's key.

    Args:
        tape: the tape to describe.
        before: the tape of an earlier step, whose levels are reused if the graph is the same.
    """

    def __init__(self, tape: Tape, before: LiveTape | None = None) -> None:
        self.tape, self.graph, self.catalog = tape, tape.graph, tape.catalog
        graph = self.graph
        digest = hashlib.blake2b(digest_size=8)
        for column in (graph.plan, graph.context, graph.start, graph.parent):
            digest.update(np.ascontiguousarray(column).data)
        self.structure = digest.hexdigest()
        alike = before if before is not None and before.structure == self.structure else None
        self.levels: Levels = tape.levels if alike is None else alike.levels.over(graph)
        self.origins = tuple(graph.origins[:8].tolist())
        strings = self.catalog.strings
        self._family, self._families = _places(self.catalog.family[graph.plan])
        self._op, self._ops = _places(self.catalog.op[graph.plan])
        self._family_names, self._op_names = ([strings.items[i] for i in t] for t in (self._families, self._ops))

    def first(self) -> list[str]:
        """Return the keys of the levels to send without a request."""
        return ["", *self.levels.opened(FIRST)]

    def whole(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the tape's summary and the levels with these keys, as JSON."""
        tape, graph = self.tape, self.graph
        head = {"truncated": tape.truncated, "count": len(graph), "structure": self.structure, "inputs": self._inputs()}
        return self._head() | head | self._part(keys, len(graph.leaf_id) <= LEAVES)

    def norms(self) -> dict[str, Any]:
        """Return the gradient norms of the nodes, for curves over the steps, as JSON."""
        graph = self.graph
        rows = np.flatnonzero(graph.gradient.seen)
        columns = (graph.context, graph.plan, graph.gradient.bad, graph.gradient.norm)
        nodes = zip(*(column[rows].tolist() for column in columns), strict=True)
        items = [{"context": c, "plan": p, "bad": bad, "norm": _number(norm)} for c, p, bad, norm in nodes]
        return self._head() | {"nodes": items}

    def _head(self) -> dict[str, Any]:
        """Return the step, and the gradient norm over all parameters, or over all leaves if none is a parameter."""
        of, parameter = self.graph.leaf_gradient, self.graph.leaf_parameter
        parameter = parameter if parameter.any() else ~parameter
        norm, known = of.norm[parameter], of.seen[parameter]
        return {
            "step": self.tape.index,
            "t": self.tape.t,
            "gradient": _number(math.sqrt(float((norm[known] ** 2).sum()))) if known.any() else None,
            "gradient_bad": int(of.bad[parameter].sum()),
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request: levels to "open", a node to "reveal", a text to "search", or a group's key: "marks".

        A node can also be requested by "op", "scope" and "nth", its place among the nodes with both, counted from 0; if
        a step has fewer, the count begins again, as in a program of several steps. Unknown keys are ignored.
        """
        opened, reveal, search = (request.get(key) for key in ("open", "reveal", "search"))
        keys = [key for key in opened if isinstance(key, str)] if isinstance(opened, list) else []
        content: dict[str, Any] = {"type": "tape", "structure": self.structure, "step": self.tape.index}
        if isinstance(search, str) and search:
            content["search"] = found = {"text": search, **self._found(search.lower(), request.get("after"))}
            reveal = found["next"] if "after" in request else reveal
        if isinstance(op := request.get("op"), str):
            reveal = content["named"] = self._named(op, request.get("scope"), request.get("nth"))
        if isinstance(reveal, int):
            row = int(np.searchsorted(self.graph.id, reveal))
            if row < len(self.graph) and self.graph.id[row] == reveal:
                way = self.levels.way(row)
                keys += way
                content["reveal"] = {"id": reveal, "open": way}
        group = self.levels.find(mark) if isinstance(mark := request.get("marks"), str) else None
        if group is not None:
            part = slice(group.first, group.last)
            contexts, ops = np.unique(self.graph.context[part])[:MARKED].tolist(), np.unique(self._op[part]).tolist()
            content["marks"] = {"group": mark, "contexts": contexts, "ops": [self._op_names[op] for op in ops]}
        return content | self._part(keys, False)

    def _named(self, op: str, scope: Any, nth: Any) -> int | None:
        """Return the id of a node by op, scope and place among the nodes with both; None if there is none."""
        graph = self.graph
        used, context = np.unique(graph.context, return_inverse=True)
        scopes = np.array([self.catalog.contexts.items[i].scope == scope for i in used.tolist()], np.bool_)
        names = np.array([name == op for name in self._op_names], np.bool_)
        rows = np.flatnonzero(names[self._op] & scopes[context]) if len(graph) else ()
        return int(graph.id[rows[nth % len(rows)]]) if len(rows) and isinstance(nth, int) else None

    def _found(self, text: str, after: Any) -> dict[str, Any]:
        """Find the nodes whose op or scope contains a text, which is given in lower case.

        Returns:
            A dict with "count", the number of matching nodes; "next", the id of the first match after the node id
            `after` or, if there is none, of the very first match; and "at", the number of "next" among the matches,
            counted from 1.
        """
        catalog, graph = self.catalog, self.graph
        names = np.array([text in name.lower() for name in self._op_names], np.bool_)
        used, context = np.unique(graph.context, return_inverse=True)
        scopes = np.array([text in catalog.contexts.items[i].scope.lower() for i in used.tolist()], np.bool_)
        rows = np.flatnonzero(names[self._op] | scopes[context]) if len(graph) else np.empty(0, np.int64)
        if not len(rows):
            return {"count": 0, "next": None, "at": 0}
        at = int(np.searchsorted(graph.id[rows], after, "right")) % len(rows) if isinstance(after, int) else 0
        return {"count": len(rows), "next": int(graph.id[rows[at]]), "at": at + 1}

    def _inputs(self) -> list[tuple[int, int]]:
        """Return (leaf id, index of the item on the outermost level that reads it) for the first inputs.

        Inputs are the leaves that are no parameters.
        """
        graph, root = self.graph, self.levels.root
        rows = np.flatnonzero(~graph.leaf_parameter)[:INPUTS]
        edge = np.flatnonzero(np.isin(graph.parent, -1 - rows))
        items = self.levels.level(root).items
        if not len(edge):
            return []
        to = self.levels.owners(root, items)[graph.child[edge]]
        pairs = zip(graph.leaf_id[-1 - graph.parent[edge]].tolist(), to.tolist(), strict=True)
        return list(dict.fromkeys(pairs))

    def _part(self, keys: Iterable[str], every_leaf: bool) -> dict[str, Any]:
        """Return the levels with these keys, their nodes, and the leaves that the nodes read.

        With `every_leaf`, all leaves of the tape are returned.
        """
        graph = self.graph
        levels, rows = [], []
        for key in dict.fromkeys(keys):
            group = self.levels.find(key)
            if group is None:
                continue
            level = self.levels.level(group)
            items = self._items(group, level.items)
            rows += [item for item in level.items if isinstance(item, int)]
            edges = [place for edge in level.edges for place in edge]
            levels.append({"key": key, "items": items, "edges": edges, "entered": level.entered, "left": level.left})
        rows.sort()
        nodes = [self._node(row) for row in rows]
        leaves: Sequence[int] = range(len(graph.leaf_id))
        if not every_leaf:
            read = {parent for node in nodes for parent in node["parents"] if parent < 0}
            leaves = [i for i, leaf in enumerate(graph.leaf_id.tolist()) if leaf in read]
            leaves = sorted({*leaves, *np.flatnonzero(~graph.leaf_parameter)[:INPUTS].tolist()})
        return {"levels": levels, "nodes": nodes, "leaves": [self._leaf(i) for i in leaves]}

    def _node(self, row: int) -> dict[str, Any]:
        node = self.tape.nodes[row]
        keys = ("id", "plan", "context", "parents", "forward_ns", "backward_ns", "saved", "bad", "numel")
        description = {key: getattr(node, key) for key in keys}
        description |= {"at": row, "norm": _number(node.norm), "health": int(self.graph.health[row])}
        if node.line:
            description["line"] = safe_text(_brief(node.line))
        failure = self.tape.failure
        if failure is not None and failure.node == node.id:
            description["failed"] = failure._asdict() | {"message": safe_lines(failure.message)}
        return description

    def _leaf(self, row: int) -> dict[str, Any]:
        leaf = self.tape.leaves[row]
        description = {key: getattr(leaf, key) for key in ("id", "parameter", "plan", "bad")}
        return description | {"name": safe_text(leaf.name), "norm": _number(leaf.norm)}

    def _items(self, group: Group, items: list[Group | int]) -> list[int | dict[str, Any]]:
        """Return the items of a level as JSON: the rows of nodes as they are, groups as dicts."""
        graph, count = self.graph, len(items)
        part = slice(group.first, group.last)
        owner = self.levels.owners(group, items)
        forward, backward, saved = (np.bincount(owner, column[part], count) for column in
                                    (graph.forward, graph.backward, graph.saved))  # fmt: skip
        families = _table(owner, self._family[part], graph.forward[part], count, len(self._families))
        ops = _table(owner, self._op[part], None, count, len(self._ops))
        found: list[int | dict[str, Any]] = []
        for place, item in enumerate(items):
            if isinstance(item, int):
                found.append(item)
                continue
            last = item.last - 1
            seen, norm = bool(graph.gradient.seen[last]), float(graph.gradient.norm[last])
            found.append({
                "key": item.key, "name": safe_text(item.name), "path": safe_text(item.path),
                "first": item.first, "last": item.last,
                "ids": [int(graph.id[item.first]), int(graph.id[last])], "repeat": item.repeat,
                "plan": int(graph.plan[last]), "health": self.levels.worst(item),
                "failed": bool(graph.failed) and item.last == len(graph),
                "norm": _number(norm) if seen else None,
                "forward_ns": int(forward[place]), "backward_ns": int(backward[place]), "saved": int(saved[place]),
                "bad": int(graph.gradient.bad[last]),
                "families": _most(families[place], self._family_names, OPS),
                "ops": _most(ops[place], self._op_names, OPS), "different": int(np.count_nonzero(ops[place])),
            })  # fmt: skip
        return found


def _brief(line: str) -> str:
    """Return the first line of `line`, "file:line: source", without the folder; a notebook cell is named "cell"."""
    innermost = line.partition("\n")[0]
    found = re.match(r"(.*?):(\d.*)", innermost)  # a drive's colon has no digit behind it
    if found is None:
        return innermost
    file, rest = found.groups()
    return ("cell" if "ipykernel_" in file else re.split(r"[/\\]", file)[-1]) + f":{rest}"


def _places(ids: Any) -> tuple[Any, list[int]]:
    """Number the distinct ids from 0; return the number of each entry, and the list of distinct ids."""
    different, place = np.unique(ids, return_inverse=True)
    return place, different.tolist()


def _table(owner: Any, kind: Any, weight: Any, owners: int, kinds: int) -> Any:
    """Return the sums of weights by owner and kind, shape (owners, kinds); if `weight` is None, the counts."""
    return np.bincount(owner * kinds + kind, weight, owners * kinds).reshape(owners, kinds)


def _most(row: Any, names: list[str], count: int) -> list[tuple[str, int]]:
    """Return the largest `count` entries of a row, without zeros, in pairs with their names."""
    order = np.argsort(-row, kind="stable")[:count]
    return [(names[i], int(row[i])) for i in order.tolist() if row[i] > 0]


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None  # JSON has no NaN: the field `bad` counts them
