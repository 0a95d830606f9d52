"""Several optimizers as one: each its own algorithm, one training step, all states or none."""

import numpy as np
import pytest

import flnb
import flnb.nn as nn
import flnb.optim as optim


def pair():
    one, other = nn.Parameter(flnb.ones(2)), nn.Parameter(flnb.ones(3))
    return one, other, optim.Together(optim.SGD([one], lr=0.5, momentum=0.9), optim.Adam([other], lr=0.1))


def test_each_part_is_trained_by_its_own_and_it_is_one_step():
    one, other, both = pair()
    assert [id(item) for item in both.parameters] == [id(one), id(other)]
    with flnb.record() as run:
        flnb.sum(one).backward()
        flnb.sum(other).backward()
        both.step()
    assert one.data.tolist() == [0.5, 0.5]
    np.testing.assert_allclose(other.data.numpy(), 0.9, rtol=1e-6)
    assert len(run.table("step")["index"]) == 1
    both.zero_grad()
    assert one.grad is None
    assert other.grad is None


def test_a_part_without_gradients_waits():
    one, other, both = pair()
    flnb.sum(one).backward()
    both.step()
    assert [part.steps for part in both.parts()] == [1, 0]
    assert other.data.tolist() == [1.0, 1.0, 1.0]
    both.zero_grad()
    with pytest.raises(RuntimeError, match="no parameter has a gradient"):
        both.step()


def test_the_state_is_that_of_all_or_nothing_is_loaded():
    one, other, both = pair()
    flnb.sum(one).backward()
    flnb.sum(other).backward()
    both.step()
    _, _, fresh = pair()
    fresh.load_state_dict(both.state_dict())
    assert [part.steps for part in fresh.parts()] == [1, 1]
    _, _, fresh = pair()
    state = both.state_dict()
    del state["1"]["state"]["0.mean"]
    state["2"] = state["0"]
    with pytest.raises(ValueError, match="does not fit Together of 2 optimizers") as error:
        fresh.load_state_dict(state)
    assert "unexpected: optimizer 2" in str(error.value)
    assert "optimizer 1: missing: 0.mean" in str(error.value)
    assert [part.steps for part in fresh.parts()] == [0, 0]


def test_errors_say_what_to_do():
    one, _, _ = pair()
    with pytest.raises(ValueError, match="Together got no optimizers"):
        optim.Together()
    with pytest.raises(ValueError, match=r"optimizers 0 and 1 share the parameter of shape \(2,\)"):
        optim.Together(optim.SGD([one], lr=0.1), optim.Adam([one]))
