"""Runs a list of kernel calls (a segment) in one call from Python, and records the time before and after each call.

The overhead of each kernel call is some 30 nanoseconds, most of it for reading the clock. A kernel that has several
parts is computed by as many threads, those of the OpenMP library that oneDNN has loaded.
"""

from __future__ import annotations

import ctypes
import time
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from flnb.graph.emitter import Scalar
from flnb_backends.native.instructions import Code
from flnb_backends.native.llvm import compiler
from flnb_backends.native.nests import Kernel, divided, generator, kernel
from flnb_backends.native.routines import Routine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.graph.nests import Nest


def _part() -> Code:
    """Return the code of ``void part(void *job)``, which computes one thread's share of a kernel call's range.

    OpenMP runs the function on each thread, perhaps on fewer threads than were requested. ``job`` points to two
    addresses: that of the call's row of five words (see `_text`), and that of the ``team``, OpenMP's functions.
    """
    code = Code("part", "ptr %job")
    call, team = (code.pointer(code.word("%job", i)) for i in range(2))
    counts = (code.add(f"call i32 {code.pointer(code.word(team, i))}()") for i in (1, 2))
    number, size = (Scalar(code, count, "i").to("q") for count in counts)
    begin, end = (code.word(call, i) for i in (2, 3))
    low, high = (begin + (end - begin) * n / size for n in (number, number + 1))
    _runs(code, call, low, high, number)
    return code


def _runs(code: Code, call: str, begin: Scalar, end: Scalar, part: Scalar) -> None:
    """Emit a call of a kernel for the range from ``begin`` to before ``end``.

    ``call`` is the address of the call's row of five words (see `_text`), ``part`` is the number of the thread.
    """
    function, arrays = (code.pointer(code.word(call, i)) for i in range(2))
    code.lines.append(f"call void {function}(ptr {arrays}, i64 {begin.value}, i64 {end.value}, i64 {part.value})")


def _text() -> str:
    """Return the LLVM IR of ``void run(calls, count, stamps, team)``, the function that runs a segment.

    A call is a row of five words: the addresses of a kernel and of its array of pointers, the begin and end of its
    range, and the number of threads among which the range is divided.
    """
    code, now, job = Code("run", "ptr %calls, i64 %count, ptr %stamps, ptr %team"), "%now", "%job"
    code.variables += [f"{name} = alloca [2 x i64]" for name in (now, job)]
    code.declarations.add("declare i32 @clock_gettime(i32, ptr)")

    def stamp(number: str) -> None:
        with code.when(code.add("icmp ne ptr %stamps, null")):
            code.add(f"call i32 @clock_gettime(i32 {time.CLOCK_MONOTONIC}, ptr {now})")
            code.store(code.word(now, 0) * 1_000_000_000 + code.word(now, 1), code.element("%stamps", "q", number))

    code.lines.append(f"store ptr %team, ptr {code.element(job, 'q', '1')}")
    stamp("0")
    with code.loop("0", "%count") as i:
        call = code.element("%calls", "q", i, 5)
        begin, end, parts = (code.word(call, j) for j in (2, 3, 4))
        several = parts > 1
        with code.when(str(several.value)):
            code.lines.append(f"store ptr {call}, ptr {job}")
            threads = parts.to("i").value
            code.lines.append(
                f"call void {code.pointer(code.word('%team', 0))}(ptr @part, ptr {job}, i32 {threads}, i32 0)"
            )
        with code.when(str((~several).value)):
            _runs(code, call, begin, end, Scalar(code, "0", "q"))
        stamp(code.add(f"add i64 {i}, 1"))
    return code.text(others=[_part()])


@cache
def _run() -> Callable[[int, int, int, int], None]:
    """Return the machine-code function that runs a segment's kernels, which is compiled at the first call."""
    address = compiler().address("run", "", _text)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(address)


class Segment:
    """A list of kernel calls that one native call runs in order.

    A segment stores addresses only: the caller must not free the arrays and the scratch memory before the last run.

    Args:
        calls: for each call the kernel or routine, the addresses of its arrays, and the address of scratch memory,
            which calls may share.
        team: the addresses of OpenMP's functions ``GOMP_parallel``, ``omp_get_thread_num`` and
            ``omp_get_num_threads``; needed if a kernel has several parts.

    Attributes:
        pointers: the addresses of all calls' arrays, in order; they may be replaced before each run.
        parts: for each call, the number of threads among which it is divided.
        stamps: times of the last run, in nanoseconds of the clock of `time.perf_counter_ns`, int64: its beginning, and
            the end of each call.
    """

    def __init__(self, calls: Sequence[tuple[Kernel | Routine, Sequence[int], int]], team: Sequence[int] = ()):
        self.stamps = np.zeros(len(calls) + 1, np.int64)
        self.parts = [kernel.parts for kernel, _, _ in calls]
        counts = [len(arrays) + 1 for _, arrays, _ in calls]
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.pointers = np.array([p for _, arrays, scratch in calls for p in (*arrays, scratch)], np.uint64)
        first = self.pointers.ctypes.data
        rows = [
            (kernel.address, first + 8 * int(start), kernel.begin, kernel.extent, kernel.parts)
            for (kernel, _, _), start in zip(calls, self._starts, strict=False)
        ]
        self._calls = np.array(rows, np.uint64).reshape(len(calls), 5)
        self._team = np.array(team, np.uint64)
        self._arguments = self._calls.ctypes.data, len(calls), self.stamps.ctypes.data, self._team.ctypes.data
        self._run = _run()
        self._failed = np.zeros(1, np.uint64)
        self._routines = {each.begin: each for each, *_ in calls if isinstance(each, Routine)}
        for routine in self._routines.values():
            routine.report_to(self._failed.ctypes.data)

    def run(self) -> None:
        """Run all calls, with Python's global interpreter lock released.

        Raises:
            OneDnnError: a call of oneDNN failed.
        """
        self._run(*self._arguments)
        if self._routines and self._failed[0]:
            failed = self._routines[int(self._failed[0])]
            self._failed[0] = 0
            raise failed.error()

    def place(self, call: int, position: int) -> int:
        """Return the index in `pointers` of an array's address, given the positions of its call and of the array.

        Raises:
            IndexError: there is no such call, or it has no such array.
        """
        if not 0 <= call < len(self._calls):
            raise IndexError(f"got call number {call}, expected 0 to {len(self._calls) - 1}")
        count = int(self._starts[call + 1] - self._starts[call]) - 1
        if not 0 <= position < count:
            raise IndexError(f"got array number {position} of call {call}, expected 0 to {count - 1}")
        return int(self._starts[call]) + position


class Native:
    """The compiler of loop nests that a CPU backend offers to programs (`flnb.interface.TensorBackend.kernels`).

    Args:
        threads: among how many threads kernels are divided.
        team: the addresses of OpenMP's functions (`Segment`); without them, kernels run on one thread.

    Attributes:
        mixes: whether one nest may have reductions over its inner space and others over its outer space.
        most_joined: the largest number of independent nests that one kernel may compute.
    """

    mixes, most_joined = True, 1

    def __init__(self, threads: int = 1, team: Sequence[int] = ()) -> None:
        self.threads, self.team = threads if team else 1, team

    def kernel(self, nest: Nest) -> Kernel:
        """Return the kernel of a nest, which is compiled at the first call with an equal nest."""
        return divided(kernel(nest), nest, self.threads)

    def Segment(self, calls: Sequence[tuple[Kernel | Routine, Sequence[int], int]]) -> Segment:
        """Make a `Segment` of calls: tuples of a kernel or routine, its arrays' addresses, and its scratch memory."""
        return Segment(calls, self.team)

    @staticmethod
    def source(nest: Nest) -> str:
        """Return the LLVM IR from which the kernel of a nest is compiled."""
        return generator(nest).text()
