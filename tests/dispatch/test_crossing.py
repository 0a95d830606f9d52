"""The crossing for compute: plans are found again, Python scalars among the arguments included."""

from __future__ import annotations

import numpy as np
import pytest

import flnb
from flnb.dispatch import crossing, promotion
from flnb.dispatch.table import OPS


@pytest.mark.parametrize("x", [np.asarray([1.5, -2.0], np.float32), np.asarray([3, -4]), np.asarray(2.0)])
@pytest.mark.parametrize("scalar", [1, 0, 2.5, 0.0, -0.0, -3.0])
@pytest.mark.parametrize("scalar_first", [True, False])
def test_a_scalar_side_of_where_is_what_a_tensor_of_it_is(x: np.ndarray, scalar: float, scalar_first: bool) -> None:
    condition = x > 0
    sides = (scalar, flnb.asarray(x)) if scalar_first else (flnb.asarray(x), scalar)
    for _ in range(2):  # the first call makes the plan, the second finds it
        found = flnb.where(flnb.asarray(condition), *sides)
        assert found.dtype == (flnb.asarray(x) + scalar).dtype
        expected = np.where(condition, *(np.asarray(side) for side in sides)).astype(found.dtype)
        np.testing.assert_array_equal(found.numpy(), expected)
        np.testing.assert_array_equal(np.signbit(found.numpy()), np.signbit(expected))


def test_gradients_flow_around_a_scalar_side() -> None:
    x = flnb.Variable([2.0, -1.0])
    for _ in range(2):
        flnb.where(x > 0.0, x, 0.5).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [2.0, 0.0])
    second = flnb.grad(flnb.grad(lambda v: flnb.where(v > 0.0, v * v, 1.0).sum()))
    assert flnb.grad(lambda v: second(v))(flnb.asarray(3.0)).item() == 0.0
    assert second(flnb.asarray(3.0)).item() == 2.0


def test_a_signature_with_scalars_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = flnb.asarray([1.0, -1.0])
    flnb.where(x > 0.0, x, 0.5), flnb.where(x > 0.0, 2.0, x)
    plans = len(OPS["where"].plans)

    def planned(op, arguments, attributes, here):
        raise AssertionError(f"{op} was planned again for {arguments}")

    monkeypatch.setattr(crossing, "plan_for", planned)
    for scalar in (3.0, 0.0, 7.5):
        flnb.where(x > 0.0, x, scalar), flnb.where(x > 0.0, scalar, x)
    assert len(OPS["where"].plans) == plans
    monkeypatch.undo()
    assert crossing.plan_for is promotion.plan_for


def test_a_scalar_condition_and_scalars_alone_are_converted() -> None:
    x = flnb.asarray([1.0, -1.0])
    assert flnb.where(True, x, 0.5).tolist() == [1.0, -1.0]
    assert flnb.where(x > 0.0, 1.0, 2.0).tolist() == [1.0, 2.0]
    with pytest.raises(TypeError, match=r"the condition must be bool, got int64\[\]"):
        flnb.where(1, x, x)
