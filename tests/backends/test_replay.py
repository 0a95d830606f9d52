"""Replays of traces on the backend `deferred`: results are equal to those of ops that run at once."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.trace_log import upcoming

import flnb
from flnb import models, optim
from tests.backends.replays import X, chain, compare, exact, shares

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable


def test_a_repeated_trace_makes_no_values(seen: Counter[str]) -> None:
    with flnb.use_backend(exact()):
        w = flnb.asarray(X)
        for i in range(8):
            seen["values"] = 0
            y = chain(flnb.asarray(X + i), w)
            got = y.numpy()
            with flnb.use_backend("numpy"):
                np.testing.assert_array_equal(got, chain(flnb.asarray(X + i), flnb.asarray(X)).numpy())
    assert seen["values"] == 1  # for the result of the next repetition
    assert seen["repeated"] >= 4
    assert not seen["left"]


@pytest.mark.parametrize("name", ["mlp", "vit"])
def test_a_training_step_is_recorded_as_without_replays(name: str, seen: Counter[str]) -> None:
    def trained(backend: Any) -> list[Any]:
        flnb.manual_seed(0)
        recipe = models.get(name)
        with flnb.use_backend(backend):
            model = recipe.build("small")
            batch = [flnb.asarray(array) for array in recipe.batch("small", size=2)]
            optimizer, losses = optim.Adam(model.parameters()), []
            for _ in range(8):
                optimizer.zero_grad()
                loss = recipe.loss(model, *batch)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            assert backend == "numpy" or upcoming.get() is None  # after the first trace, none is logged
            return [x.numpy().copy() for x in (*losses, *[p.data for p in model.parameters()])]

    expected = trained("numpy")
    for a, b in zip(expected, trained(exact()), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not seen["repeated"]
    assert not seen["left"]


def test_a_backward_pass_after_repetitions_has_the_right_gradients(seen: Counter[str]) -> None:
    def run() -> list[Any]:
        w, found = flnb.Variable(X * 0.5), []
        for i in range(12):
            y = flnb.sum(chain(flnb.asarray(X + i), w))
            if i % 3 == 2 and i > 6:
                w.grad = None
                y.backward()
                found.append(w.grad.numpy().copy())
            found.append(y.detach().numpy().copy())
        return found

    compare(run)
    assert seen["repeated"] >= 3
    assert seen["left"] == 2


def plain(x: Any, w: Any, i: int) -> Any:
    return flnb.sum(shares(x * w, 1) + x, axis=1)


CHANGES: dict[str, Callable[[Any, Any, int], Any]] = {
    "another op": lambda x, w, i: flnb.sum(shares(x - w, 1) + x, axis=1),
    "another order": lambda x, w, i: flnb.sum(shares(w * x, 1) + x, axis=1),
    "another input": lambda x, w, i: (x * w, flnb.sum(shares(x, 1) + x, axis=1))[1],
    "another axis": lambda x, w, i: flnb.sum(shares(x * w, 0) + x, axis=1),
    "another input of a reduction": lambda x, w, i: (shares(x * w, 1) + x, flnb.sum(x, axis=1))[1],
    "an op with several results": lambda x, w, i: flnb.sum(flnb.softmax(x * w, 1) + x, axis=1),
    "more ops": lambda x, w, i: plain(x, w, i) * 2.0,
    "fewer ops": lambda x, w, i: shares(x * w, 1) + x,
    "a write between": lambda x, w, i: (flnb.multiply(x, 2.0, out=x), plain(x, w, i))[1],
    "a number of the host": lambda x, w, i: flnb.sum(shares(x * w, 1) + float(i), axis=1),
    "another shape": lambda x, w, i: plain(x[:2], w[:2], i),
    "a value that is read": lambda x, w, i: flnb.sum(shares(x * w, 1) + x + (x * w)[0, 0].item(), axis=1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_that_differs_is_computed_as_it_is(change: str, seen: Counter[str]) -> None:
    def run() -> list[Any]:
        w, found = flnb.asarray(X * 0.5), []
        for i in range(14):
            x = flnb.asarray(X + i)
            y = (CHANGES[change] if i in (6, 9) else plain)(x, w, i)
            found += [y.numpy().copy(), x.numpy().copy()]
        return found

    compare(run)
    assert seen["repeated"] >= 5
    assert seen["left"] >= 1


def test_a_result_that_is_kept_is_not_overwritten_and_makes_another_trace(seen: Counter[str]) -> None:
    with flnb.use_backend(exact()):
        w, kept = flnb.asarray(X), []
        for i in range(12):
            x = flnb.asarray(X + i)
            y = x * w
            z = flnb.exp(y * 0.1) + 1.0
            if i in (7, 9):
                kept.append((y, y.T if i == 7 else y, i))
            del y
            np.testing.assert_allclose(z.numpy(), np.exp((X + i) * X * 0.1) + 1, rtol=1e-6)
        for y, view, i in kept:
            np.testing.assert_array_equal(y.numpy(), (X + i) * X)
            np.testing.assert_array_equal(view.numpy(), ((X + i) * X).T if i == 7 else (X + i) * X)
    assert seen["repeated"] >= 4
    assert seen["left"] == 3  # with the one that reading `view` ends


def test_random_numbers_are_drawn_in_each_repetition(seen: Counter[str]) -> None:
    def run() -> list[Any]:
        flnb.manual_seed(3)
        w = flnb.asarray(X)
        return [(chain(flnb.rand(3, 4), w) * flnb.rand(3, 4)).numpy().copy() for _ in range(8)]

    with flnb.use_backend("numpy"):
        expected = run()
    with flnb.use_backend(exact()):
        np.testing.assert_array_equal(expected, run())
    assert seen["repeated"] >= 4


def test_a_recording_that_begins_in_a_trace_ends_the_repetition(seen: Counter[str]) -> None:
    with flnb.use_backend(exact()):
        w = flnb.asarray(X)
        for i in range(10):
            x = flnb.tanh(flnb.asarray(X + i))
            if i == 7:
                with flnb.record() as run:
                    y = chain(x, w)
                    y.numpy()
                names = [run.catalog.plans.items[plan].op for plan in run.table("record")["plan"].tolist()]
                assert names.count("tanh") == 3 + 4  # and again to make a program with their contexts
                assert seen["left"] == 1
            else:
                y = chain(x, w).numpy()
        assert seen["repeated"] >= 4
        assert seen["left"] == 1


def test_memory_comes_from_the_manager_that_is_active_in_a_repetition(seen: Counter[str]) -> None:
    with flnb.use_backend(exact()):
        w = flnb.ones((1 << 16,))
        for _ in range(6):
            chain(w, w).numpy()
        assert seen["repeated"] >= 2
        with flnb.use_memory_manager(flnb.memory.Caching()) as manager:
            chain(w, w).numpy()
            assert manager.stats()["peak_allocated"] >= 1 << 18


def test_two_tensors_that_become_one(seen: Counter[str]) -> None:
    def step(a: Any, b: Any) -> Any:
        y = flnb.tanh(a) + flnb.exp(b * 0.1)
        y = y + a * b
        flnb.sync()
        return y

    def run() -> list[Any]:
        a, b, found = flnb.asarray(X), flnb.asarray(X), []
        for i in range(10):
            found += [step(a, a if i == 7 else b).numpy().copy(), a.numpy().copy(), b.numpy().copy()]
        return found

    with flnb.use_backend("numpy"):
        expected = run()
    with flnb.use_backend(exact()):
        np.testing.assert_array_equal(expected, run())
    assert seen["repeated"] >= 4


def test_a_write_by_another_thread_comes_between_the_ops_of_a_repetition(seen: Counter[str]) -> None:
    backend = exact()

    def write(w: Any, number: float) -> None:
        with flnb.use_backend(exact()):
            flnb.assign(w, number)

    with flnb.use_backend(backend):
        w = flnb.asarray(X)
        for i in range(9):
            y = flnb.tanh(w * 2.0) + 1.0
            if i == 6:
                thread = threading.Thread(target=write, args=(w, 3.0))
                thread.start()
                thread.join(60)
            z = flnb.exp(w) - y
            old = np.full_like(X, 3.0) if i > 6 else X
            now = np.full_like(X, 3.0) if i >= 6 else X
            np.testing.assert_allclose(z.numpy(), np.exp(now) - np.tanh(old * 2) - 1, rtol=1e-5, atol=1e-5)
    assert seen["repeated"] >= 3


def test_threads_that_share_a_backend_and_tensors(seen: Counter[str]) -> None:
    backend, wrong = exact(), []
    with flnb.use_backend("numpy"):
        expected = [chain(flnb.asarray(X + i), flnb.asarray(X)).numpy().copy() for i in range(40)]
    with flnb.use_backend(backend):
        w = flnb.asarray(X)
    handed: list[Any] = [None]

    def work() -> None:
        with flnb.use_backend(backend):
            for i in range(40):
                y = chain(flnb.asarray(X + i), w)
                other, handed[0] = handed[0], (i, y)
                if other is not None and not np.array_equal(other[1].numpy(), expected[other[0]]):
                    wrong.append(other[0])
                if not np.array_equal(y.numpy(), expected[i]):
                    wrong.append(i)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_a_replay_keeps_no_tensor_of_the_program_alive(seen: Counter[str]) -> None:
    with flnb.use_backend(exact()):
        for i in range(7):
            x, w = flnb.asarray(X + i), flnb.asarray(X)
            y = chain(x, w)
            y.numpy()
        alive = [weakref.ref(each._data) for each in (x, w, y)]
        del x, w, y
        gc.collect()
        assert seen["repeated"] >= 3
        assert not any(each() is not None for each in alive)
