"""Fused nodes: what they keep, when they are not made, and that their gradients are those of their ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flnb
from flnb.interface.tape import PARENTS, PLAN, SAVED
from flnb.speech import beam_search  # noqa: F401  # registers its sequences


def arc(other: Any, score: Any, frame: Any, weight: Any) -> Any:
    """The sequence that `flnb.speech` registers."""
    return flnb.logaddexp(other, score + (frame + weight))


def variables(dtype: str = "float64") -> list[flnb.Variable]:
    rng = np.random.default_rng(5)
    return [flnb.Variable(rng.normal(size=()).astype(dtype)) for _ in range(4)]


def reachable(node: Any) -> list[str]:
    """The names of the ops whose nodes a node holds: its parents, what it saved, and so on."""
    names, waiting = [], [node]
    while waiting:
        node = waiting.pop()
        if node is not None and node[PLAN] is not None:
            names.append(node[PLAN].op.name)
            waiting += [*node[PARENTS], *(getattr(x, "_node", None) for x in node[SAVED:])]
    return names


def test_nodes_inside_are_let_go() -> None:
    with flnb.use_tape("prefused"):
        y = arc(*variables())
    assert reachable(y._node) == ["weighted_arc"]
    assert sorted(reachable(arc(*variables())._node))[:2] == ["add", "add"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [(), (3,), (2000,)])
def test_gradients_of_tiny_and_of_large_tensors(dtype: str, size: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=size).astype(dtype) for _ in range(4)]
    found = []
    for tape in ("linked", "prefused"):
        given = [flnb.Variable(value) for value in values]
        with flnb.use_tape(tape) as active:
            y = arc(*given)
        y.backward(flnb.ones(size, dtype=dtype))
        found.append([x.grad.numpy() for x in given])
    assert active.fused == 1
    for linked, prefused in zip(*found, strict=True):
        np.testing.assert_array_equal(prefused, linked)


def test_recording_sees_every_op_of_a_fused_gradient() -> None:
    runs = []
    for tape in ("linked", "prefused"):
        with flnb.record() as run, flnb.use_tape(tape):
            arc(*variables()).backward()
        runs.append({name: run.ops[name].count for name in ("exp", "subtract", "multiply")})
    assert runs[0] == runs[1]


@pytest.mark.parametrize("fixed", range(4))
def test_a_sequence_with_an_input_that_needs_no_gradient(fixed: int) -> None:
    wanted, got = variables(), variables()
    wanted[fixed], got[fixed] = wanted[fixed].detach(), got[fixed].detach()
    arc(*wanted).backward()
    with flnb.use_tape("prefused"):
        arc(*got).backward()
    for i in set(range(4)) - {fixed}:
        assert got[i].grad.item() == wanted[i].grad.item()


@pytest.mark.parametrize("written_first", [True, False])
def test_a_write_between_the_ops_leaves_the_sequence_as_it_is(written_first: bool) -> None:
    """An op's saved value changed before the last op ran: its own node tells, a fused one would not."""
    with flnb.use_tape("prefused") as tape:
        written = flnb.exp(flnb.Variable(1.0))
        with flnb.no_grad():
            flnb.assign(written.detach(), 7.0)
        other = flnb.exp(flnb.Variable(2.0))
        y = flnb.log(written + other if written_first else other + written)
    assert tape.fused == 0
    with pytest.raises(RuntimeError, match="exp"):
        y.backward()


def test_a_write_to_a_value_inside_is_an_error_afterwards() -> None:
    other, score, frame, weight = variables()
    with flnb.use_tape("prefused") as tape:
        step = score + (frame + weight)
        y = flnb.logaddexp(other, step)
    assert tape.fused == 1
    with flnb.no_grad():
        flnb.assign(step.detach(), 7.0)
    with pytest.raises(RuntimeError, match="written"):
        y.backward()


def test_a_hook_inside_a_fused_sequence_is_refused_with_the_way_out() -> None:
    x = flnb.Variable(np.ones(3))
    with flnb.use_tape("prefused"):
        a, b = flnb.exp(x), flnb.exp(x * 2.0)
        total = a + b
        y = flnb.log(total)
        assert y._node[PLAN].op.name == "logaddexp"
        for listen in (lambda: total.register_hook(print), a.retain_grad):
            with pytest.raises(RuntimeError, match=r"fused into that of 'logaddexp'.*before the value is used, or"):
                listen()
        seen: list[Any] = []
        y.register_hook(seen.append)
        again = flnb.log(flnb.exp(x) + b)  # what was read inside one sequence may be read by another
        assert again._node[PLAN].op.name == "logaddexp"
    (y + again).sum().backward()
    assert [g.tolist() for g in seen] == [[1.0] * 3]


def test_a_hook_before_the_sequence_is_complete_keeps_its_ops_apart() -> None:
    x = flnb.Variable(np.ones(3))
    with flnb.use_tape("prefused") as tape:
        a = flnb.exp(x)
        a.retain_grad()
        flnb.log(a + flnb.exp(x * 2.0)).sum().backward()
    assert tape.fused == 0
    np.testing.assert_allclose(a.grad.numpy(), 1.0 / (np.e + np.e**2))
