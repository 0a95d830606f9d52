"""A tape as messages to the browser."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import bus, intern, record, schema
from flnb_telemetry.analysis.levels import WIDEST
from flnb_telemetry.analysis.tape import Tape
from flnb_telemetry.live.tape import FIRST, LiveTape
from flnb_telemetry.live.view import tape_frame

from tests.telemetry.test_levels import gradients, graph


def _no_table(kind: str) -> Any:
    raise LookupError(kind)


def _no_other(index: int) -> Tape:
    raise LookupError(index)


def live(*nodes: tuple[str, str], **given: Any) -> LiveTape:
    return LiveTape(Tape(3, 1.5, graph(nodes, **given), intern.Catalog(), 0, _no_table, _no_other))


def sent(content: dict[str, Any]) -> dict[str, Any]:
    """As it arrives: JSON without NaN."""
    arrived: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))
    return arrived


def whole(shown: LiveTape) -> dict[str, Any]:
    return sent(shown.whole(shown.first()))


def test_a_small_tape_travels_whole() -> None:
    shown = live(("a", "exp"), ("a", "log"), ("b", "exp"), ("b", "cos"), parents=[[-1], [0], [1, -1], [2]])
    told = whole(shown)
    assert (told["step"], told["t"], told["count"], told["truncated"]) == (3, 1.5, 4, 0)
    assert [node["id"] for node in told["nodes"]] == [1, 2, 3, 4]
    assert [node["parents"] for node in told["nodes"]] == [[-1], [1], [2, -1], [3]]
    assert {level["key"] for level in told["levels"]} == {"", "/a#0", "/b#0"}
    root = next(level for level in told["levels"] if level["key"] == "")
    (a, b) = root["items"]
    assert (a["name"], a["first"], a["last"], a["ids"], a["repeat"]) == ("a", 0, 2, [1, 2], 0)
    assert (b["forward_ns"], b["backward_ns"], b["saved"]) == (200, 400, 64)
    assert sorted(b["ops"]) == [["cos", 1], ["exp", 1]]
    assert b["families"] == [["elementwise", 200]]
    assert root["edges"] == [0, 1]
    assert [leaf["id"] for leaf in told["leaves"]] == [-1]


def test_the_levels_of_an_equal_graph_are_taken_over_and_its_figures_are_not() -> None:
    nodes = ("a", "exp"), ("a", "log"), ("b", "exp"), ("b", "cos")
    first = live(*nodes, parents=[[-1], [0], [1, -1], [2]])
    whole(first)
    slower = replace(first.graph, forward=10 * first.graph.forward)
    second = LiveTape(replace(first.tape, graph=slower), first)
    assert second.levels._made is first.levels._made
    took = [[item["forward_ns"] for item in whole(shown)["levels"][0]["items"]] for shown in (first, second)]
    assert took[1] == [10 * ns for ns in took[0]]
    other = live(*nodes, parents=[[-1], [0], [0, -1], [2]])
    assert LiveTape(other.tape, first).levels is other.tape.levels


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/project/train.py:12: y = f(x)\n    from /project/main.py:3: train()", "train.py:12: y = f(x)"),
        ("C:\\me\\train.py:12: y = a / b", "train.py:12: y = a / b"),
        ("/tmp/ipykernel_12/345.py:1: y = x", "cell:1: y = x"),
        ("an unknown line", "an unknown line"),
    ],
)
def test_a_node_tells_its_line_in_short(line: str, told: str) -> None:
    shown = live(("a", "exp"), ("a", "log"), parents=[[-1], [0]])
    graph = replace(shown.graph, line=np.array([intern.strings.id_of(line), 0]))
    nodes = whole(LiveTape(replace(shown.tape, graph=graph)))["nodes"]
    assert nodes[0]["line"] == told
    assert "line" not in nodes[1]


def test_a_long_tape_tells_its_first_levels_and_what_is_asked_for() -> None:
    rng = np.random.default_rng(1)
    shown = live(*[("", f"op{i}") for i in rng.integers(0, 900, 20_000)])
    told = whole(shown)
    items = sum(len(level["items"]) for level in told["levels"])
    assert 20 < items < FIRST + WIDEST + len(told["levels"])
    assert len(told["nodes"]) < 2000
    known = {level["key"] for level in told["levels"]}
    closed = [item["key"] for level in told["levels"] for item in level["items"] if isinstance(item, dict)]
    key = next(key for key in closed if key not in known)
    answer = sent(shown.answer({"type": "tape", "open": [key, "/nonsense", 7]}))
    assert [level["key"] for level in answer["levels"]] == [key]
    assert (answer["type"], answer["structure"], answer["step"]) == ("tape", told["structure"], 3)


def test_of_a_group_the_contexts_and_ops_of_its_nodes_are_answered() -> None:
    shown = live(*[(f"net.{i}", op) for i in range(12) for op in ("exp", "add", "log")], ("head", "matmul"))
    fold = next(item for item in whole(shown)["levels"][0]["items"] if isinstance(item, dict) and item["last"] == 36)
    marks = sent(shown.answer({"type": "tape", "marks": fold["key"]}))["marks"]
    assert marks["group"] == fold["key"]
    assert sorted(marks["ops"]) == ["add", "exp", "log"]
    scopes = {shown.catalog.contexts.items[context].scope for context in marks["contexts"]}
    assert scopes == {f"net.{i}" for i in range(12)}
    for unknown in ("/nonsense", 7):
        assert "marks" not in shown.answer({"type": "tape", "marks": unknown})


def test_a_node_is_revealed_with_the_levels_above_it() -> None:
    shown = live(*[("", op) for _ in range(3000) for op in ("exp", "add", "log")])
    answer = sent(shown.answer({"type": "tape", "reveal": 4321}))
    assert answer["reveal"] == {"id": 4321, "open": [level["key"] for level in answer["levels"]]}
    assert 4321 in [node["id"] for node in answer["nodes"]]
    assert "reveal" not in shown.answer({"type": "tape", "reveal": 99_999})


def test_a_node_is_named_by_op_scope_and_place() -> None:
    shown = live(*[(f"net.{i % 3}", op) for i in range(3000) for op in ("exp", "add")])
    for scope, nth, row in (("net.0", 0, 0), ("net.2", 0, 4), ("net.1", 999, 5996), ("net.1", 1000, 2)):
        answer = sent(shown.answer({"type": "tape", "op": "exp", "scope": scope, "nth": nth}))
        assert answer["named"] == answer["reveal"]["id"] == shown.graph.id[row]
        assert answer["named"] in [node["id"] for node in answer["nodes"]]
    for op, scope, nth in (("log", "net.0", 0), ("exp", "net", 0), ("exp", "net.0", None), ("exp", None, 0)):
        answer = sent(shown.answer({"type": "tape", "op": op, "scope": scope, "nth": nth}))
        assert answer["named"] is None
        assert "reveal" not in answer


def test_a_search_counts_all_nodes_and_leads_to_the_next() -> None:
    shown = live(*[("", op) for _ in range(2000) for op in ("exp", "add", "log")], ("head.Fc", "matmul"))
    assert sent(shown.answer({"type": "tape", "search": "EXP"}))["search"]["count"] == 2000
    found = sent(shown.answer({"type": "tape", "search": "exp", "after": 4}))
    assert (found["search"]["next"], found["search"]["at"], found["reveal"]["id"]) == (7, 3, 7)
    again = shown.answer({"type": "tape", "search": "exp", "after": 5998})  # the last one: begins anew
    assert (again["search"]["next"], again["search"]["at"]) == (1, 1)
    assert shown.answer({"type": "tape", "search": "fc"})["search"]["count"] == 1
    nothing = shown.answer({"type": "tape", "search": "zebra", "after": 0})
    assert nothing["search"] == {"text": "zebra", "count": 0, "next": None, "at": 0}
    assert "reveal" not in nothing


@pytest.mark.parametrize("request_", [{}, {"open": "x"}, {"open": None, "reveal": "1", "search": 3}])
def test_what_makes_no_sense_is_answered_with_nothing(request_: dict[str, Any]) -> None:
    answer = live(("a", "exp"), ("a", "log")).answer(request_)
    assert (answer["levels"], answer["nodes"]) == ([], [])


def test_the_structure_is_the_programs_and_not_the_steps() -> None:
    nodes = [("a", "exp"), ("b", "log")]
    one, other = live(*nodes), live(*nodes, gradient=gradients([1.0, 2.0]))
    assert one.structure == other.structure
    assert one.structure != live(("a", "exp"), ("b", "exp")).structure


def test_bad_gradients_are_told_without_nan() -> None:
    sick = live(
        ("a", "exp"), ("a", "log"), gradient=gradients([float("nan"), 2.0], [5, 0]), leaves=gradients([3.0]), origin=1
    )
    told = whole(sick)
    assert [(node["norm"], node["bad"], node["health"]) for node in told["nodes"]] == [(None, 5, 1), (2.0, 0, 2)]
    assert (told["gradient"], told["gradient_bad"]) == (3.0, 0)


def test_a_frame_stands_alone() -> None:
    content = sent(tape_frame(live(("a", "exp"), ("a", "log")), "mine"))
    assert (content["type"], content["protocol"], content["keyframe"], content["run"]["name"]) == (
        "frame",
        1,
        True,
        "mine",
    )
    plan = content["plans"]["items"][content["tape"]["nodes"][0]["plan"]]
    assert (plan["op"], plan["shape"], plan["dtype"]) == ("exp", [8], "float32")


def test_a_forward_that_failed_ends_with_the_op_that_raised(program: Any) -> None:
    with record() as run:
        a = program.forward("exp", -1)
        b = program.forward("log", a)
        program.op("multiply", node=b)  # nothing was walked back: this is still forward
        about = intern.Plan("matmul", "matmul", (), "float32", 0, 0, ((2, 3), (4, 5)))
        message = intern.strings.id_of("ValueError: matmul of 2×3 and 4×5")
        code = schema.OP_FAILED | intern.plans.id_of(about) << schema.PLAN_SHIFT
        bus.emit(code, program.t + 10, message, 0, 0, b, -2)
    tape = run.tape
    assert [node.op for node in tape.nodes] == ["exp", "log", "matmul"]
    assert tape.nodes[-1].parents == (b, -2)
    assert tape.failure is not None
    assert tape.failure.got == ((2, 3), (4, 5))
    assert tape.failure.expected is None
    assert "failed: matmul of 2×3 and 4×5: ValueError: matmul of 2×3 and 4×5" in repr(tape)
    told = whole(LiveTape(tape))["nodes"]
    assert told[-1]["failed"]["message"].startswith("ValueError")
    assert "failed" not in told[0]


def test_a_failure_before_a_forward_that_went_well_is_past(program: Any) -> None:
    with record() as run:
        code = schema.OP_FAILED | intern.plans.id_of(intern.Plan("matmul", "matmul", (), "float32", 0)) << 24
        bus.emit(code, program.t + 10, 1, 0, 0, 0, 0)
        program.t += 100
        program.forward("exp", -1)
    assert run.tape.failure is None
    assert [node.op for node in run.tape.nodes] == ["exp"]
