"""NaN and Inf in gradients: a backward that makes them is measured whether or not it was its turn, and names one op."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flnb_telemetry.live.view import Live

import flnb
from flnb.autograd.statistics import any_bad


def sick(x: Any) -> Any:
    """Its gradient at 0 is infinite, and times 0 NaN."""
    with flnb.scope("sick"):
        return flnb.sqrt(x * 0.0)


def hooked(x: Any) -> Any:
    y = flnb.tanh(x)
    y.register_hook(lambda g: g * float("nan"))
    with flnb.scope("sick"):
        return y * 2.0


@flnb.custom_op
def spoiled(x: Any) -> Any:
    return x * 2.0


spoiled.def_vjp(lambda g, y, x: (g * float("nan"),))


def run_of(steps: int, at: int, program: Any, width: int = 8) -> tuple[Any, Any]:
    """A recording of steps with `program` at one of them, and the gradients' leaves before and after it."""
    w = flnb.Variable(np.ones(width))
    w.name = "w"
    with flnb.record(grad_interval=1e9) as run:
        for i in range(steps):
            with flnb.step():
                x = w
                for k in range(6):
                    with flnb.scope(f"layer{k}"):
                        x = flnb.tanh(x * w)
                    if i == at and k == 2:
                        x = program(x)
                flnb.sum(x * w).backward()
    return run, w


@pytest.mark.parametrize(
    ("program", "op"),
    [
        (sick, "sqrt"),
        (lambda x: flnb.where(flnb.asarray([True] * 8), x, flnb.log(x * 0.0)), "log"),
        (spoiled, "spoiled"),
        (hooked, "tanh"),
    ],
    ids=["sqrt at 0", "log of 0", "custom op", "hook"],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_nan_between_samples_is_found_and_its_op_named(program: Any, op: str) -> None:
    run, w = run_of(20, 12, program)
    assert not np.isfinite(np.asarray(w.grad)).all()
    tape = run.tape
    assert tape.index == 12
    (origin,) = [tape.nodes[row] for row in tape.graph.origins]
    assert origin.op == op
    assert origin.bad == 0  # a good gradient came in
    assert "test_nan.py" in origin.line
    assert tape.nodes[-1].op == "sum"  # the graph from the loss on
    assert f"begins at {op}" in repr(tape)
    assert [leaf.bad > 0 for leaf in tape.leaves] == [True]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_infinite_loss_is_looked_at() -> None:
    w = flnb.Variable(np.ones(4))
    with flnb.record(grad_interval=1e9) as run:
        for i in range(20):
            with flnb.step():
                flnb.sum(flnb.exp(w * (1000.0 if i == 12 else 1.0))).backward()  # inf times 1: no error for NumPy
    assert run.tape.index == 12
    assert [run.tape.nodes[row].op for row in run.tape.graph.origins] == ["exp"]


def test_a_nan_that_nobody_saw_begin_is_told_and_the_next_backward_is_measured() -> None:
    data = np.array([1.0] * 7 + [float("nan")])

    def masked(x: Any) -> Any:
        return flnb.where(flnb.asarray(np.isnan(data)), 0.0, x * data)  # finite, but 0 * NaN in its gradient

    run, w = run_of(20, 12, masked)
    assert np.isnan(np.asarray(w.grad)).any()
    assert run.tape.index == 12
    assert not len(run.tape.graph.origins)
    assert "where it begins was not measured" in repr(run.tape)
    assert run.tape.step(13).nodes[0].norm is not None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_floating_point_errors_that_spoil_no_gradient_cost_no_samples() -> None:
    w = flnb.Variable(np.full(4, 1e30, np.float32))
    with flnb.record(grad_interval=1e9) as run:
        for _ in range(5):
            with flnb.step():
                y = flnb.clip(w * 1e30, 0.0, 1.0)  # the product overflows, the gradient of the clip is 0
                flnb.sum(y * y * 1e-30).backward()
    assert np.isfinite(np.asarray(w.grad)).all()
    assert run.tape.index == 0
    assert len(run.table("walk")["t"]) == 1


def test_who_asks_numpy_for_exceptions_gets_them_in_a_recorded_backward() -> None:
    x = flnb.Variable(np.zeros(3))
    with flnb.record(), np.errstate(all="raise"):
        y = flnb.sum(flnb.sqrt(x))
        with pytest.raises(FloatingPointError, match="divide"):
            y.backward()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_dashboard_keeps_the_tape_with_the_nan_and_goes_on_with_the_norms() -> None:
    w = flnb.Variable(np.ones(4))
    live = Live("run", 0.0)
    live.begin()
    told = []
    for i in range(20):
        with flnb.step():
            x = flnb.tanh(w * w)
            flnb.sum(sick(x) if i == 12 else x).backward()
        flnb.telemetry.flush()
        told.append(live.frame(keyframe=False)[0])
    tapes = [content["tape"]["step"] for content in told if "tape" in content]
    norms = [content["norms"]["step"] for content in told if "norms" in content]
    assert tapes == list(range(13))
    assert norms == list(range(13, 20))
    assert all(content["norms"]["gradient_bad"] == 0 and content["norms"]["gradient"] > 0 for content in told[13:])
    live.answer({"type": "tape", "newest": True})
    assert live.frame(keyframe=False)[0]["tape"]["step"] == 19
    live.finish()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_a_buffer_with_nan_or_inf_is_told_from_one_whose_squares_overflow(dtype: Any) -> None:
    large = np.full((2, 3), np.finfo(dtype).max, dtype)
    assert not any_bad([large, large[:1, :1].reshape(()), np.ones((0, 3), dtype)])
    for value in (np.nan, np.inf, -np.inf):
        spoiled_at = large.copy()
        spoiled_at[1, 2] = value
        assert any_bad([large, spoiled_at])
        assert any_bad([np.array(value, dtype)])
        many = [np.ones((3, 2), dtype)[:, ::-1].T for _ in range(30)]  # so many are joined, with large ones apart
        many += [np.ones(1 << 14, dtype), np.ones((), dtype), np.ones(3, np.float32)]
        assert not any_bad(many)
        for at in (0, 17, 30, 31, 32):
            assert any_bad([np.full_like(each, value) if i == at else each for i, each in enumerate(many)])
    assert any_bad([np.array([1, complex(0, np.inf)], np.complex64)])
    assert not any_bad([np.array([1, 2]), np.array([True, False])])
