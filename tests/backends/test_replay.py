"""Replays of traces on the backend `deferred`: results are equal to those of ops that run at once."""

from __future__ import annotations

import gc
import linecache
import random
import signal
import sys
import threading
import weakref
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from flnb_backends.tensor import deferred, recorded_buffers, replay, trace_log
from flnb_backends.tensor.trace_log import upcoming

import flnb
from flnb import models, optim
from flnb.backends import DeferredBackend
from flnb.graph import repetition, values
from flnb.graph.running import running

if TYPE_CHECKING:
    from collections.abc import Callable

X = np.arange(12, dtype=np.float32).reshape(3, 4) / 7


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a trace was repeated and left, and how many values were recorded; programs are made at once."""
    count: Counter[str] = Counter()
    finish, leave, make = replay.Replay.finish, replay.Replay.leave, values.Value.__init__

    def finished(self: Any, asked: Any) -> Any:
        done = finish(self, asked)
        count["repeated"] += done is not None
        return done

    def left(self: Any, *out: Any) -> None:
        count["left"] += self.known is not None
        leave(self, *out)

    def made(self: Any, op: Any, *arguments: Any) -> None:
        count["values"] += op is not None and type(self) is values.Value
        make(self, op, *arguments)

    upcoming.set(None)  # of the test before
    monkeypatch.setattr(replay.Replay, "finish", finished)
    monkeypatch.setattr(replay.Replay, "leave", left)
    monkeypatch.setattr(values.Value, "__init__", made)
    monkeypatch.setattr(repetition, "WORTH", 1)
    return count


def exact() -> DeferredBackend:
    return DeferredBackend("numpy", fuse=False)


def chain(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = flnb.tanh(x * w + 1.0) - w
    return x


def shares(x: Any, axis: int) -> Any:
    """Return values whose sum along an axis is 1, by ops with one result each."""
    e = flnb.exp(x * 0.1)
    return e / flnb.sum(e, axis=axis, keepdims=True)


def compare(run: Callable[[], list[Any]]) -> None:
    """Check that ``run`` has the same results, to the last bit, on `deferred` as on NumPy's backend."""
    with flnb.use_backend("numpy"):
        expected = run()
    with flnb.use_backend(exact()):
        got = run()
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a, b)


def is_lock_free() -> bool:
    """Return whether another thread can compute, because this one does not hold the lock any more."""
    free: list[bool] = []

    def take() -> None:
        free.append(running.acquire(timeout=5))
        if free[0]:
            running.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return free[0]


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


class Interrupting:
    """Raises KeyboardInterrupt at the ``when``-th line of the trace cache's modules."""

    MODULES = replay, recorded_buffers, deferred, trace_log, repetition
    FILES: ClassVar[set[str | None]] = {module.__file__ for module in MODULES}

    def __init__(self, when: int) -> None:
        self.left = when

    def __enter__(self) -> Interrupting:
        sys.settrace(self.called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def called(self, frame: Any, event: str, _: Any) -> Any:
        return self.line if frame.f_code.co_filename in self.FILES else None

    def line(self, frame: Any, event: str, _: Any) -> Any:
        # Ctrl-C does not come between a block's end and the release of its lock, whose line is that of `with`,
        # nor at a `try`, which is no instruction that looks for signals
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not text.startswith(("with ", "try:")):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.line


def interrupted_step(when: int, reads: bool) -> bool:
    """Repeat a step, the sixth time with Ctrl-C at a line; returns whether that step came to its end."""

    def step(w: Any, made: dict[str, Any]) -> None:
        made["y"] = flnb.tanh(w * 2.0) + 1.0
        if reads and "read" in made:
            made["y"].numpy()
        made["z"] = flnb.exp(made["y"] * w)
        flnb.sync()

    ended = True
    with flnb.use_backend(exact()):
        kept = []
        for i in range(7):
            made: dict[str, Any] = {"read": None} if i == 5 else {}
            x = X + 1 - i / 10
            try:
                with Interrupting(when if i == 5 else 0):
                    step(flnb.asarray(x), made)
            except KeyboardInterrupt:
                ended = False
            made.pop("read", None)
            y = np.tanh(x * 2) + 1
            for name, value in made.items():
                np.testing.assert_allclose(value.numpy(), {"y": y, "z": np.exp(y * x)}[name], rtol=2e-5, err_msg=name)
            kept += [(value, value.numpy().copy()) for value in made.values()]
        for value, elements in kept:
            np.testing.assert_array_equal(value.numpy(), elements)
    return ended


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="an error of a trace function comes where Python looks for no signal"
)
@pytest.mark.parametrize("reads", [False, True])
def test_ctrl_c_at_a_line_of_a_repetition_leaves_a_step_that_can_be_repeated(reads: bool, seen: Counter[str]) -> None:
    when = 1
    while not interrupted_step(when, reads):
        when += 17
        assert is_lock_free(), when
    assert when > 100
    assert seen["repeated"] > 40


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer that sends a signal")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a callback of the garbage collector
def test_signals_at_random_moments_leave_no_lock_and_right_results(seen: Counter[str]) -> None:
    moments, interrupted = random.Random(0), 0
    limit = signal.setitimer(signal.ITIMER_REAL, 0.0)  # of pytest
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with flnb.use_backend(exact()):
            w = flnb.asarray(X)
            for _ in range(200):
                with suppress(KeyboardInterrupt):
                    try:
                        signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, 2e-3))
                        for i in range(6):
                            chain(flnb.asarray(X + i), w).numpy()
                    except KeyboardInterrupt:
                        interrupted += 1
                    signal.setitimer(signal.ITIMER_REAL, 0.0)
                assert is_lock_free()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *limit)
    assert interrupted > 10
    compare(lambda: [chain(flnb.asarray(X + i), flnb.asarray(X)).numpy() for i in range(8)])


VIEWS = (
    lambda x: x[1:], lambda x: x[:, ::2], lambda x: x.T, lambda x: flnb.flip(x), lambda x: x[0],
    lambda x: x.reshape((-1,)),
)  # fmt: skip
OPS = ["view", "op", "two", "softmax", "sum", "rand", "read", "add", "assign", "part", "multiply", "drop", "keep"]
REPLAYED = ["op", "op", "two", "two", "sum", "rand", "drop", "keep"]
Step = tuple[int, str, int]


def random_step(steps: list[Step], i: int, w: Any, kept: list[Any]) -> tuple[list[Any], list[Any]]:
    """Run a random program of views, ops, reads and writes; return the arrays that it read, and its last tensors."""
    made, read, rows = [flnb.asarray(X + i), w], [], {}
    for which, what, number in steps:
        x = made[which % len(made)]
        contiguous = rows.get(id(x), True)
        if what == "view" and x.ndim and x.shape[0] > 1 and (x.ndim == 2 or number not in (1, 2)):
            if number != 5 or contiguous:
                made.append(VIEWS[number % 6](x))
                rows[id(made[-1])] = number == 5
        elif what == "op":
            made.append(flnb.tanh(x * 2.0 + number))
        elif what == "two" and x.shape == made[number % len(made)].shape:
            made.append(x * made[number % len(made)] - x)
        elif what in ("softmax", "sum") and x.ndim:
            made.append(flnb.softmax(x, -1) if what == "softmax" else flnb.sum(x, axis=0))
        elif what == "rand":
            made.append(flnb.rand(3, 4))
        elif what == "read":
            read.append(x.numpy().copy())
        elif what == "add":
            x += float(number)
        elif what == "assign":
            flnb.assign(x, float(number))
        elif what == "part" and x.ndim:
            x[..., 0] = float(number)
        elif what == "multiply":
            flnb.multiply(x, 0.5, out=x)
        elif what == "drop" and len(made) > 3:
            made.pop(2 + which % (len(made) - 2))
        elif what == "keep":
            kept.append(x)
        rows = {id(x): rows.get(id(x), what not in ("op", "two", "softmax") or contiguous) for x in made}
    return read, made


def random_loop(seed: int) -> list[Any]:
    """Run a random program repeatedly, sometimes with one step changed; returns all that was read."""
    rng = random.Random(seed)
    flnb.manual_seed(seed)
    ops = REPLAYED if seed % 3 else OPS
    steps = [(rng.randrange(8), rng.choice(ops), rng.randrange(6)) for _ in range(rng.randrange(3, 14))]
    w, kept, found = flnb.asarray(X * 0.5), [], []
    for i in range(14):
        now = list(steps)
        if 5 <= i < 12 and rng.random() < 0.4:
            now[rng.randrange(len(now))] = rng.randrange(8), rng.choice(OPS), rng.randrange(6)
        read, made = random_step(now, i, w, kept)
        del kept[:-3]
        found += read
        if rng.random() < 0.9:
            flnb.sync()
        if rng.random() < 0.3:
            found += [x.numpy().copy() for x in (w, *kept, *made)]
        del made
    return [*found, *[x.numpy().copy() for x in (w, *kept)]]


def test_random_programs_that_repeat_and_change(seen: Counter[str]) -> None:
    with np.errstate(all="ignore"):
        for seed in range(150):
            with flnb.use_backend("numpy"):
                expected = random_loop(seed)
            with flnb.use_backend(exact()):
                got = random_loop(seed)
            for a, b in zip(expected, got, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"seed {seed}")
    assert seen["repeated"] > 100
    assert seen["left"] > 25
