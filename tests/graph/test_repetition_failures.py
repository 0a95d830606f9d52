"""Errors and Ctrl-C in programs of repeated traces leave what can be computed, and no program that is half made."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import nn, optim
from flnb.backends import DeferredBackend, NumpyBackend
from flnb.graph import repetition
from flnb.graph.program import Program
from tests.graph.failing import Failing
from tests.graph.test_repetition import X, loop


def test_values_stay_computable_after_ctrl_c_in_a_program() -> None:
    over = Failing()
    flnb.manual_seed(0)
    other = nn.Linear(4, 4)
    reference = optim.SGD(other.parameters(), lr=0.1)
    with flnb.use_backend(DeferredBackend(over)):
        flnb.manual_seed(0)
        layer = nn.Linear(4, 4)
        optimizer = optim.SGD(layer.parameters(), lr=0.1)

        def step(layer: Any, optimizer: Any) -> None:
            optimizer.zero_grad()
            (flnb.tanh(layer(flnb.asarray(X))) ** 2).sum().backward()
            optimizer.step()

        for i in range(6):
            if i in (3, 4):
                over.error = KeyboardInterrupt()
                with pytest.raises(KeyboardInterrupt):
                    step(layer, optimizer)
                over.error = None
                flnb.sync()
            else:
                step(layer, optimizer)
            with flnb.use_backend(NumpyBackend()):
                step(other, reference)
                expected = other.weight.data.numpy()
            np.testing.assert_allclose(layer.weight.data.numpy(), expected, rtol=1e-5)


def test_an_error_in_a_program_names_the_op_and_the_rest_can_be_computed() -> None:
    over = Failing()
    with flnb.use_backend(DeferredBackend(over)):
        for i in range(6):
            over.error = ValueError("no tanh today") if i == 4 else None
            x = flnb.exp(flnb.asarray(X + i)) + 1.0
            y = flnb.tanh(x) * 2.0 + x
            if over.error:
                with pytest.raises(ValueError, match="no tanh today") as caught:
                    y.numpy()
                assert any("recorded earlier" in note for note in caught.value.__notes__)
                np.testing.assert_allclose(x.numpy(), np.exp(X + i) + 1, rtol=1e-6)
                over.error = None
            np.testing.assert_allclose(y.numpy(), np.tanh(x.numpy()) * 2 + x.numpy(), rtol=1e-6)


def test_a_program_that_fails_where_its_ops_do_not_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with flnb.use_backend(DeferredBackend("numpy")):
        expected = loop(flnb.asarray(X)).numpy().copy()
        for _ in range(3):
            loop(flnb.asarray(X)).numpy()

        def broken(self: Any, inputs: Any) -> Any:
            raise KeyError("a defect")

        with monkeypatch.context() as patch:
            patch.setattr(Program, "run", broken)
            with pytest.warns(
                RuntimeWarning, match="op by op, which is slower, because their program failed: KeyError"
            ):
                np.testing.assert_array_equal(loop(flnb.asarray(X)).numpy(), expected)


@pytest.mark.parametrize(("where", "begin"), [("spec_of", 0), ("_built", 3)])
def test_ctrl_c_while_a_program_is_made_leaves_none_that_is_half_made(
    where: str, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, interrupts = getattr(repetition, where), []

    def once(*arguments: Any) -> Any:
        if not interrupts:
            interrupts.append(where)
            raise KeyboardInterrupt
        return made(*arguments)

    monkeypatch.setattr(repetition, "WORTH", 1)
    with flnb.use_backend(DeferredBackend("numpy")):
        for i in range(6):
            if i == begin:
                monkeypatch.setattr(repetition, where, once)
            x, number = flnb.asarray(np.full(3, float(i), np.float32)), 1.0 if i < 3 else 2.0
            y = (flnb.tanh(x) + number) * x
            with contextlib.suppress(KeyboardInterrupt):
                flnb.sync()
            np.testing.assert_allclose(y.numpy(), [(np.tanh(i) + number) * i] * 3, 1e-6)
    assert interrupts
