"""What programs must be able to do, by the names of the list of features."""

from __future__ import annotations

import platform
import subprocess
import sys
import tracemalloc
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest
from flnb_backends.memory.native import Native
from flnb_telemetry import load_run

import flnb
from flnb.backends import CpuBackend
from flnb.graph.calls import KernelCalls
from flnb.graph.program import SETTLED

onednn = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="there is no oneDNN to install"
)
X = np.linspace(-2, 2, 10)


def program_of(f: Any, *arguments: Any) -> Any:
    """The program that a jitted function runs for arguments."""
    for _ in range(2):
        f(*[flnb.asarray(x) for x in arguments])
    ((captured,),) = f.captured.values()
    return captured.program


def kernels_of(program: Any) -> int:
    return sum(len(step.events) for step in program.steps if isinstance(step, KernelCalls))


def ops_of(program: Any) -> list[str]:
    return [value.op.name for group in program.groups for value in group.members]


def test_t4_elementwise_ops_are_one_kernel() -> None:
    def f(x: Any) -> Any:
        for _ in range(12):
            x = flnb.tanh(x * 1.1) + 0.1
        return x

    program = program_of(flnb.jit(f), X)
    assert len(ops_of(program)) == 36
    assert kernels_of(program) == len(program.steps) == 1
    assert program_of(flnb.jit(f, fuse=False), X).steps[0].value.op.name == "multiply"
    assert len(program_of(flnb.jit(f, fuse=False), X).steps) == 36


def test_t4_equal_values_are_computed_once_and_what_nobody_reads_never() -> None:
    def f(x: Any, y: Any) -> Any:
        flnb.sin(x)
        return flnb.exp(x) + flnb.exp(x) * flnb.matmul(x, y) + flnb.matmul(x, y)

    names = ops_of(program_of(flnb.jit(f), X, X))
    assert sorted(names) == ["add", "add", "exp", "matmul", "multiply"]


def test_t4_inputs_that_are_not_donated_stay_as_they_are() -> None:
    for fuse in (False, True):
        f = flnb.jit(lambda a, b: flnb.maximum(b * a + 1.0, b), fuse=fuse)
        for _ in range(4):
            a, b = flnb.asarray(X), flnb.asarray(X * 3)
            np.testing.assert_allclose(f(a, b).numpy(), np.maximum(X * X * 3 + 1, X * 3))
            np.testing.assert_array_equal(a.numpy(), X)
            np.testing.assert_array_equal(b.numpy(), X * 3)


CODE = """
import numpy as np, sys
import flnb
from flnb_backends.native.llvm import Compiler
if sys.argv[1] == "stored":
    def refuse(self, text): raise AssertionError("compiled again")
    Compiler.optimized = refuse
f = flnb.jit(lambda x: flnb.softmax(flnb.exp(x) * 2.0, axis=-1))
x = flnb.asarray(np.arange(6, dtype=np.float32).reshape(2, 3) / 6)
for _ in range(3):
    y = f(x)
print(repr(y.numpy().tolist()))
"""


def test_t6_a_second_process_compiles_nothing_and_two_at_once_are_safe(tmp_path: Any) -> None:
    command = [sys.executable, "-W", "error", "-c", CODE]
    environment = {"FLNB_CACHE": str(tmp_path), "PATH": "", "OPENBLAS_NUM_THREADS": "1"}
    both = [subprocess.Popen([*command, "anew"], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    results = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    again = subprocess.run([*command, "stored"], env=environment, capture_output=True, text=True, check=True)
    assert results == [again.stdout] * 2
    x = np.exp(np.arange(6).reshape(2, 3) / 6) * 2
    expected = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(eval(again.stdout), expected, rtol=1e-5)


def test_t6_machine_code_is_stored_by_source_and_version(tmp_path: Any) -> None:
    def stored(change: str = "", code: str = CODE) -> set[str]:
        environment = {"FLNB_CACHE": str(tmp_path), "PATH": "", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-c", change + code, "anew"], env=environment, check=True, capture_output=True)
        return {path.name for path in (tmp_path / "native").iterdir()}

    first = stored()
    assert len(first) >= 1
    assert stored() == first
    other = stored(code=CODE.replace("* 2.0", "* 2.5 + x"))
    assert other > first
    newer = "import llvmlite.binding\nllvmlite.binding.llvm_version_info = (99, 0, 0)\n"
    assert len(stored(newer)) == len(other) + len(first)  # no file is that of another version


def test_m2_the_notes_example_takes_320_240_or_160_bytes() -> None:
    def f(a: Any, b: Any) -> Any:
        c = b * a
        return c + 1.0

    given = 2 * X.nbytes
    assert X.nbytes == 80
    unfused, fused, donated = (
        program_of(flnb.jit(f, **options), X, X)
        for options in ({"fuse": False}, {}, {"donate": (1,)})  # type: ignore[var-annotated]
    )
    planned = [given + min(p.memory.size, 80) + sum(x.spec.nbytes for x in p.fresh) for p in (unfused, fused, donated)]
    assert planned == [320, 240, 160]
    g = flnb.jit(f, donate=(1,))
    for _ in range(4):
        a, b = flnb.asarray(X), flnb.asarray(X)
        np.testing.assert_allclose(g(a, b).numpy(), X * X + 1)
        np.testing.assert_array_equal(a.numpy(), X)
    np.testing.assert_allclose(b.numpy(), X * X + 1)  # its memory is the result's


def test_m3_a_product_and_a_sum_are_one_kernel() -> None:
    program = program_of(flnb.jit(lambda x, y, z: x * y + z), X, X, X)
    assert kernels_of(program) == len(program.steps) == 1
    assert str(program) == ("kernel multiply+add(float64[10], float64[10], float64[10]) -> %1 float64[10] new")


def test_m4_forward_only_execution_of_50_layers_takes_two_buffers() -> None:
    weights = [flnb.asarray(np.eye(10)) for _ in range(50)]

    def f(x: Any) -> Any:
        for weight in weights:
            x = x @ weight
        return x

    program = program_of(flnb.jit(f), np.ones((10, 10)))
    assert program.memory.size <= 2 * (800 + 64)


def test_m10_a_sum_of_a_and_a_product_is_one_loop_without_temporaries() -> None:
    f = flnb.jit(lambda a, b, c: a + b * c)
    a, b, c = (flnb.asarray(np.full(1 << 18, n, np.float32)) for n in (1, 2, 3))
    results = [f(a, b, c) for _ in range(5)]  # which are in use, so that the next call needs memory
    (program,) = f.programs
    assert kernels_of(program) == len(program.steps) == 1
    assert program.memory.size == 0
    with flnb.record() as run:
        tracemalloc.start()
        began = perf_counter_ns()
        y = f(a, b, c)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    made = run.table("alloc")  # begins with what is there already
    assert made["requested"][made["t"] >= began].tolist() == [y.nbytes] == [results[0].nbytes] == [1 << 20]
    assert peak < 1 << 16  # NumPy's own arrays would be counted here
    assert y.numpy().min() == y.numpy().max() == 7.0


def test_m11_the_third_call_runs_no_python_and_a_new_shape_is_traced_once() -> None:
    calls = []

    @flnb.jit
    def f(x: Any) -> Any:
        calls.append(x.shape)
        return x * 2.0

    for shape in [(3,)] * 5 + [(4,)] * 5 + [(3,)] * 2:
        f(flnb.ones(shape))
    assert calls == [(3,)] * 2 + [(4,)] * 2


def test_t4_the_work_of_rewriting_grows_with_the_number_of_ops() -> None:
    """A fixed number of sweeps: twice as many ops take about twice as many calls of functions."""

    def calls(length: int) -> int:
        def f(x: Any) -> Any:
            for i in range(length):
                x = flnb.tanh(x) + flnb.sum(x * 0.5) if i % 3 else x @ x.T @ x
            return x

        g, count = flnb.jit(f), 0
        g(flnb.asarray(X[:, None]))

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(note)
        try:
            g(flnb.asarray(X[:, None]))
        finally:
            sys.setprofile(None)
        assert len(ops_of(g.programs[0])) > 3 * length
        return count

    small, large = calls(150), calls(600)
    assert large < 5 * small


@onednn
def test_t9_a_way_to_convolve_is_fixed_or_guessed_without_timing() -> None:
    expected = flnb.conv2d(*convolved(17)).numpy()
    for way in ("numpy", "nhwc", "blocked", "guess"):
        before = dict(CpuBackend.choices)
        with flnb.use_backend(CpuBackend(1, way)), flnb.record() as run:
            for _ in range(2):
                results = [flnb.conv2d(*convolved(17)).numpy() for _ in range(2)]
        assert CpuBackend.choices == before
        assert not len(run.table("choice")["t0"])
        np.testing.assert_array_equal(*results)
        np.testing.assert_allclose(results[0], expected, rtol=1e-4, atol=1e-4)


@onednn
def test_t9_ways_are_timed_once_and_again_for_another_shape_as_telemetry_shows(tmp_path: Any) -> None:
    with flnb.use_backend(CpuBackend(1)), flnb.record() as run:
        for size in (18, 19, 18, 19, 19):
            flnb.conv2d(*convolved(size))
    run.save(tmp_path / "run.flnb")
    for recorded in (run, load_run(tmp_path / "run.flnb")):
        table, strings = recorded.table("choice"), recorded.catalog.strings.items
        assert [strings[i] for i in table["name"]] == ["conv"] * 2
        assert {strings[i] for i in table["ways"]} == {"blocked, nhwc, numpy, plain"}
        made = [(strings[a], strings[b]) for a, b in zip(table["way"], table["implementation"], strict=True)]
        known = [c for shapes, c in CpuBackend.choices.items() if shapes.operands[0][0][2:] in [(18, 18), (19, 19)]]
        assert set(made) <= {(choice.way, choice.implementation) for choice in known}
        assert (table["t1"] > table["t0"]).all()
        assert "conv: the ways to compute it were timed at first calls; '" in repr(recorded)


def convolved(size: int) -> tuple[Any, Any]:
    """An image of a size that no other test has, and weights."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(1, 6, size, size)), rng.normal(size=(10, 6, 3, 3))
    return flnb.asarray(x.astype("f")), flnb.asarray(w.astype("f"))


def test_t4_a_transposed_product_is_the_product_of_the_transposes() -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    f = flnb.jit(lambda x, y: flnb.asarray((x @ y).T, copy=True))
    program = program_of(f, x, y)
    assert ops_of(program) == ["matmul"]
    np.testing.assert_array_equal(f(flnb.asarray(x), flnb.asarray(y)).numpy(), (x @ y).T)


def test_m11_an_if_on_a_value_is_an_error_with_its_line() -> None:
    f = flnb.jit(lambda x: x if x[0] > 0 else -x)
    f(flnb.asarray(X))
    with pytest.raises(RuntimeError, match=r"test_features\.py:\d+ reads the values of bool\[\]"):
        f(flnb.asarray(X))


def test_the_planned_peak_is_what_the_manager_sees() -> None:
    from flnb import models, optim

    recipe = models.get("transformer-lm")
    with flnb.use_memory_manager("caching"):
        model = recipe.build("small")
        batch = [flnb.asarray(a) for a in recipe.batch("small")]
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        @flnb.jit
        def step() -> Any:
            optimizer.zero_grad()
            loss = recipe.loss(model, *batch)
            loss.backward()
            optimizer.step()
            return loss

        for _ in range(SETTLED + 1):  # the first call runs no program
            step()
        program = next(iter(step.captured.values()))[0].program
        optimizer.zero_grad()
        before = flnb.memory.stats()["allocated"] - program.memory.size - program.scratch_bytes
        with flnb.record() as run:
            step()
        peak = run.memory.peak.allocated - before
    assert peak == pytest.approx(program.peak, rel=0.02)


def test_a_programs_memory_is_given_back_when_it_is_needed_elsewhere() -> None:
    big = np.ones(1 << 18, np.float32)  # 1 MiB

    def f(x: Any) -> Any:
        return flnb.sum(flnb.flip(x * 2.0)) + flnb.sum(flnb.flip(x * 3.0))

    device = flnb.memory.HostDevice(capacity=8 << 20)
    with flnb.use_memory_manager(Native(device)) as manager:
        x = flnb.asarray(big)
        g = flnb.jit(f, fuse=False)
        for _ in range(3):
            assert g(x).item() == 5 << 18
        (program,) = g.programs
        held = flnb.memory.stats()["allocated"]
        flnb.memory.release_cached(manager)
        assert flnb.memory.stats()["allocated"] <= held - program.memory.size
        assert g(x).item() == 5 << 18  # allocated again
        rest = [flnb.asarray(big) for _ in range(6)]  # the last one finds no room but for the program's
        assert not program.bound
        del rest
        assert g(x).item() == 5 << 18
