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

from flnb_backends.native.llvm import compiler
from flnb_backends.native.nests import Kernel, divided, generator, kernel
from flnb_backends.native.routines import Routine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.graph.nests import Nest

__all__ = ["Native", "Segment"]

_TEXT = f"""
%call = type {{ ptr, ptr, i64, i64, i64 }}
%team = type {{ ptr, ptr, ptr }}
%job = type {{ ptr, ptr }}
declare i32 @clock_gettime(i32, ptr)

define internal void @stamp(ptr %stamps, i64 %number, ptr %now) alwaysinline {{
  %wanted = icmp ne ptr %stamps, null
  br i1 %wanted, label %take, label %done
take:
  %error = call i32 @clock_gettime(i32 {time.CLOCK_MONOTONIC}, ptr %now)
  %seconds = load i64, ptr %now
  %rest = getelementptr i64, ptr %now, i64 1
  %nanoseconds = load i64, ptr %rest
  %whole = mul i64 %seconds, 1000000000
  %time = add i64 %whole, %nanoseconds
  %place = getelementptr i64, ptr %stamps, i64 %number
  store i64 %time, ptr %place
  br label %done
done:
  ret void
}}

define internal void @part(ptr %job) {{
  %each = load ptr, ptr %job
  %t = getelementptr %job, ptr %job, i64 0, i32 1
  %team = load ptr, ptr %t
  %n = getelementptr %team, ptr %team, i64 0, i32 1
  %m = getelementptr %team, ptr %team, i64 0, i32 2
  %number_of = load ptr, ptr %n
  %size_of = load ptr, ptr %m
  %number32 = call i32 %number_of()
  %size32 = call i32 %size_of()
  %number = sext i32 %number32 to i64
  %size = sext i32 %size32 to i64
  %call = load %call, ptr %each
  %function = extractvalue %call %call, 0
  %arrays = extractvalue %call %call, 1
  %begin = extractvalue %call %call, 2
  %end = extractvalue %call %call, 3
  %count = sub i64 %end, %begin
  %following = add i64 %number, 1
  %a = mul i64 %count, %number
  %b = mul i64 %count, %following
  %c = sdiv i64 %a, %size
  %d = sdiv i64 %b, %size
  %low = add i64 %begin, %c
  %high = add i64 %begin, %d
  call void %function(ptr %arrays, i64 %low, i64 %high, i64 %number)
  ret void
}}

define void @run(ptr %calls, i64 %count, ptr %stamps, ptr %team) {{
entry:
  %now = alloca [2 x i64]
  %job = alloca %job
  %t = getelementptr %job, ptr %job, i64 0, i32 1
  store ptr %team, ptr %t
  call void @stamp(ptr %stamps, i64 0, ptr %now)
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %after ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %body, label %done
body:
  %each = getelementptr %call, ptr %calls, i64 %i
  %call = load %call, ptr %each
  %parts = extractvalue %call %call, 4
  %several = icmp sgt i64 %parts, 1
  br i1 %several, label %share, label %alone
share:
  store ptr %each, ptr %job
  %parallel = load ptr, ptr %team
  %threads = trunc i64 %parts to i32
  call void %parallel(ptr @part, ptr %job, i32 %threads, i32 0)
  br label %after
alone:
  %function = extractvalue %call %call, 0
  %arrays = extractvalue %call %call, 1
  %begin = extractvalue %call %call, 2
  %end = extractvalue %call %call, 3
  call void %function(ptr %arrays, i64 %begin, i64 %end, i64 0)
  br label %after
after:
  %next = add i64 %i, 1
  call void @stamp(ptr %stamps, i64 %next, ptr %now)
  br label %head
done:
  ret void
}}
"""
"""LLVM IR of the function that runs a segment. A call is a row of five words: the addresses of a kernel and of its
array of pointers, the begin and end of its range, and the number of threads among which this is divided. OpenMP may run
fewer; each computes its share of the range."""


@cache
def _run() -> Callable[[int, int, int, int], None]:
    """Return the machine-code function that runs a segment's kernels, which is compiled at the first call."""
    address = compiler().address("run", _TEXT, lambda: _TEXT)
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
            raise IndexError(f"got call {call} of {len(self._calls)}, expected 0 to {len(self._calls) - 1}")
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
