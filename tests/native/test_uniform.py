"""Random numbers by machine code: NumPy's numbers, and NumPy's state after them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import flnb

pytest.importorskip("llvmlite")
pytest.importorskip("cffi")
from flnb_backends.native import llvm, uniform
from flnb_backends.native.uniform import LEAST, draw


def pair(seed: int, before: int = 0) -> tuple[np.random.Generator, np.random.Generator]:
    """Two equal generators, from which some float32 numbers were drawn."""
    made = np.random.default_rng(seed), np.random.default_rng(seed)
    for each in made:
        each.random(before, np.float32)
    return made


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("before", [0, 1, 2], ids=["new", "half an output waits", "half an output was used"])
def test_numbers_and_state_are_those_of_numpy(dtype: str, before: int) -> None:
    ours, theirs = pair(7, before)
    for size in (LEAST, LEAST + 1, LEAST + 31, LEAST + 32, LEAST + 33, 3 * LEAST + 7):
        made = np.full(size + 8, 9.0, dtype)
        assert draw(ours, made[:size])
        np.testing.assert_array_equal(made[:size], theirs.random(size, dtype))
        assert (made[size:] == 9.0).all()
        assert ours.bit_generator.state == theirs.bit_generator.state
        assert ours.random(3, np.float32).tolist() == theirs.random(3, np.float32).tolist()


def test_states_and_increments_of_all_sizes() -> None:
    words = [0, 1, (1 << 64) - 1, 1 << 64, (1 << 128) - 1]
    for state, increment in itertools.product(words, words):
        ours, theirs = pair(0)
        for each in (ours, theirs):
            bits: Any = each.bit_generator
            bits.state = bits.state | {"state": {"state": state, "inc": increment | 1}}
        made = np.empty(LEAST, "d")
        assert draw(ours, made)
        np.testing.assert_array_equal(made, theirs.random(LEAST))
        assert ours.bit_generator.state == theirs.bit_generator.state


def test_what_is_left_to_numpy_draws_nothing() -> None:
    generator, same = pair(3)
    read_only = np.zeros(LEAST)
    read_only.flags.writeable = False
    whole = np.zeros((LEAST, 2))
    for out in (np.zeros(LEAST - 1), np.zeros(LEAST, "e"), whole[:, 0], whole.T, read_only):
        assert not draw(generator, out)
        assert not out.any()
    assert not draw(np.random.Generator(np.random.PCG64DXSM(0)), np.zeros(LEAST))
    assert generator.bit_generator.state == same.bit_generator.state


def test_a_numpy_with_another_generator_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uniform, "FACTOR", uniform.FACTOR + 8)
    assert uniform._function.__wrapped__("f") is None


def test_the_cpu_backend_draws_the_same_tensors_as_numpy_also_in_programs() -> None:
    found = []
    for backend in ("numpy", "cpu", "deferred"):
        with flnb.use_backend(backend), flnb.random.use_generator(flnb.random.Generator(5)):
            x = flnb.ones((70, 80))
            dropped = flnb.jit(lambda x: flnb.dropout(x, 0.3)) if backend == "cpu" else (
                lambda x: flnb.dropout(x, 0.3)
            )  # fmt: skip
            made = [dropped(x).numpy() for _ in range(3)] + [flnb.random.uniform((70, 80)).numpy()]
            made += [flnb.random.uniform((70, 80), -2.0, 3.0).numpy()]
        found.append(made)
    for made in found[1:]:
        for a, b in zip(made, found[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_without_llvmlite_numpy_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "find_spec", lambda name: None)
    assert uniform._function.__wrapped__("f") is None
