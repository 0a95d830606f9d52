"""`flnb.jit` on the cuda backend: programs with kernels that are generated, on the emulated device in every order."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

import flnb
from flnb import nn, optim
from tests.graph.test_random_programs import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.testing.cuda import EmulatedDevice

OPTIMIZERS = {
    "Adam": lambda parameters: optim.Adam(parameters, lr=0.01),
    "SGD": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def training(make: Callable[[Any], Any], jit: bool, fuse: bool = True) -> tuple[Callable[[], Any], nn.Module]:
    """A step of training an MLP with layer norm and GELU, on a batch that stays, and the model."""
    flnb.manual_seed(0)
    rng = np.random.default_rng(0)
    layers = [(nn.Linear(m, 24), nn.LayerNorm(24), nn.GELU()) for m in (16, 24)]
    model = nn.Sequential(*[layer for block in layers for layer in block], nn.Linear(24, 4))
    optimizer = make(model.parameters())
    x = flnb.asarray(rng.standard_normal((8, 16)).astype(np.float32))
    y = flnb.asarray(rng.integers(0, 4, 8))

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = flnb.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = flnb.jit(step, fuse=fuse) if jit else step
    return lambda: run(x, y), model


def trained(name: str, jit: bool, fuse: bool = True) -> list[Any]:
    """Losses of some steps, and the parameters after them."""
    with flnb.use_backend("cuda"):
        step, model = training(OPTIMIZERS[name], jit, fuse)
        losses = [step().detach() for _ in range(5)]
        return [x.numpy() for x in (*losses, *[p.detach() for p in model.parameters()])]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_program_trains_as_the_function_does_in_every_order(name: str, cuda: EmulatedDevice) -> None:
    wanted, first = trained(name, jit=False), None
    for fuse, order, seed in ((False, "random", 1), (True, "eager", 0), (True, "lazy", 0), (True, "random", 2)):
        cuda.begin(order, seed)  # type: ignore[arg-type]
        got = trained(name, jit=True, fuse=fuse)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)
        if fuse:
            first = first or got
            assert all(np.array_equal(a, b) for a, b in zip(got, first, strict=True)), (order, seed)
        assert cuda.reports == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_has_at_most_half_of_eagers_launches(
    name: str, cuda: EmulatedDevice, capsys: pytest.CaptureFixture[str]
) -> None:
    """All launches that a recording has: kernels of flnb's own, CuPy's, and cuBLAS's products of matrices."""
    counts = []
    with flnb.use_backend("cuda"):
        for jit in (False, True):
            step, _ = training(OPTIMIZERS[name], jit)
            for _ in range(3):
                step()
            with flnb.record() as run:
                step()
            counts.append(Counter(run.catalog.kernels.items[i].name for i in run.table("launch")["kernel"].tolist()))
    eager, jitted = (sum(each.values()) for each in counts)
    assert counts[0]["cupy matmul"] == counts[1]["cupy matmul"] == 8
    assert len(run.table("kernel")["t0"]) == sum(n for k, n in counts[1].items() if k.startswith("fused"))
    assert 2 * jitted <= eager
    with capsys.disabled():
        print(f"\n{name}: {eager} launches a step at once, {jitted} as a program")


def test_each_launch_is_an_event_with_the_ops_that_it_computes(cuda: EmulatedDevice) -> None:
    with flnb.use_backend("cuda"):
        step, _ = training(OPTIMIZERS["SGD"], jit=True)
        for _ in range(3):
            step()
        with flnb.record() as run:
            step()
    kernels, ops = run.table("kernel"), run.table("op")
    assert kernels["ops"].sum() == (ops["estimated"] == 1).sum() > 3 * len(kernels["t0"])
    names = {row.key[0]: row.count for row in run.ops}
    assert names["erf"] == 2
    assert names["matmul"] == 8
    assert {row.key[0] for row in run.ops.by("phase")} >= {"forward", "backward", "optimizer"}


@pytest.mark.parametrize("seed", [*range(10), 332])
def test_random_programs_give_what_numpy_gives(seed: int, cuda: EmulatedDevice) -> None:
    """Views, in-place writes, broadcasts and reductions over any axes."""
    program = Program(seed, 14)

    def results(run: Any, runs: int) -> list[list[Any]]:
        kept, found = flnb.asarray(program.kept.copy()), []
        for i in range(runs):
            made = run(*[flnb.asarray(x + i) for x in program.given], kept=kept, seed=seed)
            found.append([x.numpy().copy() for x in made] + [kept.numpy().copy()])
        return found

    with flnb.use_backend("numpy"):
        wanted = results(program, 3)
    with flnb.use_backend("cuda"):
        got = results(flnb.jit(program.__call__), 3)
    tolerance = 1e-4 if program.dtype is np.float32 else 1e-9
    for known, made in zip(wanted, got, strict=True):
        for a, b in zip(known, made, strict=True):
            assert a.dtype == b.dtype
            scale = max(1.0, float(np.abs(np.nan_to_num(a, posinf=0, neginf=0)).max(initial=0.0)))
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * scale)


def test_methods_of_a_users_class_are_called_as_often(cuda: EmulatedDevice) -> None:
    from flnb_backends.tensor.cuda.backend import CudaBackend

    class Counting(CudaBackend):
        calls: ClassVar[Counter[str]] = Counter()

        def add(self, a: Any, b: Any, out: Any = None) -> Any:
            self.calls["add"] += 1
            return super().add(a, b, out)  # type: ignore[misc]

        def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
            self.calls["matmul"] += 1
            return super().matmul(a, b, out)

    found = []
    with flnb.use_backend(Counting):
        for jit in (False, True):
            step, _ = training(OPTIMIZERS["Adam"], jit)
            for _ in range(3):
                step()
            Counting.calls.clear()
            step()
            found.append(dict(Counting.calls))
    assert found[0] == found[1]
    assert found[0]["add"] > 10


def test_programs_of_two_streams_have_memory_of_their_own(cuda: EmulatedDevice) -> None:
    f = flnb.jit(lambda x: flnb.sum(flnb.exp(x) * 2.0, axis=-1) + 1.0)
    with flnb.use_backend("cuda") as backend:
        x = flnb.asarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(4, 16))
        found = []
        for _ in range(3):
            with backend.stream() as stream:
                found.append(f(x))
            found.append(f(x))
        backend.wait_for(stream)
        assert len(f.programs) == 2
        for y in found:
            np.testing.assert_allclose(y.numpy(), (np.exp(x.numpy()) * 2).sum(-1) + 1, rtol=1e-5)


def test_memory_is_the_active_managers_and_is_given_back(cuda: EmulatedDevice) -> None:
    from flnb_backends.memory.caching import Caching
    from flnb_backends.memory.cuda import CudaDevice

    with flnb.use_backend("cuda"), flnb.use_memory_manager(Caching(CudaDevice())) as manager:
        f = flnb.jit(lambda x: flnb.sum(flnb.matmul(flnb.exp(x), x) * 2.0))
        x = flnb.ones((32, 32))
        values = [f(x).item() for _ in range(3)]
        held = flnb.memory.stats()["allocated"]
        assert f.programs[0].release()
        assert flnb.memory.stats()["allocated"] <= held - f.programs[0].memory.size
        assert f(x).item() == values[0] == values[2]
        assert manager.stats()["live"] > 0


def test_nvrtc_compiles_what_is_generated(cuda: EmulatedDevice) -> None:
    if find_spec("nvidia") is None:
        pytest.skip("NVRTC is not installed")
    from flnb_backends.tensor.cuda.compiler import compile_kernels, kernel_names

    def f(x: Any, n: Any) -> Any:
        y = flnb.softmax(flnb.where(x > 0.0, flnb.tanh(x), -flnb.inf), axis=-1)
        counts = flnb.sum(n // 3 + (n << 2) % 5, axis=0)
        return y, flnb.max(y, axis=0), counts, flnb.any(x > 1.0), flnb.erf(y.astype("float64")) / 3.0, abs(-n)

    with flnb.use_backend("cuda"):
        program, model = flnb.jit(f), training(OPTIMIZERS["Adam"], jit=False)[1]
        trainer = flnb.jit(lambda x: flnb.sum(model(x)))
        for _ in range(2):
            program(flnb.ones((3, 40)), flnb.asarray(np.arange(12).reshape(4, 3)))
            trainer(flnb.ones((8, 16)))
    texts = [*flnb.graph.source(program).values(), *flnb.graph.source(trainer).values()]
    assert len(texts) > 6
    for text in texts:
        usage = compile_kernels(text, "sm_90").usage
        assert set(usage) == set(kernel_names(text))
        assert all(used.spilled == 0 for used in usage.values())


W = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def over_two_devices(host: str, other: str) -> Callable[[Any], Any]:
    """A function of which a part runs on another device than the active one, with weights on both."""
    here = flnb.asarray(W)
    with flnb.use_backend(other):
        there = flnb.asarray(W.T.copy())

    def f(x: Any) -> Any:
        h = flnb.tanh(x @ here) * 2.0
        sent = h.to(other)
        with flnb.use_backend(other):
            sent = flnb.softmax(sent @ there, axis=-1) + 1.0
        return flnb.sum(sent.to(host), axis=0) * h[0]

    return f


@pytest.mark.parametrize(("host", "other"), [("numpy", "cuda"), ("cpu", "cuda"), ("cuda", "cuda:1"), ("cuda", "numpy")])
def test_t11_one_jitted_function_over_two_devices_has_two_transfers(
    host: str, other: str, cuda: EmulatedDevice
) -> None:
    if "cpu" in (host, other):
        pytest.importorskip("llvmlite")
    with flnb.use_backend(host):
        f = over_two_devices(host, other)
        g = flnb.jit(f)
        for _ in range(2):  # at once, and captured: numbers are copied to where they are constants
            g(flnb.asarray(W))
        for order, seed in (("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)):
            cuda.begin(order, seed)  # type: ignore[arg-type]
            x = flnb.asarray(W + seed)
            with flnb.record() as run:
                got = g(x)
            np.testing.assert_allclose(got.numpy(), f(x).numpy(), rtol=1e-4, atol=1e-5)
            assert len(run.table("copy")["t0"]) == 2
            assert cuda.reports == []
        (program,) = g.programs
        assert str(program).count("move(") == 2
        assert len(program.sites) == 2


def test_arguments_and_results_of_two_devices_are_those_of_the_call(cuda: EmulatedDevice) -> None:
    with flnb.use_backend("cuda"):
        total = flnb.zeros(3)

    @flnb.jit
    def f(x: Any, y: Any) -> Any:
        moved = x.to("cuda")
        with flnb.use_backend("cuda"):
            assert moved.to("cuda") is moved
            flnb.add(total, moved * y, out=total)
            return moved + y, total * 2.0

    with flnb.use_backend("numpy"):
        for i in range(4):
            with flnb.use_backend("cuda"):
                y = flnb.full(3, float(i))
            a, b = f(flnb.full(3, 2.0), y)
            assert a.tolist() == [2.0 + i] * 3
            assert b.tolist() == [4.0 * sum(range(i + 1))] * 3
    assert total.tolist() == [12.0] * 3


def test_a_tensor_of_another_device_is_an_error_as_without_jit(cuda: EmulatedDevice) -> None:
    with flnb.use_backend("cuda"):
        y = flnb.ones(3)
    f = flnb.jit(lambda x: x + y)
    with flnb.use_backend("numpy"):
        for _ in range(2):
            with pytest.raises(TypeError, match=r"add: the tensors have .* convert them with \.to\("):
                f(flnb.ones(3))
