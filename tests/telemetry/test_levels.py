"""The tape as a tree that opens level by level."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import intern
from flnb_telemetry.analysis.folding import folds
from flnb_telemetry.analysis.graph import FINE, ORIGIN, SPREAD, Gradients, Graph
from flnb_telemetry.analysis.levels import WIDEST, Group, Levels
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence


def gradients(norms: Sequence[float | None], bad: Sequence[int] | None = None) -> Gradients:
    seen = np.array([norm is not None for norm in norms], np.bool_)
    values = np.array([np.nan if norm is None else norm for norm in norms], np.float64)
    return Gradients(values, seen, np.array(bad or [0] * len(norms)), np.full(len(norms), 8))


def graph(nodes: Sequence[tuple[str, str]], parents: Sequence[Sequence[int]] | None = None, **given: Any) -> Graph:
    """A graph of (scope, op); node i reads node i - 1, or `parents[i]` (a leaf is -1, -2, ...)."""
    size = len(nodes)
    above = parents or [[i - 1] if i else [-1] for i in range(size)]
    leaves = max([1, *(-p for row in above for p in row)])
    plans = [intern.plans.id_of(intern.Plan(op, "elementwise", (8,), "float32", 32)) for _, op in nodes]
    contexts = [intern.contexts.id_of(intern.Context(scope, 1)) for scope, _ in nodes]
    spent = np.full(size, 100)
    return Graph(
        id=np.arange(1, size + 1),
        plan=np.array(plans, np.int64),
        context=np.array(contexts, np.int64),
        forward=spent,
        backward=2 * spent,
        saved=np.full(size, 32),
        gradient=given.get("gradient") or gradients([None] * size),
        start=np.cumsum([0, *map(len, above)], dtype=np.int64),
        parent=np.array([p for row in above for p in row], np.int64),
        leaf_id=-1 - np.arange(leaves),
        leaf_plan=np.zeros(leaves, np.int64),
        leaf_name=np.zeros(leaves, np.int64),
        leaf_parameter=np.ones(leaves, np.bool_),
        leaf_gradient=given.get("leaves") or gradients([None] * leaves),
        origin=given.get("origin", -1),
    )


def levels(*nodes: tuple[str, str]) -> Levels:
    return Levels(graph(nodes), intern.Catalog())


def shape(tree: Levels, group: Group, depth: int = 9) -> list[Any]:
    """Names and what is in them; nodes by number, folds with their count."""
    found: list[Any] = []
    for item in tree.level(group).items:
        if isinstance(item, Group):
            name = f"{item.name} ×{item.repeat}" if item.repeat else item.name
            found.append({name: shape(tree, item, depth - 1)} if depth > 1 else name)
        else:
            found.append(item)
    return found


def block(scope: str) -> list[tuple[str, str]]:
    return [(f"{scope}.lin", "matmul"), (f"{scope}.lin", "add"), (scope, "relu")]


def test_the_outermost_module_is_left_out_and_a_module_of_one_op_is_that_op() -> None:
    tree = levels(("net.stem", "conv"), ("net.stem", "bn"), ("net.act", "relu"), ("net.a.b", "x"), ("net.a.b", "y"))
    assert shape(tree, tree.root) == [{"stem": [0, 1]}, 2, {"a": [3, 4]}]


def test_equal_blocks_that_follow_each_other_are_folded() -> None:
    nodes = [("net.stem", "conv"), ("net.stem", "bn")]
    for i in range(12):
        nodes += block(f"net.blocks.{i}")
    nodes += [("loss", "log"), ("loss", "sum")]
    tree = levels(*nodes)
    assert shape(tree, tree.root, 1) == ["stem", "blocks.0–11 ×12", "loss"]
    assert shape(tree, tree.root, 2)[1] == {"blocks.0–11 ×12": [f"blocks.{i}" for i in range(12)]}
    inside = shape(tree, tree.root)[1]["blocks.0–11 ×12"][11]
    assert inside == {"blocks.11": [{"lin": [35, 36]}, 37]}


def test_blocks_that_differ_in_a_shape_are_not_equal() -> None:
    nodes = [("a1", "exp"), ("a1", "log"), ("a2", "exp"), ("a2", "cos"), ("a3", "exp"), ("a3", "log")]
    assert shape(levels(*nodes), levels(*nodes).root, 1) == ["a1", "a2", "a3"]


def test_a_loop_without_modules_is_folded_by_its_ops() -> None:
    tree = levels(*[("", op) for _ in range(50) for op in ("matmul", "add", "tanh")], ("", "sum"))
    assert shape(tree, tree.root, 1) == ["matmul add tanh ×50", 150]
    (fold, _) = tree.level(tree.root).items
    assert isinstance(fold, Group)
    assert shape(tree, fold)[3] == {"matmul add tanh": [9, 10, 11]}


def test_long_rows_come_in_portions() -> None:
    rng = np.random.default_rng(0)
    tree = levels(*[("", f"op{i}") for i in rng.permutation(1000)])
    items = tree.level(tree.root).items
    assert len(items) <= WIDEST
    assert [item.name for item in items[:2] if isinstance(item, Group)] == ["1–42", "43–84"]


@given(st.lists(st.tuples(st.sampled_from(["", "a", "a.b", "a.c", "b", "b.a.a"]), st.sampled_from("xy")), max_size=150))
@settings(max_examples=60, deadline=None)
def test_every_node_is_there_once_and_every_edge_is_somewhere(nodes: list[tuple[str, str]]) -> None:
    rng = np.random.default_rng(len(nodes))
    parents = [
        sorted({int(rng.integers(-2, i)) for _ in range(2)} - ({0} if i == 0 else set())) for i in range(len(nodes))
    ]
    made = graph(nodes, parents) if nodes else graph([], [])
    tree = Levels(made, intern.Catalog())
    seen: list[int] = []
    edges: set[tuple[int, int]] = set()
    keys: list[str] = []

    def walk(group: Group) -> None:
        level = tree.level(group)
        assert len(level.items) <= WIDEST
        spans = [(i, i + 1) if isinstance(i, int) else (i.first, i.last) for i in level.items]
        assert [a for a, _ in spans] == [group.first, *(b for _, b in spans)][: len(spans)]
        for a, b in level.edges:
            assert a != b
            edges.update(
                (p, c) for c in range(*spans[b]) for p in parents[c] if p >= 0 and spans[a][0] <= p < spans[a][1]
            )
        for place, (a, b) in enumerate(spans):
            reads = any(0 <= p < group.first for c in range(a, b) for p in parents[c])
            assert (place in level.entered) == reads
            assert (place in level.left) == any(a <= p < b for c in range(group.last, len(nodes)) for p in parents[c])
        for item in level.items:
            if isinstance(item, Group):
                keys.append(item.key)
                assert item.last - item.first > 1
                walk(item)
            else:
                seen.append(item)

    walk(tree.root)
    assert sorted(seen) == list(range(len(nodes)))
    assert edges == {(p, c) for c, row in enumerate(parents) for p in row if p >= 0}
    assert len(set(keys)) == len(keys)
    fresh = Levels(made, intern.Catalog())
    for key in keys:  # in any order, without having opened anything before
        found = fresh.find(key)
        assert found is not None
        assert (found.first, found.last) == (tree.find(key).first, tree.find(key).last)  # type: ignore[union-attr]
    for row in range(0, len(nodes), 7):
        way = fresh.way(row)
        assert row in fresh.level(fresh.find(way[-1]) if way else fresh.root).items  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 2), max_size=80))
@settings(max_examples=200, deadline=None)
def test_folds_cover_everything_and_repeat_what_they_say(kinds: list[int]) -> None:
    kind = np.array(kinds, np.uint64)
    cut, period = folds(kind, np.ones(len(kinds), np.bool_))
    assert cut[0] == 0
    assert cut[-1] == len(kinds)
    for a, b, p in zip(cut[:-1], cut[1:], period, strict=True):
        assert b - a == 1 if p == 0 else (b - a) % p == 0 and b - a >= 3 * p
        assert p == 0 or (kind[a : b - p] == kind[a + p : b]).all()


def test_a_key_of_another_tape_is_nothing() -> None:
    tree = levels(*block("a"), *block("b"))
    assert tree.find("/zzz#0") is None
    assert tree.find("/zzz#0/*4") is None


def test_the_health_of_nodes_is_that_of_their_gradients_and_of_the_origin() -> None:
    sick = graph([("", "x")] * 4, gradient=gradients([1.0] * 4, [3, 1, 0, 0]), origin=2)
    assert sick.health.tolist() == [SPREAD, SPREAD, ORIGIN, FINE]
    assert sick.origins.tolist() == [2]
    unseen = graph([("", "x")] * 2, gradient=gradients([1.0] * 2, [1, 0]))
    assert (unseen.health.tolist(), unseen.origins.tolist()) == ([SPREAD, FINE], [])


def test_what_is_sick_opens_first() -> None:
    nodes = [*block("a"), *block("b"), *block("c"), ("z", "sum"), ("z", "log")]
    norms = gradients([1.0] * len(nodes), [0, 0, 0, 0, 2, *[0] * 6])
    tree = Levels(graph(nodes, gradient=norms, origin=5), intern.Catalog())
    assert shape(tree, tree.root, 1) == ["a–c ×3", "z"]
    assert tree.opened(5) == ["/*0", "/*0/b#0"]


@pytest.mark.parametrize(
    ("ops", "name"),
    [(("exp", "add", "log", "sin"), "exp add log sin"), (tuple("abcdefg"), "a b c d e f…")],
)
def test_a_row_of_calls_has_the_names_of_its_ops(ops: tuple[str, ...], name: str) -> None:
    tree = Levels(graph([("", op) for op in ops * 8]), intern.Catalog())
    assert shape(tree, tree.root, 1) == [f"{name} ×8"]


def test_a_million_nodes_open_level_by_level() -> None:
    size = 1_000_000
    ops = ["exp", "add", "log"]
    plans = np.array([intern.plans.id_of(intern.Plan(op, "elementwise", (), "float32", 4)) for op in ops])
    nothing, small = np.zeros(size, np.int64), graph([("", "exp")])
    many = Graph(
        np.arange(1, size + 1), plans[np.arange(size) % 3], nothing, nothing, nothing, nothing,
        Gradients(np.full(size, np.nan), nothing > 0, nothing, nothing), np.arange(size + 1), np.arange(-1, size - 1),
        small.leaf_id, small.leaf_plan, small.leaf_name, small.leaf_parameter, small.leaf_gradient,
    )  # fmt: skip
    tree = Levels(many, intern.Catalog())
    assert shape(tree, tree.root, 1) == ["exp add log ×333333", size - 1]
    way = tree.way(654_321)
    assert 654_321 in tree.level(tree.find(way[-1]) or tree.root).items
    assert sum(len(tree.level(tree.find(key) or tree.root).items) for key in way) < WIDEST * len(way)
