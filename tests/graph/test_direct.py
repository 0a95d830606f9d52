"""Direct runs: calls of a jitted function for which only addresses that have changed are set before the kernels run."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest

import flnb
from flnb.dispatch.memory import reclaim
from flnb.graph.program import Program

pytest.importorskip("llvmlite")


def settled(function: Any, *arguments: Any) -> Any:
    """Return a jitted function that has run so often with these arguments that the next call may be direct."""
    f = flnb.jit(function)
    for _ in range(4):
        f(*arguments)
    return f


def tensors(*values: float, size: int = 6) -> list[Any]:
    return [flnb.asarray(np.full(size, value, np.float32)) for value in values]


def refuse(self: Program, inputs: Any) -> Any:
    """Take the place of `Program.run`, which direct runs do not call."""
    raise AssertionError("expected a direct run")


def test_a_repeated_call_computes_on_what_is_in_the_same_arrays_now() -> None:
    a, b = tensors(1, 2)
    f = settled(lambda a, b: a + b * 2.0, a, b)
    a += 10.0
    assert f(a, b).numpy().tolist() == [15] * 6


def test_no_lookup_is_needed_on_the_same_or_other_arrays_of_the_same_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tensors(1, 2)
    f = settled(lambda a, b: (a + b * 2.0, "text", b - a), a, b)
    monkeypatch.setattr(Program, "run", refuse)
    for x, y in [(1, 2), (3, 5), (3, 5)]:
        c, d = tensors(x, y)
        total, text, difference = f(c, d)
        assert (total.tolist(), text, difference.tolist()) == ([x + 2 * y] * 6, "text", [y - x] * 6)
    assert f(c, a)[0].numpy().tolist() == [5] * 6
    assert f(a, c)[0].numpy().tolist() == [7] * 6


@pytest.mark.parametrize(
    "which", ["the same twice", "views of one memory", "strided", "longer", "integers", "variables"]
)
def test_other_arguments_get_another_program_or_lookup(which: str) -> None:
    a, b = tensors(1, 2)
    f = settled(lambda a, b: a - b * 2.0, a, b)
    long = flnb.asarray(np.arange(12, dtype=np.float32))
    c, d = {
        "the same twice": (a, a), "views of one memory": (long[:6], long[:6]), "strided": (long[::2], long[1::2]),
        "longer": (long, long + 1.0), "integers": (flnb.arange(6), flnb.arange(6)),
        "variables": (flnb.Variable(a), flnb.Variable(b)),
    }[which]  # fmt: skip
    for _ in range(4):
        assert f(c, d).tolist() == [x - 2 * y for x, y in zip(c.tolist(), d.tolist(), strict=True)]
        assert f(a, b).numpy().tolist() == [-3] * 6


def test_arguments_that_are_no_tensors_and_names_and_containers_are_not_ignored() -> None:
    def scaled(a: Any, b: Any = None, k: float = 2.0) -> Any:
        return (a[0] if b is None else b * 10.0) * k

    (x,) = tensors(1)
    calls: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = [
        ((x, None, 3.0), {}, 3.0), (([x],), {}, [2.0] * 6), ((None, x), {}, [20.0] * 6), ((x,), {"k": 4.0}, 4.0),
        ((), {"a": x}, 2.0),
    ]  # fmt: skip
    for arguments, keywords, expected in calls:
        f = flnb.jit(scaled)
        for _ in range(4):
            f(x)
        for _ in range(4):
            assert f(*arguments, **keywords).tolist() == expected
            assert f(x).tolist() == 2.0


def test_memory_of_a_result_is_used_again_only_when_nothing_refers_to_it() -> None:
    a, b = tensors(1, 2, size=1 << 16)
    f = settled(lambda a, b: a + b, a, b)
    address = f(a, b).numpy().ctypes.data
    assert f(a, b).numpy().ctypes.data == address
    allocations = flnb.memory.stats()["allocs"]
    f(a, b)
    assert flnb.memory.stats()["allocs"] == allocations
    view = f(a, b)[2:].numpy()
    a += 1.0
    assert f(a, b).numpy().ctypes.data != address
    assert set(view.tolist()) == {3.0}


def test_released_memory_is_allocated_again_and_nothing_holds_it() -> None:
    with flnb.use_memory_manager(flnb.memory.Caching()) as manager:
        a, b = tensors(1, 2, size=1 << 16)
        f = settled(lambda a, b: flnb.exp(a + b) + flnb.sum(a), a, b)
        before = f(a, b).numpy().copy()
        gc.collect()
        held = manager.stats()["allocated"]
        reclaim(manager)
        assert manager.stats()["allocated"] < held
        np.testing.assert_array_equal(f(a, b).numpy(), before)
        np.testing.assert_array_equal(f(a, b).numpy(), before)


def test_a_function_without_a_result_runs_once_a_call() -> None:
    counts, one = tensors(0, 1)

    def count(one: Any) -> None:
        flnb.add(counts, one, out=counts)

    f = flnb.jit(count)
    for _ in range(7):
        assert f(one) is None
    assert counts.numpy().tolist() == [7] * 6


def test_what_else_a_function_depends_on_is_checked() -> None:
    (a,) = tensors(1)
    scale = 2.0
    model = flnb.nn.Linear(6, 6)

    def f(x: Any) -> Any:
        return model(x) * scale

    f = settled(f, a)
    with flnb.no_grad():
        g = settled(f.function, a)
        for changed in ("nothing", "scale", "weight"):
            if changed == "scale":
                scale = 3.0
            elif changed == "weight":
                model.weight.data = model.weight.data + 1.0
            expected = f.function(a).numpy()
            np.testing.assert_allclose(g(a).numpy(), expected, rtol=1e-5)
            np.testing.assert_allclose(f(a).numpy(), expected, rtol=1e-5)


def test_other_backends_and_managers_get_programs_of_their_own() -> None:
    a, b = tensors(1, 2, size=1 << 16)
    f = settled(lambda a, b: a + b, a, b)
    with flnb.use_memory_manager(flnb.memory.Caching()) as manager:
        assert f(a, b).numpy()[0] == 3
        assert manager.ledger.allocs == 1
    with flnb.use_backend("numpy"):
        assert f(a, b).numpy()[0] == 3
    assert f(a, b).numpy()[0] == 3
    with flnb.record() as run:
        f(a, b)
    assert run.table("kernel")["t0"].size == 1


def test_several_threads_get_their_own_results() -> None:
    f = settled(lambda a, b: a * 2.0 + b, *tensors(1, 2, size=5000))
    wrong: list[Any] = []

    def work(number: int) -> None:
        held: list[tuple[Any, float]] = []
        values = [10.0 * number, 10.0 * number + 1, 10.0 * number + 2]
        made = tensors(*values, size=5000)
        for i in range(300):
            a, b = i % 3, (i + 1) % 3
            held.append((f(made[a], made[b]), values[a] * 2 + values[b]))
            if len(held) > number + 1:
                result, expected = held.pop(0)
                wrong.extend(set(result.tolist()) - {expected})

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
    assert len(f.programs) == 1
