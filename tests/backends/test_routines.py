"""Routines: primitives of oneDNN run among the kernels of a program, and compute what methods compute."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import nn, optim
from flnb.backends import CpuBackend, DeferredBackend
from flnb.graph.calls import Call, KernelCalls

pytest.importorskip("llvmlite")
pytest.importorskip("cffi")
from flnb_backends.native.onednn import OneDnnError
from flnb_backends.native.primitives import prepare
from flnb_backends.native.routines import EXECUTE, Routine
from flnb_backends.native.runner import Segment
from flnb_backends.tensor.cpu import USES, Choice, _here

RNG = np.random.default_rng(0)
PLACING = ((4, 4), (2, 2), (1, 1), 1)
"""Stride, padding, dilation and groups."""

FAILS = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2, ctypes.c_int, ctypes.c_void_p)(lambda *_: 5)
FAILING = ctypes.cast(FAILS, ctypes.c_void_p).value
"""A function in place of oneDNN's that executes a primitive: it returns a status."""


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def routine(way: str) -> tuple[Routine, list[Any]]:
    """A convolution in one of the ways, and its arrays."""
    arrays = [floats(2, 3, 32, 32), floats(16, 3, 11, 11), np.empty((2, 16, 7, 7), np.float32)]
    laid = [(x.shape, tuple(step // 4 for step in x.strides)) for x in arrays]
    return Routine(prepare("conv", way, laid, *PLACING), 1), arrays


def segment(made: Routine, arrays: list[Any], scratch: Any) -> Segment:
    return Segment([(made, [x.ctypes.data for x in arrays], scratch.ctypes.data)])


@pytest.mark.parametrize("way", ["plain", "nhwc", "blocked"])
def test_a_routine_computes_what_the_primitive_computes(way: str) -> None:
    made, arrays = routine(way)
    memory = np.full(made.scratch + 8, 255, np.uint8)
    run = segment(made, arrays, memory[4:])
    x, w, y = arrays
    for _ in range(2):
        y.fill(np.nan)
        run.run()
        expected = flnb.backends.NumpyBackend().conv2d(x, w, *PLACING)
        np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)
        x += 1.0
    assert run.stamps[1] > run.stamps[0] > 0
    assert set(memory[:4]) == {255}


def test_a_status_becomes_an_error_that_names_the_op_and_its_operands() -> None:
    made, arrays = routine("blocked")
    memory = np.empty(made.scratch, np.uint8)
    run = segment(made, arrays, memory)
    executes = int(made.block[EXECUTE])
    made.block[EXECUTE] = FAILING
    with pytest.raises(OneDnnError, match=r"conv of float32\[2, 3, 32, 32\].*runtime_error"):
        run.run()
    made.block[EXECUTE] = executes
    run.run()
    assert np.isfinite(arrays[-1]).all()


@pytest.mark.parametrize("way", ["plain", "nhwc", "blocked"])
def test_a_routine_runs_alone_on_arrays_that_fit(way: str) -> None:
    """Images may have their channels last; an array that is not aligned, or the result's memory, is not touched."""
    made, (x, w, y) = routine(way)
    expected = flnb.backends.NumpyBackend().conv2d(x, w, *PLACING)
    scratch = np.empty(made.scratch, np.uint8)
    assert made.run((x, w, y), scratch)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)
    moved = np.zeros(w.nbytes + 1, np.uint8)[1:].view("f").reshape(w.shape)
    for arrays in ((x, moved, y), (x, w, x.reshape(-1)[-y.size :].reshape(y.shape))):
        before = x.copy()
        assert not made.run(arrays, scratch)
        assert (x == before).all()
    if way == "plain":  # oneDNN has only reference code for images like the following
        return
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    laid = [(a.shape, tuple(step // 4 for step in a.strides)) for a in (last, w, y)]
    y.fill(np.nan)
    assert Routine(prepare("conv", way, laid, *PLACING), 1).run((last, w, y), np.empty(1 << 20, np.uint8))
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-4)


def test_a_primitive_that_is_used_often_becomes_a_routine_with_the_same_results() -> None:
    backend, x, w = CpuBackend(1, "blocked"), floats(2, 4, 9, 9), floats(8, 4, 3, 3)
    first, *others = (backend.conv2d(x, w, (1, 1), (1, 1), (1, 1), 1) for _ in range(USES + 3))
    assert all((y == first).all() for y in others)
    ready = next(reversed(_here.ready.values()))
    assert type(ready) is Routine
    ready.block[EXECUTE] = FAILING
    with pytest.raises(OneDnnError, match=r"conv of float32\[2, 4, 9, 9\].*runtime_error"):
        backend.conv2d(x, w, (1, 1), (1, 1), (1, 1), 1)
    _here.ready.clear()
    shared = floats(1, 4, 9, 9)
    expected = backend.conv2d(shared.copy(), w[:4], (1, 1), (1, 1), (1, 1), 1)
    for _ in range(USES + 3):
        out = shared.copy()
        backend.conv2d(out, w[:4], (1, 1), (1, 1), (1, 1), 1, out)  # the image's own memory: by NumPy
        np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-4)


class Network(nn.Module):
    """Two convolutions, whose programs have kernels between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm(8), nn.Conv2d(8, 4, 1)

    def forward(self, x: Any) -> Any:
        return self.last(flnb.relu(self.norm(self.first(x))))


def training(backend: Any, jit: bool = False) -> tuple[Any, list[float], list[Any]]:
    """The function that trains, the losses of eight steps, and the parameters after them."""
    with flnb.use_backend(backend):
        flnb.manual_seed(0)
        net = Network()
        optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        x = flnb.asarray(np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32))

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        run = flnb.jit(step) if jit else step
        losses = [run(x).item() for _ in range(8)]
        return run, losses, [parameter.data.numpy().copy() for parameter in net.parameters()]


def called(program: Any) -> list[str]:
    """The ops that methods of the backend compute."""
    return [step.value.op.name for step in program.steps if isinstance(step, Call) and step.value.op]


def test_programs_call_no_method_for_convolutions_once_their_way_is_chosen() -> None:
    _, expected, known = training("numpy")
    made, losses, parameters = training(CpuBackend(prefer="blocked"), jit=True)
    (program,) = made.programs
    assert not [name for name in called(program) if name.startswith("conv")]
    assert any(isinstance(step, KernelCalls) and len(step.events) > 5 for step in program.steps)
    assert program.release()
    for each in (losses, training(DeferredBackend(CpuBackend(prefer="blocked")))[1]):
        np.testing.assert_allclose(each, expected, rtol=1e-4)
    for a, b in zip(parameters, known, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_a_recording_has_an_event_of_each_routine() -> None:
    with flnb.use_backend(CpuBackend(prefer="blocked")):
        net, x = Network(), flnb.asarray(floats(2, 3, 8, 8))

        def step(x: Any) -> None:
            net.zero_grad()
            (net(x) ** 2).mean().backward()

        captured = flnb.jit(step)
        for _ in range(3):
            captured(x)
        with flnb.record() as run:
            captured(x)
        with flnb.record() as eager:
            step(x)
    counts = [{row.key[0]: row.count for row in each.ops if row.key[0].startswith("conv")} for each in (run, eager)]
    gradients = {"conv2d_weight_grad": 2, "conv2d_input_grad": 1}
    assert counts == [{"conv2d": 2} | gradients, {"conv2d_bias": 2} | gradients]


def test_a_method_that_the_users_class_overrides_is_called_in_each_run() -> None:
    calls: Counter[str] = Counter()

    class Telling(CpuBackend):
        def conv2d(self, *arguments: Any, **keywords: Any) -> Any:
            calls["conv2d"] += 1
            return super().conv2d(*arguments, **keywords)

    made, *_ = training(Telling(prefer="blocked"), jit=True)
    (program,) = made.programs
    assert called(program).count("conv2d") == 2
    assert calls["conv2d"] == 2 * 8


def test_a_forked_child_runs_a_program_with_routines() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "2 routines\n"), done.stderr


FORKED = """
import os, signal
import numpy as np
import flnb
from flnb.backends import CpuBackend
x, w = (flnb.asarray(np.ones(shape, "f")) for shape in ((4, 16, 28, 28), (16, 16, 3, 3)))
def convolve(x, w):
    return flnb.conv2d(flnb.relu(flnb.conv2d(x, w, padding=1)) * 2.0, w, padding=1) + 1.0
with flnb.use_backend(CpuBackend(2, "blocked")):
    captured = flnb.jit(convolve)
    y = [captured(x, w) for _ in range(4)][-1].numpy()
    print(len(captured.programs[0]._routines), "routines", flush=True)
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if all((captured(x, w).numpy() == y).all() for _ in range(4)) else 3)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_routine_that_needs_more_scratch_memory_than_the_method_does_not_write_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    way = "plain"

    class Chosen(dict[Any, Any]):
        def get(self, *_: Any) -> Choice:
            return Choice(way, "", {})

    def compute(x: Any, w: Any) -> Any:
        before = flnb.conv2d(x, w, padding=1)
        total = flnb.sum(flnb.cumulative_sum(flnb.cumulative_sum(x[:, :4], axis=1), axis=2))
        after = flnb.conv2d(x, w * (1.0 + 0.0 * total), padding=1)
        return flnb.sum(flnb.cumulative_sum(before, axis=1) + flnb.cumulative_sum(after, axis=1), axis=(1,))

    monkeypatch.setattr(CpuBackend, "choices", Chosen())
    x, w = flnb.asarray(floats(8, 16, 64, 64)), flnb.asarray(floats(16, 16, 3, 3))
    with flnb.use_backend("numpy"):
        expected = compute(x, w).numpy()
    with flnb.use_backend(CpuBackend(1)):
        captured = flnb.jit(compute)
        captured(x, w), captured(x, w)
        way = "nhwc"  # as if another thread had measured other times
        y = [captured(x, w) for _ in range(3)][-1]
    (program,) = captured.programs
    lent = program.memory.scratch
    assert any(lent[i][1] < routine.scratch for i, routine in program._routines.items())
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-3, atol=1e-2)
