"""An emulated CUDA device for tests without a GPU: the driver API over host memory, with kernels compiled by g++.

Streams run as late and as far out of order as the API allows, the threads of kernels one at a time in random order.
Every access of a kernel to device or shared memory is checked for bounds, uninitialized values and races. The times of
the emulated device are meaningless. Ctrl-C ends a kernel that hangs, provided that it accesses memory or waits at a
barrier. Accesses to ``__device__`` variables are not checked.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from flnb_backends.tensor.cuda.compiler import CompileError, kernel_names
from flnb_backends.tensor.cuda.driver import Driver, use_driver

from flnb.testing.cuda.building import build_device, build_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CompileError", "EmulatedDevice", "Traffic", "build_kernels", "emulate", "emulated_device", "kernel_names",
]  # fmt: skip

Order: TypeAlias = Literal["eager", "lazy", "random"]
ORDERS: tuple[Order, ...] = get_args(Order)


class Traffic(NamedTuple):
    """Memory traffic of a kernel's warps, counted by the rules of the CUDA C Programming Guide.

    Attributes:
        requests: the number of loads and stores of device memory; one that all threads of a warp execute counts once.
        sectors: the number of 32-byte sectors that the requests touch; 4 for a request of contiguous float32 numbers.
        shared_requests: the number of loads and stores of shared memory, counted in the same way.
        conflicts: the number of extra passes of shared requests, needed where threads read different words of one bank.
    """

    requests: int
    sectors: int
    shared_requests: int
    conflicts: int

    @property
    def sectors_per_request(self) -> float:
        """Return sectors divided by requests; NaN if there are no requests."""
        return self.sectors / self.requests if self.requests else float("nan")


class EmulatedDriver(Driver):
    """The driver API of the emulated device; kernels are compiled by g++.

    Attributes:
        checked: whether kernels compiled from now on have each of their memory accesses checked.
    """

    checked = True
    emulated = "random", 0

    def __init__(self, path: str) -> None:
        super().__init__(path)
        library = ctypes.CDLL(path)
        self._tell, self._count = library.flnb_device_block, library.flnb_device_count
        self._count.restype = ctypes.c_long
        self._tell.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

    def build(self, text: str, device: int = 0) -> bytes:
        """Compile kernels by g++; returns an image for `load`."""
        return build_kernels(text, self.checked)

    def culprit(self) -> str:
        """Return the latest error that the checks have reported, "" if there is none."""
        reports = emulated_device().reports
        return reports[-1] if reports else ""

    def tell_unused(self, address: int, nbytes: int) -> None:
        """Mark a range of memory as part of no block: the checks report accesses to it until `tell_used` is called."""
        self._tell(address, nbytes, -1, None)

    def counted(self, kernel: str) -> tuple[int, int, int, int]:
        """Return a kernel's numbers of requests, sectors, shared requests and conflicts, as `Traffic` defines them."""
        names = "requests of", "sectors of", "shared requests of", "conflicts of"
        one, two, three, four = (int(self._count(f"{name} {kernel}".encode())) for name in names)
        return one, two, three, four

    def tell_free(self, address: int, nbytes: int, streams: Sequence[int]) -> None:
        """Mark a range of memory as a freed block, which ``streams`` have used: the checks report later accesses to it.

        Accesses to a block that several streams have used are not reported.
        """
        if len(streams) == 1:
            self._tell(address, nbytes, 0, streams[0])

    def tell_used(self, address: int, nbytes: int, stream: int) -> None:
        """Mark a range of memory as a new block: the checks report later work of ``stream`` that reads old values."""
        self._tell(address, nbytes, 1, stream)


class EmulatedDevice:
    """The emulated device of this process: sets the order of its work, and returns counts and the errors it has found.

    Attributes:
        driver: the device's driver API.
    """

    def __init__(self) -> None:
        path = str(build_device())
        self.driver = EmulatedDriver(path)
        self._library = ctypes.CDLL(path)
        self._library.flnb_device_report.restype = ctypes.c_char_p
        self._library.flnb_device_count.restype = ctypes.c_long
        self._library.flnb_device_begin.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_int]
        self._library.flnb_device_capacity.argtypes = [ctypes.c_size_t]

    def begin(self, order: Order = "random", seed: int = 0, checks: bool = True) -> None:
        """Clear all reports, counts and errors, and set the order in which streams and threads run from now on.

        Args:
            order: "eager" runs work as soon as it is queued, "lazy" only when something waits for it, "random" at any
                time between, with blocks and threads in random order.
            seed: the seed of the random order.
            checks: whether memory accesses are checked.
        """
        self.driver.failed = False
        self._library.flnb_device_begin(ORDERS.index(order), seed, checks)
        self.driver.emulated = (order, seed)

    @property
    def reports(self) -> list[str]:
        """Return the errors that the checks have found since `begin`, without duplicates."""
        count = self._library.flnb_device_reports()
        return [self._library.flnb_device_report(i).decode() for i in range(count)]

    def count(self, what: str) -> int:
        """Return the number of calls of the function ``what`` since `begin`, or a sum such as "bytes to the device"."""
        return int(self._library.flnb_device_count(what.encode()))

    def traffic(self, kernel: str) -> Traffic:
        """Return the memory traffic of all launches of a kernel since `begin`; it is counted only while checks are on.

        >>> from flnb.testing.cuda import Traffic
        >>> Traffic(requests=2, sectors=8, shared_requests=0, conflicts=0).sectors_per_request
        4.0
        """
        return Traffic(*self.driver.counted(kernel))

    def set_capacity(self, nbytes: int) -> None:
        """Set the bytes of memory of each device; 0 restores the default."""
        self._library.flnb_device_capacity(nbytes)


def emulate(order: Order = "random", seed: int = 0, checked: bool = True) -> EmulatedDevice:
    """Use an emulated CUDA device in this process, in place of GPUs, for the backend ``"cuda"`` and for CuPy.

    Call it before CuPy is imported. Results, orders and counts are real; times are not, and the emulated device is
    slow. The first call on a machine downloads CuPy's source and compiles for some time; later calls load the result.

    Args:
        order: when work runs and in which order threads run: "eager", "lazy" or "random"; see `EmulatedDevice.begin`.
        seed: the seed of a random order.
        checked: whether each memory access of a kernel is checked, which makes kernels some ten times slower.

    Returns:
        The device, whose `reports` are the errors that its checks have found.

    Raises:
        FileNotFoundError: g++ is not installed.
        RuntimeError: CuPy is imported already, or a package of the extra "cuda-emulated" is not installed.

    >>> import flnb
    >>> from flnb.testing.cuda import emulate
    >>> device = emulate("random", seed=1)  # doctest: +SKIP
    >>> with flnb.use_backend("cuda"):  # doctest: +SKIP
    ...     print(flnb.ones(3).sum().item(), device.reports)
    3.0 []
    """
    from flnb.testing.cuda.wheel import install_cupy

    device = emulated_device()
    install_cupy()
    use_driver(device.driver)
    device.driver.checked = checked
    device.begin(order, seed)
    return device


@cache
def emulated_device() -> EmulatedDevice:
    """Return the emulated device of this process, compiled at the first call on a machine.

    Raises:
        FileNotFoundError: g++ is not installed.
    """
    return EmulatedDevice()
