"""Ops that fail: the error knows op, shapes and line, and a recording keeps the graph up to there."""

import traceback

import numpy as np
import pytest
from flnb_telemetry import intern

import flnb
from flnb import nn


def note_of(caught):
    return "\n".join(caught.value.__notes__)


def shown(caught):
    return "".join(traceback.format_exception(caught.value))


def test_a_wrong_call_names_op_shapes_and_line():
    x, w = flnb.Variable(np.ones((2, 3))), flnb.Variable(np.ones(4))
    with pytest.raises(ValueError, match="do not broadcast") as caught:
        x + w  # the line
    assert note_of(caught).startswith("in 'add' of float64[2,3] and float64[4], called at ")
    assert note_of(caught).endswith("x + w  # the line")
    assert "During handling" not in shown(caught)  # that no plan was found is nobody's business


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
    assert "During handling" not in shown(caught)


def test_an_error_that_a_backend_handled_before_it_failed_is_shown():
    class Broken(flnb.backends.NumpyBackend):
        def tanh(self, *arguments):
            try:
                {}["mine"]
            except KeyError:
                raise FloatingPointError("broken")  # noqa: B904

    with flnb.use_backend(Broken), pytest.raises(FloatingPointError, match="broken") as caught:
        flnb.tanh(flnb.ones((5, 7)))
    assert shown(caught).count("During handling") == 1
    assert "KeyError: 'mine'" in shown(caught)


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


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("reshape", lambda x: flnb.reshape(x, (4, 2))),
        ("reshape", lambda x: x.reshape(4, 2)),
        ("reshape", lambda x: flnb.reshape(x.mT, (6,), copy=False)),
        ("sum", lambda x: x.sum(axis=9)),
        ("sum", lambda x: flnb.sum(x, axis=9)),
        ("softmax", lambda x: flnb.softmax(x, axis=4)),
        ("getitem", lambda x: x[7]),
        ("getitem", lambda x: x[0, 1, 2]),
        ("getitem", lambda x: x[:, [0, 9]]),
        ("setitem", lambda x: x.detach().__setitem__((5, 0), 1.0)),
        ("take", lambda x: flnb.take(x, [0, 8], axis=1)),
        ("take", lambda x: x.take([0])),
        ("permute_dims", lambda x: flnb.permute_dims(x, (0, 0))),
        ("broadcast_to", lambda x: flnb.broadcast_to(x, (4, 4))),
        ("expand_dims", lambda x: flnb.expand_dims(x, axis=5)),
        ("squeeze", lambda x: flnb.squeeze(x, axis=1)),
        ("pad", lambda x: flnb.pad(x, ((1, 1),))),
        ("matmul", lambda x: x @ 2.0),
        ("argmax", lambda x: flnb.argmax(x, axis=3)),
        ("inv", lambda x: flnb.linalg.inv(x)),
        ("fft", lambda x: flnb.fft.fft(x, axis=4)),
    ],
)
def test_arguments_that_are_wrong_before_any_op_runs_are_told(name, call):
    with flnb.record() as run, pytest.raises((ValueError, IndexError, TypeError)) as caught:
        call(flnb.tanh(flnb.Variable(np.ones((2, 3), np.float32))))
    (note,) = caught.value.__notes__
    assert note.startswith((f"in {name!r} of float32[2,3]", f"in {name!r} of float32[3,2]"))
    assert "test_failure.py:" in note
    failed = run.table("op_failed")
    assert [intern.plans.items[i].op for i in failed["plan"].tolist()] == [name]
    assert run.tape.failure.op == name
    assert "tanh" in [node.op for node in run.tape.nodes]


def test_many_tensors_that_do_not_fit_are_told_in_short():
    parts = [flnb.ones((2, 3))] * 40 + [flnb.ones((2, 4))]
    with pytest.raises(ValueError, match="concat: shapes must agree") as caught:
        flnb.concat(parts)
    assert note_of(caught).count("float32[2,3]") == 8
    assert " and 33 more, called at " in note_of(caught)


def test_what_cannot_be_written_down_is_no_failure():
    x = flnb.Variable(np.ones((2, 3), np.float32))
    with flnb.record(grad_interval=None) as run:
        for _ in range(3):
            ((x * 2.0).max(axis=1) ** 2.0).sum().backward()
    assert len(run.table("op_failed")["t"]) == 0


def test_the_leaves_of_a_forward_that_failed_have_their_names():
    class Net(nn.Module):
        def __init__(self):
            self.first, self.second = nn.Linear(3, 4, bias=False), nn.Linear(5, 2, bias=False)

        def forward(self, x):
            return self.second(flnb.tanh(self.first(x)))

    net = Net()
    x = flnb.Variable(np.ones((2, 3), np.float32))
    x.name = "x"
    with flnb.record() as run, pytest.raises(ValueError, match="expects 5"):
        net(x)
    leaves = {leaf.name: (leaf.shape, leaf.parameter) for leaf in run.tape.leaves}
    assert leaves == {"x": ((2, 3), False), "first.weight": ((4, 3), True), "second.weight": ((2, 5), True)}
