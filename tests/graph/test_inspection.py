"""What can be asked about a captured function: its recorded values, what rewriting did, the text of its kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flnb
from flnb import graph, models, optim
from flnb.graph import describing
from flnb.graph.rewriting import RULES

X = np.linspace(0.1, 1.0, 6, dtype=np.float32).reshape(2, 3)


def captured(function: Any, *arrays: Any, fuse: bool = True) -> Any:
    """A captured function; the first call computes, the second records."""
    f = flnb.jit(function, fuse=fuse)
    for _ in range(2):
        f(*map(flnb.asarray, arrays))
    return f


def model_step(name: str) -> Any:
    flnb.manual_seed(0)
    recipe = models.get(name)
    model = recipe.build("small")
    batch = [flnb.asarray(a) for a in recipe.batch("small", size=2)]
    optimizer = optim.Adam(model.parameters(), lr=0.1)

    def step() -> Any:
        optimizer.zero_grad()
        loss = recipe.loss(model, *batch)
        loss.backward()
        optimizer.step()
        return loss

    f = flnb.jit(step)
    for _ in range(2):
        f()
    return f


def test_the_recorded_values_are_listed_as_they_were_called() -> None:
    f = captured(lambda x: flnb.sum(flnb.exp(x) + 1.0, axis=0), X)
    assert graph.trace(f).splitlines() == [
        "%1 = float32[2,3], computed",
        "%2 = exp(%1)  # float32[2,3]",
        "%3 = 1.0",
        "%4 = add(%2, %3)  # float32[2,3]",
        "%5 = sum(%4, (0,), False)  # float32[3]",
    ]


def test_the_history_says_which_rule_replaced_what() -> None:
    def f(x: Any) -> Any:
        a, b = flnb.exp(x), flnb.exp(x)
        c = flnb.astype(a, flnb.float32, copy=True)
        return flnb.broadcast_to(a + b, (2, 3)) * c

    (sweep,) = graph.history(captured(f, X))
    assert [value.op.name for value in sweep.after] == ["exp", "add", "multiply"]
    by_rule = {change.rule: change for change in sweep.changes}
    assert set(by_rule) <= {"equal", "unused", *RULES}
    equal = by_rule["equal"]
    assert equal.value.op.name == "exp"
    assert equal.by in sweep.before
    assert {"astype", "copy"} & set(by_rule)
    for change in sweep.changes:
        if change.rule in RULES:
            assert change.where.startswith("rewriting.py:")
            assert change.reason[0].islower()
    assert str(sweep).splitlines()[0] == f"{len(sweep.before)} values, 3 after the sweep"
    assert "equal to an earlier value: %2" in str(sweep)


def test_a_product_that_is_not_needed_any_more_is_unused() -> None:
    f = captured(lambda a, b: flnb.asarray(flnb.permute_dims(a @ b, (1, 0)), copy=True), X, X.T.copy())
    (sweep,) = graph.history(f)
    rules = {change.value.op.name: change.rule for change in sweep.changes}
    if f.programs[0].kernels is not None:
        assert rules["matmul"] == "unused"
        assert rules["copy"] == "copy"


@pytest.mark.parametrize("name", ["lenet", "mlp"])
def test_the_sweep_of_a_step_is_that_of_its_program(name: str) -> None:
    """Every value of the program is one after the sweep, or a copy made for an output, and the other way round."""
    program = model_step(name).programs[0]
    (sweep,) = graph.history(program)
    after = sorted(value.op.name for value in sweep.after if value.op.writes_out or value.op.body)
    members = sorted(x.op.name for each in describing.launches(program) for x in each.members)
    extra = list(members)
    for op in after:
        extra.remove(op)
    assert set(extra) <= {"copy"}
    assert len(sweep.changes) >= len(sweep.before) - len(sweep.after)


def test_the_times_of_launches_are_those_that_telemetry_has() -> None:
    f = model_step("lenet")
    program = f.programs[0]
    found = describing.launches(program)
    with flnb.record() as run:
        f()
    measured = describing.times(program, run)
    kernels, ops = run.table("kernel"), run.table("op")
    alone = (ops["t1"] - ops["t0"])[ops["estimated"] == 0]
    assert measured.shape == (1, len(found))
    assert measured.sum() == alone.sum() + (kernels["t1"] - kernels["t0"]).sum()
    assert sum(each.kind == "kernel" for each in found) == len(kernels["t0"])
    with flnb.record() as others_between:
        f()
        flnb.exp(flnb.ones(3))
        f()
    assert describing.times(program, others_between).shape == (2, len(found))
    program.release()
    assert [each.event for each in describing.launches(program)] == [each.event for each in found]
    with flnb.record() as other:
        flnb.exp(flnb.ones(3))
    assert describing.times(program, other).shape == (0, len(found))
    for each in found:
        assert not each.shares or sum(each.shares) == pytest.approx(1)


def test_where_values_are_stored_never_overlaps() -> None:
    """Two values that are in the block at the same time have no byte in common, except in place of one another."""
    program = model_step("lenet").programs[0]
    held = [x for each in describing.launches(program) for x in each.stored if x.offset is not None]
    assert max(x.offset + x.value.spec.nbytes for x in held) <= program.memory.size
    for i, a in enumerate(held):
        for b in held[:i]:
            together = a.first < b.last and b.first < a.last  # the one may be written where the other is read last
            apart = a.offset >= b.offset + b.value.spec.nbytes or b.offset >= a.offset + a.value.spec.nbytes
            assert apart or not together


def test_the_text_of_kernels_is_what_is_compiled() -> None:
    f = captured(lambda x: flnb.sum(flnb.exp(x) * 0.5, axis=1), X)
    if f.programs[0].kernels is None:
        assert graph.source(f) == {}
        return
    ((name, text),) = graph.source(f).items()
    assert name == "#0 exp+multiply+sum"
    assert "define void @kernel" in text
    from flnb_backends.native.llvm import compiler

    assert compiler().compiled(text)
    loops = graph.source(f, "loops")[name].splitlines()
    assert loops == [
        "over 2:",
        "  over 3:",
        "    %0 = float32 a0[3, 1]",
        "    %1 = exp(%0)",
        "    %2 = 0.5",
        "    %3 = multiply(%1, %2)",
        "    %4 = sum(%3) over inner",
        "    float32 a1[1, 0] = %4",
    ]
    assert graph.source(captured(flnb.exp, X, fuse=False)) == {}


@pytest.mark.parametrize("ask", [graph.history, graph.source, graph.trace])
def test_what_was_not_captured_is_an_error(ask: Any) -> None:
    f = flnb.jit(lambda x: x * 2.0)
    with pytest.raises(ValueError, match=rf"flnb.graph.{ask.__name__}: nothing of <lambda> was captured yet: call it"):
        ask(f)
    wanted = rf"flnb.graph.{ask.__name__}: expected a function wrapped by flnb.jit .* got int"
    with pytest.raises(TypeError, match=wanted):
        ask(3)


def test_a_form_of_source_is_one_of_two() -> None:
    f = captured(lambda x: x * 2.0, X)
    with pytest.raises(ValueError, match=r"got form='c'; expected 'llvm' or 'loops'"):
        graph.source(f, "c")
