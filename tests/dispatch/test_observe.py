"""Hooks on "an op ran": what observers hear, in which order, through changes of the backend; no cost when off."""

import inspect
import threading

import numpy as np
import pytest

import flnb
from flnb.dispatch import crossing, state
from flnb.dispatch.observe import Observer, call_of, observe
from flnb.dispatch.table import OPS


class Log(Observer):
    def __init__(self, tag="", heard=None):
        self.tag, self.heard = tag, [] if heard is None else heard

    def before(self, op, arguments):
        self.heard.append(f"{self.tag}before {op.name}")

    def after(self, op, arguments, result):
        self.heard.append(f"{self.tag}after {op.name} {result.tolist()}")

    def failed(self, op, arguments, error):
        self.heard.append(f"{self.tag}failed {op.name} {error}")


class Doubling(flnb.backends.NumpyBackend):
    def add(self, a, b, out=None):
        return np.multiply(super().add(a, b), 2, out)


def test_every_op_is_told_before_and_after_and_only_inside():
    x = flnb.ones((2,))
    with observe(log := Log()):
        y = flnb.tanh(x * 0.0)
    flnb.add(y, y)
    assert log.heard == ["before multiply", "after multiply [0.0, 0.0]", "before tanh", "after tanh [0.0, 0.0]"]


def test_a_training_step_is_observed_op_by_op():
    weight = flnb.Variable(np.ones((3, 2), np.float32))
    with flnb.record() as run, observe(log := Log()):
        flnb.relu(flnb.ones((4, 3)) @ weight).sum().backward()
    told = [entry.split()[1] for entry in log.heard if entry.startswith("after")]
    assert len(told) == sum(row.count for row in run.ops.rows)
    assert {"full", "matmul", "maximum", "sum", "broadcast_to", "greater", "permute_dims"} <= set(told)


def test_nested_observers_compose_like_brackets():
    heard = []
    x = flnb.ones(())
    with observe(Log("a ", heard), Log("b ", heard)), observe(Log("c ", heard)):
        flnb.negative(x)
    assert [entry.rsplit(maxsplit=1)[0] for entry in heard if "after" in entry] == [
        "b after negative",
        "a after negative",
        "c after negative",
    ]
    assert [entry for entry in heard if "before" in entry] == [f"{tag} before negative" for tag in "cab"]


def test_an_error_is_told_and_goes_on():
    class Broken(flnb.backends.NumpyBackend):
        def exp(self, x, out=None):
            raise ZeroDivisionError("on purpose")

    with observe(log := Log()), flnb.use_backend(Broken), pytest.raises(ZeroDivisionError, match="on purpose"):
        flnb.exp(flnb.ones(()) + 1.0)
    assert log.heard[-2:] == ["before exp", "failed exp on purpose"]
    assert state.current().interpreters == ()


def test_an_observer_that_raises_stops_the_program_at_that_op():
    class Strict(Observer):
        def after(self, op, arguments, result):
            if not np.isfinite(result).all():
                raise FloatingPointError(f"{op.name} gave {result}")

    x = flnb.asarray([-1.0])
    with observe(Strict()), np.errstate(invalid="ignore"), pytest.raises(FloatingPointError, match="sqrt gave"):
        flnb.sqrt(x)
    assert flnb.negative(x).tolist() == [1.0]


@pytest.mark.parametrize("change", ["use", "set", "redefine"])
def test_a_change_of_the_backend_keeps_the_observation(change):
    before = state.current().backend
    x = flnb.ones(())

    def define(factor):
        class Edited(flnb.backends.NumpyBackend):
            def add(self, a, b, out=None):
                return np.multiply(super().add(a, b), factor, out)

        return Edited

    try:
        with observe(log := Log()):
            if change == "use":
                with flnb.use_backend(Doubling):
                    flnb.add(x, x)
            elif change == "set":
                flnb.set_backend(Doubling)
                flnb.add(x, x)
            else:
                with flnb.use_backend(define(1)):
                    define(2)  # what re-running the cell does
                    flnb.add(x, x)
    finally:
        flnb.set_backend(before)
    assert log.heard == ["before add", "after add 4.0"]


def test_ops_that_an_observer_runs_are_not_observed():
    class Curious(Log):
        def after(self, op, arguments, result):
            super().after(op, arguments, result)
            flnb.add(flnb.ones(()), 1.0)

    with observe(log := Curious()):
        flnb.ones((1,))
    assert log.heard == ["before full", "after full [1.0]"]


def test_other_threads_are_left_alone():
    with observe(log := Log()):
        worker = threading.Thread(target=lambda: flnb.ones((2,)) + 1.0)
        worker.start()
        worker.join()
    assert log.heard == []


def test_the_hot_path_knows_nothing_of_observers():
    assert "observe" not in inspect.getsource(crossing)
    with flnb.use_backend("numpy") as backend:
        with observe(Log()):
            assert state.current().direct is None
        assert state.current().direct is state.current().kind
        assert state.current().table[OPS["add"].index] is backend.add


@pytest.mark.parametrize(
    ("name", "arguments", "count", "attributes", "has_out"),
    [
        ("exp", (np.ones(2),), 1, (), False),
        ("exp", (np.ones(2), np.empty(2)), 1, (), True),
        ("add", (np.ones(2), np.ones(())), 2, (), False),
        ("add", (np.ones(2), np.ones(2), np.empty(2)), 2, (), True),
        ("sum", (np.ones(2), (0,), True, None), 1, ((0,), True), False),
        ("astype", (np.ones(2), np.dtype("float16"), np.empty(2, np.float16)), 1, (np.dtype("float16"),), True),
        ("where", (np.ones(2, bool), np.ones(2), np.ones(2), None), 3, (), False),
        ("reshape", (np.ones(2), (2, 1)), 1, ((2, 1),), False),
        ("full", (np.float64(2.5), np.empty(3)), 0, (np.float64(2.5),), True),
        ("from_numpy", (np.ones(3), np.empty(3)), 1, (), True),
        ("concat", (np.ones(3), np.ones(2), 0, np.empty(5)), 2, (0,), True),
    ],
)
def test_arguments_are_told_apart(name, arguments, count, attributes, has_out):
    call = call_of(OPS[name], arguments)
    assert len(call.inputs) == count
    assert all(a is b for a, b in zip(call.inputs, arguments, strict=False))
    assert call.attributes == attributes
    assert (call.out is not None) == has_out
