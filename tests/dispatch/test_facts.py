"""What a backend says of itself is what the crossing acts by; and nothing of one rank is another's by accident."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import bus

import flnb
from flnb.backends import NumpyBackend


class Deferring(NumpyBackend):
    """Like a backend that computes when values are read."""

    defers = True

    def __init__(self) -> None:
        self.evaluated: list[tuple[int, ...]] = []
        self.waited = 0

    def eval(self, *buffers: Any) -> None:
        self.evaluated += [buffer.shape for buffer in buffers]

    def sync(self) -> None:
        self.waited += 1


def test_values_are_made_when_they_are_read() -> None:
    with flnb.use_backend(Deferring()) as backend:
        x = flnb.exp(flnb.ones((2, 3)))
        y = x + x
        assert backend.evaluated == []
        y.numpy()
        assert backend.evaluated == [(2, 3)]
        assert y.sum().item() == pytest.approx(12 * np.e)
        assert backend.evaluated == [(2, 3), ()]


def test_sync_waits_for_the_active_backend() -> None:
    with flnb.use_backend(Deferring()) as backend:
        flnb.sync()
    flnb.sync()
    assert backend.waited == 1


class Foreign(NumpyBackend):
    """Arrays of a family of their own, which takes NumPy's in."""

    buffer = "foreign"

    def adopt(self, buffer: Any, family: str) -> Any:
        return buffer.copy() if family == "ndarray" else None


def test_what_holds_for_numpys_arrays_is_not_inherited_with_another_family() -> None:
    assert (Foreign.reads_host, Foreign.shares_memory, Foreign.scalar_results) == (False, False, True)
    assert (Deferring.reads_host, Deferring.shares_memory) == (True, True)


def test_tensors_of_another_family_are_adopted_where_the_backend_does_so() -> None:
    x = flnb.asarray([1.0, 2.0])
    with flnb.use_backend(Foreign):
        own = flnb.asarray([3.0, 4.0])
        for y in (own + x, x + own, x * 1.0 + own):
            assert y._spec.kind == "foreign"
            assert y.tolist() == [4.0, 6.0]
        assert flnb.softmax(x).shape == (2,)
        assert (x + x).tolist() == [2.0, 4.0]  # whose plan is known already
    with pytest.raises(
        TypeError, match=r"add: the tensors have 'foreign' buffers but the active backend '(cpu|numpy)'"
    ):
        own + x


def test_a_variable_of_another_family_is_refused() -> None:
    x = flnb.Variable([1.0, 2.0])
    with flnb.use_backend(Foreign), pytest.raises(TypeError, match="the tensors have 'ndarray' buffers"):
        x + flnb.asarray([3.0, 4.0])


def in_thread(function: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_can_draw_and_count_for_itself() -> None:
    def rank() -> tuple[Any, int]:
        with flnb.random.use_generator(flnb.random.Generator(7)), bus.own_steps():
            flnb.manual_seed(3)
            for _ in range(3):
                with flnb.step() as index:
                    pass
            return flnb.random.uniform((2,)).tolist(), index

    flnb.manual_seed(5)
    before, state = bus.current_step(), flnb.random.default_generator.state
    assert in_thread(rank) == in_thread(rank)
    assert in_thread(rank)[1] == 2
    assert (bus.current_step(), flnb.random.default_generator.state) == (before, state)


def test_the_latest_write_never_falls() -> None:
    from flnb.dispatch import crossing

    tensors = [flnb.zeros((1,)) for _ in range(4)]
    lows: list[int] = []

    def write(x: Any) -> None:
        for _ in range(500):
            flnb.assign(x, 1.0)
            if crossing.last_write < x._last_write:
                lows.append(crossing.last_write)

    threads = [threading.Thread(target=write, args=(x,)) for x in tensors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lows == []


def test_overridden_names_the_methods_that_the_users_classes_define() -> None:
    class Mine(flnb.backends.NumpyBackend):
        """Has more than methods."""

        calls = 0
        tanh = np.tanh

        def exp(self, x: Any, out: Any = None) -> Any:
            return super().exp(x, out)

        @staticmethod
        def sqrt(x: Any, out: Any = None) -> Any:
            return np.sqrt(x, out)

    assert Mine().overridden() == {"exp", "tanh", "sqrt"}
    assert flnb.backends.NumpyBackend().overridden() == frozenset()
