"""How long programs of repeated traces, their memory managers and their results live."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

import flnb
from flnb import optim
from flnb.backends import DeferredBackend, NumpyBackend
from flnb.graph import repetition
from tests.graph.test_repetition import Steps, X, known, loop

if TYPE_CHECKING:
    import pytest


def test_a_result_that_only_a_later_op_reads_is_not_computed_twice() -> None:
    calls: list[str] = []

    class Telling(NumpyBackend):
        def sin(self, x: Any, out: Any = None) -> Any:
            calls.append("sin")
            return np.sin(x, out)

    with flnb.use_backend(DeferredBackend(Telling)):
        for i in range(5):
            calls.clear()
            x = flnb.sin(flnb.asarray(X + i)) * 1.0
            y, z = x + 1.0, x * 2.0
            del x
            np.testing.assert_allclose((y * y + y).numpy(), (np.sin(X + i) + 1.5) ** 2 - 0.25, atol=1e-5)
            np.testing.assert_allclose(z.numpy(), np.sin(X + i) * 2, rtol=1e-5)
            assert calls == ["sin"]


def test_programs_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "MOST_PROGRAMS", 2)
    monkeypatch.setattr(repetition, "MOST_KNOWN", 4)
    known().clear()
    with flnb.use_backend("deferred"):
        for _ in range(3):
            for n in (2, 3, 4):
                for _ in range(2):
                    np.testing.assert_allclose(loop(flnb.ones((n, 3))).shape, (n, 3))
                    loop(flnb.ones((n, 3))).numpy()
    assert len(known()) <= 4
    assert sum(each.program is not None for each in known().values()) <= 2


def test_a_memory_manager_ends_with_its_last_use_and_its_programs_with_it() -> None:
    with flnb.use_memory_manager("caching") as manager, flnb.use_backend("deferred"):
        for _ in range(4):
            loop(flnb.ones((2, 3))).numpy()
        assert any(each.program is not None for each in known().values())
    ended = weakref.ref(manager)
    del manager
    gc.collect()
    assert ended() is None


def test_results_that_something_refers_to_are_not_written_by_later_steps() -> None:
    with flnb.use_backend(DeferredBackend("numpy", fuse=False)):
        x = flnb.ones((64, 64))
        kept: list[tuple[Any, Any]] = []
        for i in range(12):
            x = flnb.tanh(x * 1.5 + 0.25) - x * 0.125
            flnb.sync()
            if i % 3 == 0:
                kept.append((x, x.numpy().copy()))  # a tensor
            elif i % 3 == 1:
                kept.append((x.numpy()[1:], x.numpy()[1:].copy()))  # an array, which is a view of its memory
        for tensor, expected in kept:
            np.testing.assert_array_equal(np.asarray(tensor), expected)


def test_steps_of_training_allocate_only_gradients_that_are_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with flnb.use_backend(DeferredBackend("numpy", fuse=False)):
        step = Steps("lenet", optim.Adam)
        for _ in range(8):
            step()
        before = flnb.memory.stats()["allocs"]
        for _ in range(4):
            step()
        assert flnb.memory.stats()["allocs"] - before <= 4  # scratch for a pull, at most
        flnb.memory.release_cached()
        step()
        assert np.isfinite(step().item())
