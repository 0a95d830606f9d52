"""Managers in a session: swapped, typed into a cell, defined again, and the examples in the documentation."""

import doctest
import gc
import importlib

import numpy as np
import pytest

import flnb
from flnb.interface.memory import Block, MemoryManager
from flnb.memory import Caching, HostDevice, Native


def train(manager):
    with flnb.use_memory_manager(manager) as active:
        flnb.manual_seed(3)
        w = flnb.Variable(flnb.random.normal((64, 64)))
        x = flnb.random.normal((64, 64))
        for _ in range(3):
            loss = flnb.tanh(x @ w).sum()
            loss.backward()
            w = flnb.Variable(w.data - 0.01 * w.grad)
        return np.asarray(w.data).copy(), active


class Arena(MemoryManager):
    """Bump allocation, never reused."""

    def __init__(self, device=None):
        super().__init__(device)
        self.arena = self.device.reserve(8 << 20)
        self.used = 0

    def alloc(self, nbytes, stream=0, hint=None):
        self.used += -(-nbytes // 64) * 64
        return Block(self.arena.address + self.used - -(-nbytes // 64) * 64, -(-nbytes // 64) * 64, self.arena)

    def free(self, block):
        pass


def test_every_manager_trains_to_the_same_bits():
    expected, caching = train(Caching)
    assert caching.stats()["allocs"] > 10
    for manager in (Native, Arena, "caching"):
        got, active = train(manager)
        assert got.tobytes() == expected.tobytes()
        gc.collect()
        assert active.stats()["live"] == 0


def test_a_class_defined_again_is_active_at_once():
    calls = []

    def cell(version):
        class Mine(Native):
            def alloc(self, nbytes, stream=0, hint=None):
                calls.append(version)
                return super().alloc(nbytes, stream, hint)

        return Mine

    with flnb.use_memory_manager(cell(1)):
        old = flnb.ones((100, 100))
        cell(2)
        new = flnb.ones((100, 100))
        assert float((old + new).sum()) == 20_000
    assert set(calls) == {1, 2}
    assert calls == sorted(calls)


def test_tensors_outlive_the_block_that_chose_their_manager():
    with flnb.use_memory_manager(Caching(HostDevice("32MiB"))) as manager:
        x = flnb.ones((500, 500))
    y = x + 1
    assert flnb.memory.block_of(np.asarray(x)).manager is manager
    assert flnb.memory.block_of(np.asarray(y)).manager is not manager
    assert float(y.sum()) == 500_000
    del x
    assert manager.stats()["live"] == 0


def test_statistics_of_the_active_manager():
    with flnb.use_memory_manager(Caching()) as manager:
        x = flnb.zeros((1024, 1024))
        assert flnb.memory.stats() == manager.stats()
        assert flnb.memory.stats()["allocated"] == 4 << 20
        (state,) = flnb.memory.snapshot()
        assert [block.size for block in state.blocks] == [4 << 20, 16 << 20]
        del x
        assert flnb.memory.release_cached() == 20 << 20


def test_a_tensor_that_does_not_fit_says_what_to_do():
    with flnb.use_memory_manager(Caching(HostDevice("4MiB"))):
        expected = (
            r"asked for 10\.0 MiB .* it can never fit.*\n.* in its segments 0 bytes, .* not yet reserved 4\.00 MiB"
        )
        with pytest.raises(flnb.OutOfMemoryError, match=expected):
            flnb.zeros((1280, 2048))
        assert float(flnb.ones((10, 10)).sum()) == 100


@pytest.mark.parametrize(
    "module", ["flnb.interface.memory", "flnb.testing.managers", "flnb_backends.memory.simulated", "flnb.memory"]
)
def test_the_examples_in_the_documentation_run(module):
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert not failed
    assert tried or module == "flnb.memory"
