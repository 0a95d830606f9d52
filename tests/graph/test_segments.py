"""Backward passes and steps that are repeated as segments give what ops give that run at once, and notice changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flnb
from flnb import nn, optim
from flnb.autograd.walk import Walk
from flnb.backends import DeferredBackend
from flnb.graph.segments import Segment
from tests.graph.test_repetition import Steps

BINARY, UNARY = ("add", "subtract", "multiply", "maximum", "matmul"), ("exp", "tanh", "negative", "sin", "relu")


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The backward passes that were walked."""
    made: list[Any] = []
    before = Walk.__init__

    def init(self: Walk, *arguments: Any) -> None:
        made.append(arguments[0])
        before(self, *arguments)

    monkeypatch.setattr(Walk, "__init__", init)
    return made


def exact() -> DeferredBackend:
    return DeferredBackend("numpy", fuse=False)


def trained(backend: Any, name: str, optimizer: Any, count: int = 7) -> dict[str, Any]:
    with flnb.use_backend(backend):
        step = Steps(name, optimizer)
        for i in range(count):
            step.optimizer.lr = 0.01 if i < 5 else 0.003
            step()
        return step.values() | {f"grad {i}": np.asarray(x.grad) for i, x in enumerate(step.model.parameters())}


@pytest.mark.parametrize("name", ["lenet", "resnet18", "bert"])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.01),
        lambda p: optim.NAG(p, lr=0.01, weight_decay=0.01),
        lambda p: optim.AdamW(p, lr=0.01),
        lambda p: optim.RMSProp(p, lr=0.01),
    ],
)
def test_repeated_steps_are_steps_to_the_bit(name: str, optimizer: Any, walks: list[Any]) -> None:
    expected = trained("numpy", name, optimizer)
    walks.clear()
    got = trained(exact(), name, optimizer)
    assert len(walks) == 2
    for key, value in expected.items():
        np.testing.assert_array_equal(got[key], value, err_msg=key)


def computed(program: Any, data: Any) -> list[Any]:
    """Gradients of what a list of ops computes from three leaves."""
    leaves = [flnb.Variable(flnb.asarray(x)) for x in data]
    found: list[Any] = list(leaves)
    for name, i, j in program:
        x, y = found[i % len(found)], found[j % len(found)]
        found.append(getattr(flnb, name)(x, y) if name in BINARY else getattr(flnb, name)(x))
    flnb.sum(flnb.tanh(found[-1]) + found[len(found) // 2].T).backward()
    return [None if x.grad is None else x.grad.numpy().copy() for x in leaves]


ops = st.tuples(st.sampled_from(BINARY + UNARY), st.integers(0, 9), st.integers(0, 9))
programs = st.lists(ops, min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(st.lists(programs, min_size=1, max_size=2), st.integers(0, 2**31))
def test_gradients_of_alternating_programs(made: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    backend = exact()
    for i in range(5 * len(made)):
        data = [random.uniform(-1, 1, (3, 3)).astype(np.float32) for _ in range(3)]
        with flnb.use_backend("numpy"), np.errstate(all="ignore"):
            expected = computed(made[i % len(made)], data)
        with flnb.use_backend(backend), np.errstate(all="ignore"):
            got = computed(made[i % len(made)], data)
        for a, b in zip(expected, got, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_array_equal(b, a)


class Small:
    """A small model with a loss, trained on the backend that is active."""

    def __init__(self) -> None:
        flnb.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm(5), nn.Tanh(), nn.Linear(5, 2))
        self.optimizer = optim.Adam(self.model.parameters(), lr=0.1)
        self.x = flnb.asarray(np.arange(12, dtype=np.float32).reshape(3, 4) / 12)

    def loss(self) -> Any:
        return (self.model(self.x) ** 2).sum()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def gradients(self) -> list[Any]:
        return [np.asarray(x.grad) for x in self.model.parameters()]


@pytest.fixture
def small() -> Any:
    with flnb.use_backend(exact()):
        made = Small()
        for _ in range(5):
            made.step()
        yield made


def test_hooks_are_called_once_they_are_there(small: Small, walks: list[Any]) -> None:
    small.step()
    assert not walks
    heard: list[Any] = []
    first = next(iter(small.model.parameters()))
    handle = first.register_hook(lambda g: heard.append(g.shape))
    small.step()
    assert heard == [first.shape]
    handle.remove()
    loss = small.loss()
    hidden = loss * 2.0
    hidden.register_hook(lambda g: heard.append(g.item()))
    (hidden * 3.0).backward()
    assert heard == [first.shape, 3.0]
    assert len(walks) == 2


def test_gradients_add_up_over_repeated_passes(small: Small, walks: list[Any]) -> None:
    small.model.eval()
    for _ in range(3):
        small.optimizer.zero_grad()
        small.loss().backward()
    one = small.gradients()
    walks.clear()
    small.loss().backward()
    assert not walks
    for a, b in zip(one, small.gradients(), strict=True):
        np.testing.assert_array_equal(a + a, b)


def test_a_written_value_and_a_second_pass_are_errors_as_ever(small: Small, walks: list[Any]) -> None:
    weight = next(iter(small.model.parameters()))
    for i in range(5):
        x = flnb.exp(weight)
        loss = (x * x).sum()
        if i == 4:
            with flnb.no_grad():
                flnb.multiply(x.data, 2.0, out=x.data)
            with pytest.raises(RuntimeError, match="was saved for the gradient and then written in place"):
                loss.backward()
        else:
            loss.backward()
            with pytest.raises(RuntimeError, match="freed"):
                loss.backward()


def test_a_recorded_segment_is_computed_op_by_op_if_an_op_fails_and_can_be_listed(
    small: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    small.optimizer.zero_grad()
    small.loss().backward()
    gradient: Any = next(iter(small.model.parameters())).grad
    assert type(gradient._data.read().inputs[0].op) is Segment
    flnb.graph.dprint(gradient)
    assert "matmul" in capsys.readouterr().out
    with flnb.use_backend("numpy"):
        other = Small()
        for _ in range(5):
            other.step()
        other.optimizer.zero_grad()
        other.loss().backward()
        expected = other.gradients()
    for a, b in zip(expected, small.gradients(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_recording_sees_backward_passes_walked(small: Small, walks: list[Any]) -> None:
    with flnb.record() as run:
        small.step()
    assert len(walks) == 1
    recorded = run.table("record")
    phases = {run.catalog.contexts.items[number].phase for number in recorded["context"].tolist()}
    assert len(phases) >= 3


def test_other_settings_are_not_those_of_the_steps_before() -> None:
    found = []
    for backend in ("numpy", exact()):
        with flnb.use_backend(backend):
            small = Small()
            for i in range(12):
                small.optimizer.beta1 = 0.9 if i < 6 else 0.5
                if i == 9:
                    next(iter(small.model.parameters())).grad = None
                small.optimizer.zero_grad()
                small.loss().backward()
                if i == 8:
                    next(iter(small.model.parameters())).grad = None
                small.optimizer.step()
            found.append([x.data.numpy() for x in small.model.parameters()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
