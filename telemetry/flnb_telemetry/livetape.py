"""What the dashboard is told of a tape: the levels that stand open, and others when the reader opens them.

A tape of a few hundred nodes travels whole. Of a longer one the browser gets the outermost level, what is worth
opening first, and what it asked for; so a million nodes open as fast as twenty.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry.analysis.levels import Group, Levels
from flnb_telemetry.safe_text import safe_lines, safe_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flnb_telemetry.analysis.tape import Tape

PROTOCOL = 1
FIRST = 600  # things told without being asked
INPUTS = 3  # drawn; more are in the details of what reads them
LEAVES = 2000  # leaves told whether or not a node that is told reads them
OPS = 12  # different ops told of a group


class LiveTape:
    """One tape as messages: `whole(keys)` as part of a frame, `answer(request)` for what a reader wants to see."""

    def __init__(self, tape: Tape) -> None:
        self.tape, self.graph, self.catalog = tape, tape.graph, tape.catalog
        self.levels: Levels = tape.levels
        graph = self.graph
        digest = hashlib.blake2b(digest_size=8)
        for column in (graph.plan, graph.context, graph.start, graph.parent):
            digest.update(np.ascontiguousarray(column).data)
        self.structure = digest.hexdigest()
        self.origins = tuple(graph.origins[:8].tolist())
        strings = self.catalog.strings
        self._family, self._families = _places(self.catalog.family[graph.plan])
        self._op, self._ops = _places(self.catalog.op[graph.plan])
        self._family_names, self._op_names = ([strings.items[i] for i in t] for t in (self._families, self._ops))

    def first(self) -> list[str]:
        """Keys of the levels worth telling without being asked."""
        return ["", *self.levels.opened(FIRST)]

    def frame(self, name: str) -> dict[str, Any]:
        """The tape as the one frame of a run called `name`, for a view of it alone."""
        tape = self.tape
        run = {
            "id": 1,
            "name": safe_text(name),
            "state": "finished",
            "error": None,
            "backend": "",
            "manager": "",
            "device": "",
        }
        nothing = ("events", "events_per_s", "dropped", "telemetry_share", "buffer_used", "buffer_capacity", "tick_hz")
        counters = dict.fromkeys((*nothing, "small_bytes"), 0) | {"t": tape.t, "step": tape.index, "steps_total": None}
        counters |= dict.fromkeys(("dropped_first_step", "dropped_last_step", "step_seconds"))
        content = {"type": "frame", "protocol": PROTOCOL, "keyframe": True, "seq": 1, "arrays": {}}
        content |= {"counters": counters, "run": run | {"capacity": None, "min_block": 0}}
        for table in ("strings", "plans", "contexts"):
            content[table] = {"first": 0, "items": self.catalog.told(table)}
        return content | {"tape": self.whole(self.first())}

    def whole(self, keys: Iterable[str]) -> dict[str, Any]:
        """The head of a tape and these levels of it, as JSON."""
        tape, graph = self.tape, self.graph
        head = {
            "truncated": tape.truncated,
            "count": len(graph),
            "structure": self.structure,
            "inputs": self._inputs(),
        }
        return self._head() | head | self._part(keys, len(graph.leaf_id) <= LEAVES)

    def norms(self) -> dict[str, Any]:
        """Gradient norms of a tape that is not shown, for the curves over the steps, as JSON."""
        graph = self.graph
        rows = np.flatnonzero(graph.gradient.seen)
        columns = (graph.context, graph.plan, graph.gradient.bad, graph.gradient.norm)
        nodes = zip(*(column[rows].tolist() for column in columns), strict=True)
        told = [{"context": c, "plan": p, "bad": bad, "norm": _number(norm)} for c, p, bad, norm in nodes]
        return self._head() | {"nodes": told}

    def _head(self) -> dict[str, Any]:
        """The step, and the norm of the gradient of all parameters (of all leaves, where none is a parameter)."""
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
        """Answer a request: levels to `open`, a node to `reveal`, a text to `search`. Unknown keys are ignored."""
        opened, reveal, search = (request.get(key) for key in ("open", "reveal", "search"))
        keys = [key for key in opened if isinstance(key, str)] if isinstance(opened, list) else []
        content: dict[str, Any] = {"type": "tape", "structure": self.structure, "step": self.tape.index}
        if isinstance(search, str) and search:
            content["search"] = found = {"text": search, **self._found(search.lower(), request.get("after"))}
            reveal = found["next"] if "after" in request else reveal
        if isinstance(reveal, int):
            row = int(np.searchsorted(self.graph.id, reveal))
            if row < len(self.graph) and self.graph.id[row] == reveal:
                way = self.levels.way(row)
                keys += way
                content["reveal"] = {"id": reveal, "open": way}
        return content | self._part(keys, False)

    def _found(self, text: str, after: Any) -> dict[str, Any]:
        """Matches in the tape, and the first one after a node (the first of all where there is none)."""
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
        """(leaf, place on the outermost level) for what reads the first few leaves that are no parameters."""
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
        graph = self.graph
        levels, rows = [], []
        for key in dict.fromkeys(keys):
            group = self.levels.find(key)
            if group is None:
                continue
            level = self.levels.level(group)
            told = iter(self._groups(group, level.items))
            items = [item if isinstance(item, int) else next(told) for item in level.items]
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
        told = {key: getattr(node, key) for key in keys}
        told |= {"at": row, "norm": _number(node.norm), "health": int(self.graph.health[row])}
        if node.line:
            told["line"] = safe_text(_brief(node.line))
        failure = self.tape.failure
        if failure is not None and failure.node == node.id:
            told["failed"] = failure._asdict() | {"message": safe_lines(failure.message)}
        return told

    def _leaf(self, row: int) -> dict[str, Any]:
        leaf = self.tape.leaves[row]
        told = {key: getattr(leaf, key) for key in ("id", "parameter", "plan", "bad")}
        return told | {"name": safe_text(leaf.name), "norm": _number(leaf.norm)}

    def _groups(self, group: Group, items: list[Group | int]) -> list[dict[str, Any]]:
        """Messages for the groups among the items of a level."""
        inner = [item for item in items if isinstance(item, Group)]
        if not inner:
            return []
        graph, count = self.graph, len(items)
        part = slice(group.first, group.last)
        owner = self.levels.owners(group, items)
        forward, backward, saved = (np.bincount(owner, column[part], count) for column in
                                    (graph.forward, graph.backward, graph.saved))  # fmt: skip
        families = _table(owner, self._family[part], graph.forward[part], count, len(self._families))
        ops = _table(owner, self._op[part], None, count, len(self._ops))
        told = []
        for place, item in enumerate(items):
            if not isinstance(item, Group):
                continue
            last = item.last - 1
            seen, norm = bool(graph.gradient.seen[last]), float(graph.gradient.norm[last])
            told.append({
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
        return told


def _brief(line: str) -> str:
    """The innermost line without its folder; a notebook's cell, whose file is only a number, is called that."""
    innermost = line.partition("\n")[0]
    found = re.match(r"(.*?):(\d.*)", innermost)  # a drive's colon has no digit behind it
    if found is None:
        return innermost
    file, rest = found.groups()
    return ("cell" if "ipykernel_" in file else re.split(r"[/\\]", file)[-1]) + f":{rest}"


def _places(ids: Any) -> tuple[Any, list[int]]:
    """Small numbers in place of ids, and the id of each."""
    different, place = np.unique(ids, return_inverse=True)
    return place, different.tolist()


def _table(owner: Any, kind: Any, weight: Any, owners: int, kinds: int) -> Any:
    """Sums of the weights (or counts) by owner and kind, shape (owners, kinds)."""
    return np.bincount(owner * kinds + kind, weight, owners * kinds).reshape(owners, kinds)


def _most(row: Any, names: list[str], count: int) -> list[tuple[str, int]]:
    """The largest few of a row that are not 0, by name."""
    order = np.argsort(-row, kind="stable")[:count]
    return [(names[i], int(row[i])) for i in order.tolist() if row[i] > 0]


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None  # JSON has no NaN; `bad` says it
