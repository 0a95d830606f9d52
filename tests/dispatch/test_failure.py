"""Ops that fail: the error knows op, shapes and line, and a recording keeps the graph up to there."""

import numpy as np
import pytest
from flnb_telemetry import intern

import flnb


def note_of(caught):
    return "\n".join(caught.value.__notes__)


def test_a_wrong_call_names_op_shapes_and_line():
    x, w = flnb.Variable(np.ones((2, 3))), flnb.Variable(np.ones(4))
    with pytest.raises(ValueError, match="do not broadcast") as caught:
        x + w  # the line
    assert note_of(caught).startswith("in 'add' of float64[2,3] and float64[4], called at ")
    assert note_of(caught).endswith("x + w  # the line")
    assert caught.value.__suppress_context__  # that no plan was found is nobody's business


@pytest.mark.parametrize("call", [lambda x: flnb.tanh(x), lambda x: x * x, lambda x: x.sum(), lambda x: x @ x])
def test_a_backend_that_raises_is_told_apart_from_the_program(call):
    class Broken(flnb.backends.NumpyBackend):
        def fail(self, *arguments):
            raise FloatingPointError("broken")

        tanh = multiply = sum = matmul = fail

    x = flnb.Variable(np.ones((2, 2)))
    with flnb.use_backend(Broken), pytest.raises(FloatingPointError, match="broken") as caught:
        call(x)
    assert "of float64[2,2]" in note_of(caught)
    assert "test_failure.py:" in note_of(caught)


def test_a_recording_keeps_the_graph_and_the_failed_op():
    x = flnb.Variable(np.ones((2, 3), np.float32))
    with flnb.record() as run, pytest.raises(ValueError, match="matmul"):
        y = flnb.tanh(x * 2.0)
        y @ flnb.Variable(np.ones((4, 5), np.float32))
    failed = run.table("op_failed")
    (plan,) = (intern.plans.items[i] for i in failed["plan"].tolist())
    assert (plan.op, plan.inputs) == ("matmul", ((2, 3), (4, 5)))
    message = intern.strings.items[int(failed["message"][0])]
    assert "ValueError: matmul" in message
    assert "test_failure.py:" in message
    made = {intern.plans.items[p].op for p in run.table("op")["plan"].tolist()}
    assert {"multiply", "tanh"} <= made
    last = run.table("op")["node"].max()
    assert int(failed["parent0"][0]) == last
    assert int(failed["parent1"][0]) < 0  # a leaf


def refusing():
    @flnb.custom_op
    def refuses(x, y):
        raise ValueError("refused")

    return refuses


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("linear", lambda x, y: flnb.linear(x, y)),
        ("cross_entropy", lambda x, y: flnb.cross_entropy(x, y)),
        ("nll_loss", lambda x, y: flnb.nll_loss(x, targets=y)),
        ("batch_norm", lambda x, y: flnb.batch_norm(x, y, y)),
        ("scaled_dot_product_attention", lambda x, y: flnb.scaled_dot_product_attention(x, y, y)),
        ("refuses", lambda x, y: refusing()(x, y)),
    ],
)
def test_a_function_of_several_ops_that_refuses_its_tensors_is_told(name, call):
    x, y = flnb.Variable(np.ones((2, 3), np.float32)), flnb.Variable(np.ones((1, 1, 5), np.float32))
    with flnb.record() as run, pytest.raises((ValueError, TypeError)) as caught:
        call(flnb.tanh(x), y)
    (note,) = caught.value.__notes__
    assert note.startswith(f"in {name!r} of float32[2,3] and float32[1,1,5]")
    assert "test_failure.py:" in note
    failed = run.table("op_failed")
    assert [intern.plans.items[i].op for i in failed["plan"].tolist()] == [name]
    assert int(failed["parent0"][0]) == run.table("op")["node"].max()
