"""Why a Variable gets a gradient, or does not."""

from __future__ import annotations

import re
from typing import Any

import pytest

import flnb
import flnb.nn as nn


@pytest.fixture
def w() -> Any:
    made = flnb.Variable([[1.0, 2.0], [3.0, 4.0]])
    made.name = "w"
    return made


@pytest.fixture
def x() -> Any:
    return flnb.Variable([[0.5, 1.5], [2.5, 3.5]])


def test_the_path_goes_from_the_loss_to_the_leaf_with_lines(w: Any, x: Any) -> None:
    hidden = flnb.tanh(w @ x)
    found = flnb.why(hidden.sum(), w)
    assert found.reached
    assert [step.partition(" ")[0] for step in found.path] == ["sum", "tanh", "matmul", "w"]
    assert "hidden = flnb.tanh(w @ x)" in found.path[1]
    assert repr(found).startswith("a gradient arrives, by\n  sum of float32[2,2]: ")
    assert flnb.why(lambda: (w @ x).sum(), w).path[2] == "w"
    assert flnb.why(hidden.sum(), hidden).reached


def test_the_shortest_of_many_paths_without_recursion() -> None:
    x = flnb.Variable([1.0])
    y = x
    for _ in range(5000):
        y = y * 1.001
    found = flnb.why((y + x).sum(), x)
    assert len(found.path) == 3
    assert len(flnb.why(y.sum(), x).path) == 5002


@pytest.mark.parametrize(
    ("loss", "reason", "source"),
    [
        (lambda w, x: (w.detach() @ x).sum(), r"what 'matmul' was given is detached", "w.detach() @ x"),
        (lambda w, x: (w.data @ x).sum(), r"what 'matmul' was given is detached", "w.data @ x"),
        (lambda w, x: _frozen(w, x).sum(), r"'matmul' ran under no_grad\(\)", "return w @ x"),
        (lambda w, x: (flnb.argmax(w, axis=0) * 1.0).sum() + x.sum(), r"'argmax' gives int64", "flnb.argmax"),
        (lambda w, x: ((w > 1.0) * x).sum(), r"'greater' gives bool", "w > 1.0"),
        (lambda w, x: flnb.softmax(w.detach(), axis=-1).sum(), r"is detached from the tape", "softmax"),
        (lambda w, x: x.sum(), "no op used it", ""),
        (lambda w, x: [flnb.tanh(w), x.sum()][1], "1 ops used it, but nothing that they gave", "flnb.tanh(w)"),
        (lambda w, x: (w * x).sum().detach(), "the loss that was returned is detached", ""),
    ],
)  # fmt: skip
def test_what_cut_the_path_is_named_with_its_line(w: Any, x: Any, loss: Any, reason: str, source: str) -> None:
    found = flnb.why(lambda: loss(w, x), w)
    assert not found.reached
    assert re.search(reason, found.reason), found
    assert source in found.line
    assert repr(found).startswith("no gradient arrives: ")


def _frozen(w: Any, x: Any) -> Any:
    with flnb.no_grad():
        return w @ x


def test_the_last_cut_counts_and_a_composite_is_not_one(w: Any, x: Any) -> None:
    assert flnb.why(lambda: flnb.softmax(w, axis=-1).sum(), w).reached
    found = flnb.why(lambda: (flnb.softmax(flnb.exp(w), axis=-1).detach() * x).sum(), w)
    assert "what 'multiply' was given is detached" in found.reason


def test_parameters_of_a_module_and_what_is_frozen() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    x = flnb.asarray([[1.0, 2.0]])
    first = next(iter(net.parameters()))
    assert flnb.why(lambda: net(x).sum(), first).reached
    assert not flnb.why(lambda: net(x).detach().sum(), first).reached


def test_a_variable_without_gradient_says_so(w: Any) -> None:
    loss = w.sum()
    assert "only floating-point Variables" in flnb.why(loss, flnb.Variable([1, 2], requires_grad=False)).reason
    assert "does not require grad" in flnb.why(loss, w.detach()).reason
    assert "the loss itself is not on the tape" in flnb.why(loss.detach(), w).reason
    assert "read it; flnb.why(lambda: <the loss>, x)" in flnb.why(loss, flnb.Variable([1.0])).reason


def test_a_freed_graph_is_said(w: Any) -> None:
    loss = (w * 2.0).sum()
    loss.backward()
    assert "freed by a backward" in flnb.why(loss, w).reason


@pytest.mark.parametrize(
    ("loss", "x", "message"),
    [
        (lambda: 1.0, None, "x must be a Variable, got NoneType"),
        (3.0, "w", "expected the loss as a Variable, or a function that computes it; got float"),
        (lambda: 1.0, "w", "the function must return the loss as a Variable, it returned float"),
    ],
)
def test_what_is_no_loss_or_no_variable(w: Any, loss: Any, x: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        flnb.why(loss, w if x == "w" else x)


def _trained(loss: Any) -> Any:
    with flnb.record("why", grad_interval=0) as run:
        loss().backward()
    return run.tape


def test_a_recording_tells_the_way_and_the_lines_that_cut(w: Any, x: Any) -> None:
    x.name = "net.x"
    found = _trained(lambda: flnb.tanh(w * 2.0).sum()).why(w)
    assert [step.split()[0] for step in found.path] == ["sum", "tanh", "multiply", "w"]
    assert "|grad| 1.00" in found.path[0]
    detached = _trained(lambda: (flnb.exp(w).detach() * x).sum())
    assert "its values were detached" in detached.why(w).reason
    assert "flnb.exp(w).detach()" in detached.why(w).line
    assert detached.why("net.x") == detached.why("x") == detached.why(x)
    frozen = _trained(lambda: (_frozen(w, x) * x).sum()).why(w)
    assert "ops ran under no_grad()" in frozen.reason
    assert "with flnb.no_grad():" in frozen.line
    assert _trained(lambda: (x * 1.0).sum()).why(w).reason == "it was never used by an op that is on the tape"
    rounded = _trained(lambda: (flnb.exp(w).astype(flnb.int32) * x).sum()).why(w)
    assert "became integers" in rounded.reason
    assert "astype(flnb.int32)" in rounded.line
    unused = _trained(lambda: [flnb.tanh(w), (x * 1.0).sum()][1]).why(w)
    assert unused.reason == "1 ops used it, but this loss depends on none of their results"


def test_a_recording_answers_for_nodes_numbers_and_variables_without_gradient(w: Any, x: Any) -> None:
    tape = _trained(lambda: (w * x).sum())
    node = tape.nodes[0]
    assert tape.why(node) == tape.why(node.id)
    assert tape.why(tape.leaves[0]).reached
    assert "int64, which has no gradient" in tape.why(flnb.Variable([1], requires_grad=False)).reason
    assert "does not require grad" in tape.why(w.detach()).reason
    with pytest.raises(LookupError, match=r"'v' is not a parameter or input on this tape; .* with names are: w\."):
        tape.why("v")
    with pytest.raises(TypeError, match="expected a Variable, its name, or a node of the tape; got float"):
        tape.why(1.5)


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (lambda h: h > 0.0, "integers or truth values"),
        (lambda h: flnb.equal(h, 1.0), "integers or truth values"),
        (lambda h: flnb.isnan(h), "integers or truth values"),
        (lambda h: flnb.argmax(h, axis=1), "integers or truth values"),
        (lambda h: h // 2.0, "an op that has no gradient"),
    ],
)
def test_the_tape_knows_ops_that_give_no_gradient(w: Any, x: Any, cut: Any, reason: str) -> None:
    with flnb.record(grad_interval=0.0) as run:
        mask = cut(w).astype("float64")  # the line
        (x * mask.sum()).sum().backward()
    found = run.tape.why(w)
    assert not found.reached
    assert reason in found.reason
    assert re.search(r"test_why.py:\d+: ", found.line)
    with flnb.record() as off, flnb.no_grad():
        cut(w)
    assert len(off.table("cut")["t"]) == 1  # no_grad() alone: nothing is on the tape there
    assert off.table("cut")["reason"].tolist() == [2]


def test_nodes_of_a_sampled_backward_know_their_lines(w: Any, x: Any) -> None:
    with flnb.record(grad_interval=0.0) as run:
        hidden = flnb.tanh(w @ x)
        hidden.sum().backward()
    lines = {node.op: node.line for node in run.tape.nodes}
    assert lines["tanh"].endswith("hidden = flnb.tanh(w @ x)")
    assert lines["sum"].endswith("hidden.sum().backward()")
    assert "test_why.py:" in lines["matmul"]
    assert run.tape.to_networkx().nodes[run.tape.nodes[-1].id]["line"] == lines["sum"]
    with flnb.record(grad_interval=None) as unsampled:
        flnb.tanh(w @ x).sum().backward()
    assert [node.line for node in unsampled.tape.nodes] == ["", "", ""]
