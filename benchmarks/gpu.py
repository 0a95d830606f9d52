"""Times of ops and copies on a GPU: `python -m benchmarks gpu`. Without one it lists what has never been measured.

Times are between two events of the device, so that launching is seen only where it takes longer than the kernels.
"""

from __future__ import annotations

import argparse
import re
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_backends.tensor.cuda.driver import default_driver
from flnb_backends.tensor.cuda.gpu import gpu_at

import flnb
from benchmarks.report import insert, markdown, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flnb_backends.tensor.cuda.gpu import Gpu

UNMEASURED = {
    "every time and GB/s, of ops, kernels and copies": "python -m benchmarks gpu",
    "values of the vendor's libraries: cuBLAS (TF32 too), cuSOLVER, cuFFT": "pytest -m gpu tests/backends/cuda",
    "expf and its like, within some ulps, and flush to zero": "pytest -m gpu tests/backends/cuda/test_whole.py",
    "memory order between blocks": "pytest -m gpu tests/backends/cuda/test_sorting.py",
    "speed against torch": "no command yet",
    "tensor cores": "no command yet: flnb.use_backend('cuda:tf32=1') asks for them",
    "CUDA graphs": "no command yet: the driver can capture streams, the backend does not",
    "NCCL": "pytest -m gpu tests/backends/cuda/test_nccl.py, with two GPUs",
    "cuDNN": "pytest -m gpu tests/backends/cuda/test_cudnn.py, with nvidia-cudnn-cu13",
}
"""Everything that only a GPU can show and that was never measured on one, with the command to run first."""
SIZE = 1 << 12
"""The number of rows of the measured arrays, and the number of elements of a row."""


def unmeasured() -> str:
    """Return a table of everything that has never been measured on a GPU."""
    return markdown([{"unmeasured": what, "to run first": command} for what, command in UNMEASURED.items()])


def cases(gpu: Gpu, n: int) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    """Yield the cases to time on n x n arrays of float32: name, bytes read and written at least, and a function."""
    driver, nbytes = gpu.driver, 4 * n * n
    x, y = (flnb.asarray(np.random.default_rng(i).random((n, n), np.float32)) for i in range(2))
    pinned, (here, there) = driver.allocate_host(nbytes), (each._data.data.ptr for each in (x, flnb.copy(y)))
    yield "copy on the device", 2 * nbytes, lambda: driver.copy(there, here, nbytes, gpu.stream())
    yield "copy from pinned memory", nbytes, lambda: driver.upload(there, pinned, nbytes, gpu.stream())
    yield "copy to pinned memory", nbytes, lambda: driver.download(pinned, here, nbytes, gpu.stream())
    for function in (flnb.add, flnb.multiply):
        yield function.__name__, 3 * nbytes, lambda f=function: f(x, y)  # type: ignore[misc]
    for function in (flnb.exp, flnb.gelu, flnb.softmax, flnb.sort):
        yield function.__name__, 2 * nbytes, lambda f=function: f(x)  # type: ignore[misc]
    yield "sum of rows", nbytes, lambda: flnb.sum(x, axis=1)
    yield "sum of columns", nbytes, lambda: flnb.sum(x, axis=0)
    yield "transposed copy", 2 * nbytes, lambda: flnb.copy(x.T)
    yield "matmul", 3 * nbytes, lambda: x @ y
    images, filters = x.reshape((-1, 16, 8, 8)), flnb.asarray(np.ones((16, 16, 3, 3), np.float32))
    yield "conv2d 3 x 3, 16 channels", 2 * nbytes, lambda: flnb.conv2d(images, filters, padding=1)
    driver.synchronize()
    driver.free_host(pinned)


def seconds(gpu: Gpu, call: Callable[[], Any], calls: int) -> float:
    """Return the device's seconds per call of ``call``, measured over ``calls`` calls in a row."""
    begin, end = (gpu.driver.event(timed=True) for _ in range(2))
    gpu.driver.record(begin, gpu.stream())
    for _ in range(calls):
        call()
    gpu.driver.record(end, gpu.stream())
    gpu.driver.await_event(end)
    found = gpu.driver.seconds(begin, end) / calls
    gpu.driver.destroy_event(begin)
    gpu.driver.destroy_event(end)
    return found


def measure(n: int = SIZE, calls: int = 20, rounds: int = 5) -> list[dict[str, Any]]:
    """Time all cases; returns a row of the table for each: the median of the rounds in microseconds, and GB/s."""
    gpu, rows = gpu_at(), []
    with flnb.use_backend("cuda"), gpu.driver.using(0):
        for name, nbytes, call in cases(gpu, n):
            seconds(gpu, call, 2)  # compiles kernels, reserves memory
            took = median(seconds(gpu, call, calls) for _ in range(rounds))
            rate = f"{nbytes / took / 1e9:.1f}" if took else "-"
            rows.append({"op": name, "shape": f"{n} x {n}", "us": round(took * 1e6, 1), "GB/s": rate})
    return rows


def main(argv: list[str]) -> int:
    """Print the list of everything that was never measured on a GPU; if there is a GPU, run the benchmark on it.

    The results are printed, and stored under the device's name. Return the exit status, 0.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu")
    parser.add_argument("--quick", action="store_true", help="small arrays, store nothing")
    options = parser.parse_args(argv)
    print(unmeasured())
    try:
        driver = default_driver()
    except RuntimeError as error:
        print(error)
        return 0
    rows = measure(*(64, 2, 1) if options.quick else ())
    name = driver.name()
    print(name, markdown(rows), sep="\n\n")
    if driver.emulated:
        print("Times of the emulated device mean nothing: not stored.")
    elif not options.quick:
        slug = re.sub(r"\W+", "-", name).strip("-").lower()
        write(f"gpu-{slug}", rows, vars(options) | {"device": name, "driver": driver.version()})
        insert(f"gpu-{slug}", f"## {name} (`python -m benchmarks gpu`)\n\n{markdown(rows)}")
    return 0
