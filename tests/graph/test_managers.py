"""Managers and programs: a manager ends with its block, though programs held its memory; sync reaches all threads."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import flnb
from flnb.backends import DeferredBackend

X = np.arange(40_000, dtype=np.float32).reshape(200, 200) / 40_000


def f(x: Any) -> Any:
    return flnb.tanh(x @ x) - flnb.sum(flnb.exp(x), axis=0)


def test_a_manager_ends_with_its_block_though_a_function_has_programs_there() -> None:
    jitted = flnb.jit(f)
    with flnb.use_memory_manager("caching") as manager:
        x = flnb.asarray(X)
        for _ in range(3):
            y = jitted(x)
        assert manager.stats()["live"] > 2  # the program's block and scratch, x and y
    assert manager.stats()["live"] == 2
    np.testing.assert_allclose(y.numpy(), f(flnb.asarray(X)).numpy(), rtol=1e-5)
    assert not jitted.programs
    ended = weakref.ref(manager)
    del manager, x, y
    gc.collect()
    flnb.ones((200, 200))  # blocks return to their manager at the next allocation
    gc.collect()
    assert ended() is None
    for _ in range(3):
        np.testing.assert_allclose(jitted(flnb.asarray(X)).numpy(), f(flnb.asarray(X)).numpy(), rtol=1e-5)


def test_a_manager_ends_with_its_block_though_a_backend_has_recorded_there() -> None:
    with flnb.use_backend("deferred"):
        with flnb.use_memory_manager("caching") as manager:
            for _ in range(4):
                f(flnb.asarray(X)).numpy()
            y = f(flnb.asarray(X))  # computed after the end
            assert manager.stats()["live"] > 0
        np.testing.assert_allclose(y.numpy(), f(flnb.asarray(X)).numpy(), rtol=1e-5)
        del y
        ended = weakref.ref(manager)
        del manager
        flnb.ones((200, 200)).numpy()
        gc.collect()
        assert ended() is None


def test_a_manager_that_the_caller_made_keeps_its_programs() -> None:
    jitted = flnb.jit(f)
    with flnb.use_memory_manager("caching") as manager:
        pass
    for _ in range(2):
        with flnb.use_memory_manager(manager):
            x = flnb.asarray(X)
            for _ in range(3):
                jitted(x)
    assert len(jitted.programs) == 1


@pytest.mark.parametrize("shared", [False, True])
def test_sync_computes_what_other_threads_have_recorded(shared: bool) -> None:
    one = DeferredBackend("numpy")
    recorded, checked = threading.Event(), threading.Event()
    found: list[Any] = []

    def work() -> None:
        with flnb.use_backend(one if shared else DeferredBackend("numpy")):
            y = flnb.exp(flnb.asarray(X))
            found.append(y)
            recorded.set()
            checked.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert recorded.wait(10)
        value = found[0]._data.read()
        assert value.tensor is None
        with flnb.use_backend(one):
            flnb.sync()
        assert value.tensor is not None
    finally:
        checked.set()
        thread.join(10)
    np.testing.assert_allclose(found[0].numpy(), np.exp(X), rtol=1e-6)
