"""Kernels on several threads: the same bits, memory of each thread's own, and one thread in a forked child."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import nn

pytest.importorskip("llvmlite")
pytest.importorskip("cffi")
from flnb_backends.native.nests import kernel
from flnb_backends.native.onednn import library
from flnb_backends.native.runner import Segment

from flnb.graph.calls import KernelCalls
from flnb.graph.nests import Nest
from tests.native.oracle import access, load, step

RNG = np.random.default_rng(0)
X, Y, BIAS = (RNG.standard_normal(shape, np.float32) for shape in ((513, 300), (513, 300), (300,)))
IMAGES = RNG.standard_normal((4, 16, 33, 33), np.float32)
NORM = nn.BatchNorm(16)


def normalized(x: Any, y: Any, bias: Any) -> Any:
    """Batch norm and relu of images, forward and backward."""
    images = flnb.Variable(flnb.asarray(IMAGES))
    NORM.zero_grad()
    made = flnb.relu(NORM(images))
    made.backward(flnb.asarray(IMAGES[::-1].copy()))
    return made.detach(), images.grad


FUNCTIONS: dict[str, Any] = {
    "elementwise": lambda x, y, bias: flnb.gelu(x * y + bias),
    "rows": lambda x, y, bias: flnb.softmax(x + bias) * flnb.layer_norm(y, 300, bias, bias),
    "columns": lambda x, y, bias: flnb.sum(x * y, axis=0),
    "transposed": lambda x, y, bias: x.T + flnb.exp(y.T),
    "channels": normalized,
}


def computed(function: Any, threads: int) -> tuple[list[Any], list[int]]:
    """The results of a captured function, and the numbers of threads that compute its kernels."""
    with flnb.use_backend(f"cpu:threads={threads}"):
        captured = flnb.jit(function)
        arrays = [flnb.asarray(x) for x in (X, Y, BIAS)]
        made = [captured(*arrays) for _ in range(4)][-1]
        (program,) = captured.programs
    parts = [count for each in program.steps if isinstance(each, KernelCalls) for count in each.segment.parts]
    return [x.numpy() for x in (made if isinstance(made, tuple) else (made,))], parts


@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_threads_compute_the_same_bits_as_one(name: str) -> None:
    (one, alone), (two, together) = (computed(FUNCTIONS[name], threads) for threads in (1, 2))
    assert set(alone) == {1}
    assert 2 in together
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


def test_each_thread_has_scratch_memory_of_its_own() -> None:
    x, y = X, np.zeros_like(X)
    way = access(x, (300,), (1,))
    steps = (load(0), step("exp", 0), step("sum", 1, over="inner"), step("divide", 1, 2))
    found = kernel(Nest((513,), (300,), (way, way), steps, ((3, 1),)))
    assert found.scratch
    scratch = np.full(3 * found.scratch + 64, 0xAB, np.uint8)
    address = -(-scratch.ctypes.data // 64) * 64
    Segment([(found._replace(parts=3), [x.ctypes.data, y.ctypes.data], address)] * 20, library().team).run()
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-5)
    end = address - scratch.ctypes.data + 3 * found.scratch
    assert (scratch[end:] == 0xAB).all()


FORKED = """
import os, signal
import numpy as np
import flnb
x = flnb.asarray(np.linspace(-3, 3, 200_000, dtype="f"))
with flnb.use_backend("cpu:threads=2"):
    captured = flnb.jit(flnb.gelu)
    y = [captured(x) for _ in range(4)][-1].numpy()
    print(captured.programs[0].steps[0].segment.parts, flush=True)
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if all((captured(x).numpy() == y).all() for _ in range(4)) else 3)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_computes_on_one_thread() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "[2]\n"), done.stderr


@pytest.mark.parametrize("given", [{}, {"GOMP_SPINCOUNT": "70"}, {"OMP_WAIT_POLICY": "active"}], ids=str)
def test_idle_threads_sleep_soon_unless_the_user_says_otherwise(given: dict[str, str]) -> None:
    own = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    text = "import os; before = dict(os.environ); import flnb, flnb_backends.native.locating as l; l.locate()\n"
    run = subprocess.run(
        [sys.executable, "-c", f"{text}assert before == dict(os.environ); print(l.SPINS)"],
        env=own | given | {"OMP_DISPLAY_ENV": "verbose"}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    (spins,) = set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", run.stderr))
    assert spins == given.get("GOMP_SPINCOUNT", spins if given else run.stdout.strip())
    assert not given or spins != run.stdout.strip()
