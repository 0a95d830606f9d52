"""The cuda backend's part in programs of `flnb.jit`: compiles kernels of loop nests, and launches segments of them."""

from __future__ import annotations

from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from flnb_backends.tensor.cuda.nests import THREADS, written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.graph.nests import Nest
    from flnb_backends.tensor.cuda.gpu import Gpu


class Kernel(NamedTuple):
    """A kernel on a device: its handle, the number of blocks to launch, its name, and its scratch memory (0 bytes)."""

    handle: int
    blocks: int
    name: str
    scratch: int = 0


class Segment:
    """Kernels to launch in order in the current stream.

    A segment stores addresses only: the caller must not free the kernels' arrays before the last run.

    Attributes:
        pointers: the addresses of all kernels' arrays, in order, which may be replaced before each run.
        stamps: times of the last run, in nanoseconds of the clock of `time.perf_counter_ns`, int64: its beginning, and
            the moment after each launch was queued.
    """

    def __init__(self, gpu: Gpu, calls: Sequence[tuple[Kernel, Sequence[int], int]]) -> None:
        self._gpu, self._kernels = gpu, [kernel for kernel, _, _ in calls]
        self.stamps = np.zeros(len(calls) + 1, np.int64)
        self._starts = np.cumsum([0, *[len(arrays) for _, arrays, _ in calls]]).tolist()
        self.pointers = np.array([p for _, arrays, _ in calls for p in arrays], np.uint64)

    def run(self) -> None:
        """Launch all kernels.

        Raises:
            DriverError: the device reports an error.
        """
        gpu, starts = self._gpu, self._starts
        before = gpu.enter()
        try:
            stream, pointers = gpu.stream(), self.pointers.tolist()
            self.stamps[0] = clock()
            for i, kernel in enumerate(self._kernels):
                gpu.driver.recent.append(kernel.name)
                arrays = pointers[starts[i] : starts[i + 1]]
                gpu.driver.launch(kernel.handle, (kernel.blocks,), (THREADS,), arrays, stream)
                self.stamps[i + 1] = clock()
        finally:
            gpu.leave(before)

    def place(self, call: int, position: int) -> int:
        """Return the index in `pointers` of an array's address, given the positions of its call and of the array."""
        return int(self._starts[call]) + position


class Kernels:
    """The compiler of loop nests for one device (`flnb.interface.TensorBackend.kernels`).

    Attributes:
        mixes: whether one nest may have reductions over its inner space and others over its outer space.
        most_joined: the largest number of independent nests that one launch may compute.
    """

    mixes: ClassVar[bool] = False
    most_joined: ClassVar[int] = 16

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._known: dict[str, Kernel] = {}

    def kernel(self, *nests: Nest) -> Kernel:
        """Return the kernel that computes these independent nests; it is compiled at the first call with equal nests.

        Raises:
            CompileError: the kernel does not compile.
        """
        key = repr(nests)  # as tuples the constants 0.0 and -0.0 would be equal
        found = self._known.get(key)
        if found is None:
            made = written(nests)
            handle = self._gpu.launcher.loaded(made.text, made.name)
            found = self._known[key] = Kernel(handle, made.blocks, made.name)
        return found

    def Segment(self, calls: Sequence[tuple[Kernel, Sequence[int], int]]) -> Segment:
        """Make a segment of calls: tuples of a kernel, the addresses of its arrays, and an unused number."""
        return Segment(self._gpu, calls)

    @staticmethod
    def source(nest: Nest) -> str:
        """Return the CUDA C from which the kernel of a nest is compiled."""
        return written([nest]).text
