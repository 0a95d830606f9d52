"""Time and resources of kernels: `python -m benchmarks kernels`; ``--cuda`` or ``--cpu`` selects one half.

On the CPU, compiled loop nests are timed beside torch's kernels (`benchmarks.nests`). For each CUDA
kernel, its resources are computed, and how many of its threads a multiprocessor holds.

NVRTC compiles every source, with float32 for types that the source leaves open. NVRTC's assembler reports registers,
shared memory and spills. NVIDIA's `cuda_occupancy.h`, compiled by g++, computes the occupancy. No device is needed.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from flnb_backends.tensor.cuda.compiler import compile_kernels, include_options, kernel_names
from flnb_backends.tensor.cuda.launcher import FOLDER, THREADS, kernel_text
from flnb_backends.tensor.cuda.sorting import PIECE

from benchmarks import nests
from benchmarks.report import insert, markdown, write


class Limits(NamedTuple):
    """The resources of a multiprocessor of an architecture, from the table in the CUDA C Programming Guide."""

    major: int
    minor: int
    threads: int
    shared: int
    shared_of_block: int
    reserved_of_block: int


ARCHITECTURES = {
    "sm_75": Limits(7, 5, 1024, 64 << 10, 64 << 10, 0),
    "sm_80": Limits(8, 0, 2048, 164 << 10, 163 << 10, 1 << 10),
    "sm_90": Limits(9, 0, 2048, 228 << 10, 227 << 10, 1 << 10),
    "sm_100": Limits(10, 0, 2048, 228 << 10, 227 << 10, 1 << 10),
    "sm_120": Limits(12, 0, 1536, 100 << 10, 99 << 10, 1 << 10),
}
OTHER_TYPES = {"I": "int64", "K": "uint32"}
"""The types that are no floating-point numbers: indices, and keys as wide as an element."""
LAUNCHED = {"add_before": (1024, 0), "sort_pieces": (THREADS, PIECE * 8)}
"""Threads of a block and bytes of dynamically shared memory, where they are not `THREADS` and 0."""
PROGRAM = """
#include <cstdio>
#include <cuda_occupancy.h>
int main() {
  int major, minor, threads_of_all, shared_of_all, shared_of_block, reserved, registers, shared, threads, dynamic;
  while (scanf("%d %d %d %d %d %d %d %d %d %d", &major, &minor, &threads_of_all, &shared_of_all, &shared_of_block,
               &reserved, &registers, &shared, &threads, &dynamic) == 10) {
    cudaOccDeviceProp device;
    device.computeMajor = major, device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024, device.maxThreadsPerMultiprocessor = threads_of_all, device.warpSize = 32;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536, device.numSms = 1;
    device.sharedMemPerBlock = 48 << 10, device.sharedMemPerMultiprocessor = shared_of_all;
    device.sharedMemPerBlockOptin = shared_of_block, device.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.sharedSizeBytes = shared;
    cudaOccDeviceState state;
    cudaOccResult result;
    cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, dynamic);
    printf("%d\\n", error ? -1 : result.activeBlocksPerMultiprocessor);
  }
}
"""


def _code(text: str) -> str:
    """Return CUDA C source without its comments, in one line."""
    return " ".join(re.sub(r"//[^\n]*", "", text).split())


def text_of(file: str, **types: str) -> str:
    """Return the CUDA C source of a file of kernels, with a dtype for each type name that the file does not define.

    ``types`` has dtypes by these names; for a floating-point type that it lacks, float32 is used.
    """
    code = _code(kernel_text(file, ()))
    names = sorted(set(re.findall(r"\b[A-Z]\b", code)) - set(re.findall(r"class ([A-Z])\b", code)))
    known = OTHER_TYPES | types
    return kernel_text(file, tuple((name, known.get(name, "float32")) for name in names))


def digest(file: str) -> str:
    """Return a hash of a file's code, which changes when the code changes."""
    return hashlib.blake2b(_code(text_of(file)).encode(), digest_size=8).hexdigest()


def files() -> list[str]:
    """Return the names of all files of kernels."""
    return sorted(path.stem for path in FOLDER.glob("*.cu"))


def active_blocks(cases: list[tuple[int, ...]]) -> list[int]:
    """Ask `cuda_occupancy.h` how many blocks a multiprocessor holds.

    Args:
        cases: a tuple of ints for each case: the fields of `Limits`, followed by the registers of a thread, the bytes
            of static shared memory of a block, the threads of a block, and the bytes of dynamic shared memory of a
            block.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "occupancy")
        command = ["g++", "-x", "c++", "-", "-w", *include_options(), "-o", str(program)]
        subprocess.run(command, input=PROGRAM, text=True, check=True)
        given = "\n".join(" ".join(map(str, case)) for case in cases)
        found = subprocess.run([program], input=given, capture_output=True, text=True, check=True).stdout
    return [int(line) for line in found.split()]


def measure() -> list[dict[str, Any]]:
    """Compile all CUDA kernels; returns a row with the resources of each kernel on each architecture."""
    rows, cases = [], []
    for file in files():
        text = text_of(file)
        for arch, limits in ARCHITECTURES.items():
            usage = compile_kernels(text, arch).usage
            for name in kernel_names(text):
                used, (threads, dynamic) = usage[name], LAUNCHED.get(name, (THREADS, 0))
                cases.append((*limits, used.registers, used.shared, threads, dynamic))
                rows.append({"file": file, "digest": digest(file), "kernel": name, "arch": arch, **used._asdict()})
                rows[-1] |= {"threads": threads, "dynamic": dynamic, "most threads": limits.threads}
    for row, blocks in zip(rows, active_blocks(cases), strict=True):
        row["occupancy"] = round(blocks * row["threads"] / row.pop("most threads"), 3)
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the rows of each kernel into one row of the printed table.

    A number that is equal for all architectures is shown once.
    """
    lines = []
    for file, kernel in dict.fromkeys((row["file"], row["kernel"]) for row in rows):
        own = [row for row in rows if (row["file"], row["kernel"]) == (file, kernel)]

        def shown(what: str, own: list[dict[str, Any]] = own) -> str:
            values = [f"{row[what]:.0%}" if what == "occupancy" else str(row[what]) for row in own]
            return values[0] if len(set(values)) == 1 else " / ".join(values)

        columns = {"registers": "registers", "shared memory": "shared", "spills": "spilled", "occupancy": "occupancy"}
        lines.append({"file": file, "kernel": kernel} | {title: shown(what) for title, what in columns.items()})
    return lines


def main(argv: list[str]) -> int:
    """Measure loop nests, compile all CUDA kernels, and print and store both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks kernels")
    parser.add_argument("--cpu", action="store_true", help="compiled loop nests alone")
    parser.add_argument("--cuda", action="store_true", help="CUDA kernels alone")
    parser.add_argument("--rounds", type=int, default=15, help="how often each contestant takes its turn")
    parser.add_argument("--seconds", type=float, default=0.1, help="how long a turn takes, about")
    parser.add_argument("--clock", default="wall", choices=("wall", "processor"), help="processor: on a busy machine")
    parser.add_argument("--quick", action="store_true", help="store nothing, for CI")
    options = parser.parse_args(argv)
    if options.quick:
        options.rounds, options.seconds = 2, 0.01
    if options.cpu or not options.cuda:
        cpu(options)
    return 0 if options.cpu else cuda(options)


def cpu(options: argparse.Namespace) -> None:
    """Time loop nests beside torch's kernels, and print and store the table."""
    if find_spec("cffi") is None or find_spec("llvmlite") is None:
        print("the extra cpu is not installed here: no loop nests to measure")
        return
    rows, libraries = nests.measured(options.rounds, options.seconds, options.clock)
    page = markdown(nests.summary(rows))
    print(f"{page}\n\n{libraries}; {options.rounds} rounds, {options.clock} clock")
    write("nests", rows, vars(options) | {"libraries": libraries})
    if not options.quick:
        note = (
            "A million elements of float32 on one thread, the least and most of the ratios of "
            f"{options.rounds} rounds ({options.clock} clock). {libraries}."
        )
        insert("nests", f"## Loop nests on the CPU (`python -m benchmarks kernels --cpu`)\n\n{note}\n\n{page}")


def cuda(options: argparse.Namespace) -> int:
    """Compile all CUDA kernels, and print and store the table."""
    rows = measure()
    page = markdown(summary(rows))
    print(page)
    write("kernels", rows, vars(options))
    if not options.quick:
        architectures = " / ".join(ARCHITECTURES)
        title = "## CUDA kernels (`python -m benchmarks kernels`)"
        note = (
            f"For {architectures} where these differ, compiled for float32: registers of a thread, bytes of static "
            "shared memory and of spills, and theoretical occupancy. Not measured: no kernel ran on a GPU."
        )
        insert("kernels", f"{title}\n\n{note}\n\n{page}")
    return 0
