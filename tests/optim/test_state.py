"""Optimizers' states: a run that was saved goes on as if it had not stopped; what does not fit is listed."""

import numpy as np
import pytest

import flnb
import flnb.nn as nn
import flnb.optim as optim

KINDS = [
    (optim.SGD, {"lr": 0.1, "momentum": 0.9}), (optim.NAG, {"lr": 0.1}), (optim.Adam, {}), (optim.AdamW, {}),
    (optim.AMSgrad, {}), (optim.RMSProp, {"momentum": 0.5, "centered": True}), (optim.Adadelta, {}),
    (optim.Adagrad, {"lr_decay": 0.1}), (optim.Novograd, {}),
]  # fmt: skip
SHAPES = [(3, 2), (3,)]


def begun(kind, settings, steps):
    parameters = [nn.Parameter(flnb.ones(shape)) for shape in SHAPES]
    optimizer = kind(parameters, **settings)
    go_on(optimizer, steps)
    return optimizer


def go_on(optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        for parameter in optimizer.parameters:
            flnb.sum(parameter * parameter * parameter).backward()
        optimizer.step()


@pytest.mark.parametrize(("kind", "settings"), KINDS, ids=lambda x: getattr(x, "__name__", ""))
@pytest.mark.parametrize("used", [0, 2])
def test_a_loaded_state_goes_on_to_the_same_bits(kind, settings, used):
    first = begun(kind, settings, 3)
    first.lr *= 0.5
    state, values = first.state_dict(), [parameter.data.numpy().copy() for parameter in first.parameters]
    go_on(first, 4)  # does not change what was saved
    second = begun(kind, settings, used)
    for parameter, value in zip(second.parameters, values, strict=True):
        flnb.assign(parameter.data, flnb.asarray(value))
    second.load_state_dict(state)
    go_on(second, 4)
    assert second.steps == 7
    assert second.lr == first.lr
    for one, other in zip(first.parameters, second.parameters, strict=True):
        np.testing.assert_array_equal(one.data.numpy(), other.data.numpy())


def test_the_state_before_the_first_step_can_be_loaded_into_one_that_has_stepped():
    optimizer = begun(optim.Adam, {}, 2)
    optimizer.load_state_dict(begun(optim.Adam, {}, 0).state_dict())
    assert optimizer.steps == 0
    assert all(not item.numpy().any() for item in optimizer.state_dict()["state"].values())


def test_what_does_not_fit_is_listed_and_nothing_loaded():
    target = begun(optim.Adam, {}, 2)
    before = target.state_dict()
    small = [nn.Parameter(flnb.ones((3, 4)))]
    other = optim.Adam(small)
    go_on(other, 1)
    state = other.state_dict()
    state["settings"]["speed"] = 1.0
    state["state"]["7.mean"] = state["state"]["0.mean"]
    with pytest.raises(ValueError, match="does not fit Adam of 2 parameters; nothing was loaded") as error:
        target.load_state_dict(state)
    for line in (
        "parameters: got 1, expected 2",
        "mis-shaped: 0.mean: got (3, 4) float32, expected (3, 2) float32",
        "missing: 1.square",
        "unexpected: 7.mean",
        "unexpected: speed",
    ):
        assert line in str(error.value)
    assert target.steps == 2
    for name, item in before["state"].items():
        np.testing.assert_array_equal(item.numpy(), target.state_dict()["state"][name].numpy())
    with pytest.raises(ValueError, match="kind: got AdamW, expected Adam"):
        target.load_state_dict(begun(optim.AdamW, {}, 1).state_dict())
    with pytest.raises(ValueError, match="missing: kind"):
        target.load_state_dict({})
