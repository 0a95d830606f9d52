"""Fused nodes: what they keep, when they are not made, and that their gradients are those of their ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flnb
from flnb.autograd.tape import grad_of
from flnb.autograd.teaching.prefused import Prefused, register_sequence
from flnb.interface.tape import PARENTS, PLAN, SAVED
from flnb.speech import beam_search  # noqa: F401  # registers its sequences
from tests.autograd.test_tapes import leaves


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


def test_a_shipped_sequence_becomes_one_node():
    x, w = leaves((), ())
    with flnb.use_tape("prefused") as tape:
        y = flnb.log(flnb.exp(x) + flnb.exp(w))
        assert sorted(reachable(y._node)) == ["logaddexp"]
        z = flnb.log(flnb.exp(x * flnb.ones((3,), dtype="float64")).sum())
        assert sorted(reachable(z._node)) == ["logsumexp", "multiply"]
    assert tape.fused == 2


def test_what_lies_inside_a_sequence_and_is_used_elsewhere_keeps_its_own_gradient():
    def function(x, w):
        a = flnb.exp(x)
        return flnb.log(a + flnb.exp(w)) + a * w

    wanted, got = leaves((3,), (3,)), leaves((3,), (3,))
    function(*wanted).sum().backward()
    with flnb.use_tape("prefused"):
        function(*got).sum().backward()
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_allclose(b.grad.numpy(), a.grad.numpy())


def test_a_value_that_somebody_listens_to_is_not_fused_away():
    x, w = leaves((), ())
    with flnb.use_tape("prefused") as tape:
        a = flnb.exp(x)
        a.register_hook(lambda g: g * 10.0)
        y = flnb.log(a + flnb.exp(w))
    y.backward()
    share = np.exp(x.item()) / (np.exp(x.item()) + np.exp(w.item()))
    assert tape.fused == 0
    np.testing.assert_allclose([x.grad.item(), w.grad.item()], [10.0 * share, 1.0 - share])


def test_a_sequence_of_which_a_part_is_packed_is_not_fused():
    x, w = leaves((), ())
    with flnb.use_tape("prefused"):
        with flnb.saved_tensors_hooks(lambda t: t.numpy().copy(), flnb.asarray):
            total = flnb.exp(x) + flnb.exp(w)
        flnb.log(total).backward()
    np.testing.assert_allclose(x.grad.item() + w.grad.item(), 1.0)


def test_broadcasting_and_constants_are_not_fused():
    x, w = leaves((3,), ())
    with flnb.use_tape("prefused") as tape:
        flnb.log(flnb.exp(x) + flnb.exp(w)).sum().backward()
        flnb.log(flnb.exp(x) + flnb.ones((3,), dtype="float64"))
    assert tape.fused == 0


def test_a_user_registers_a_sequence():
    def pull(g, multiply, add):
        shared = g * multiply.saved[1]
        return shared, shared, g * multiply.saved[0]

    register_sequence("test_scaled_sum", ("multiply", "add"), pull)
    try:
        x, w, v = leaves((3,), (3,), (3,))
        with flnb.use_tape(Prefused) as tape:
            y = (x + w) * v
        assert tape.fused == 1
        assert y._node[PLAN].op.name == "test_scaled_sum"
        y.backward(flnb.ones((3,), dtype="float64"))
        np.testing.assert_allclose(x.grad.numpy(), v.numpy() if not v.requires_grad else v.detach().numpy())
        np.testing.assert_allclose(v.grad.numpy(), (x + w).detach().numpy())
    finally:
        from flnb.autograd.teaching import prefused

        prefused._by_last["multiply"].clear()
    with pytest.raises(ValueError, match=r"no op is named 'add_up' \(in 'add_up'\)"):
        register_sequence("wrong", ("log", "add_up"), pull)


def test_a_fused_gradient_says_what_it_cannot_give():
    x, w = leaves((3,), (3,))
    with flnb.use_tape("prefused"):
        a = flnb.exp(x)
        y = flnb.log(a + flnb.exp(w)).sum()
        with pytest.raises(RuntimeError, match=r"'logaddexp' cannot be differentiated again; .*use_tape\('linked'\)"):
            grad_of(y, [x], create_graph=True)
        with pytest.raises(RuntimeError, match=r"value inside 'logaddexp' was fused away; (.|\n)*test_prefused.py:\d+"):
            grad_of(y, [a], retain_graph=True)


def test_a_write_between_the_ops_of_a_sequence_is_not_fused_away():
    x, w = leaves((3,), (3,))
    with flnb.use_tape("prefused") as tape:
        a = flnb.exp(x)
        b = flnb.exp(w)
        total = a + b
        with flnb.no_grad():
            a += 1.0
        y = flnb.log(total).sum()
    assert tape.fused == 0
    with pytest.raises(RuntimeError, match=r"the output of 'exp'.*written in place"):
        y.backward()


def test_complex_sequences_are_not_fused():
    z = np.array([1 + 2j, 0.5 - 1j])
    expected = flnb.grad(lambda x: flnb.real(flnb.log(flnb.exp(x) + flnb.exp(x * 0.5))).sum())(z)
    with flnb.use_tape("prefused"):
        found = flnb.grad(lambda x: flnb.real(flnb.log(flnb.exp(x) + flnb.exp(x * 0.5))).sum())(z)
    np.testing.assert_allclose(found.numpy(), expected.numpy())
