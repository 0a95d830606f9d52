"""A CUDA device made of host memory: the documented driver API, and kernels compiled by g++ and run thread by thread.

Streams run as late and as far out of order as the API allows, threads in random order, and accesses of kernels to
device and shared memory are checked. What only a GPU can tell, such as any time, this device does not tell. Ctrl-C
ends a kernel without end, if it touches memory or waits. Unchecked: `__device__` variables.
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
    """What the warps of a kernel asked of memory, by the rules of the CUDA C Programming Guide.

    Attributes:
        requests: loads and stores of device memory, one for all lanes of a warp that come to a place in the code.
        sectors: pieces of 32 bytes in them; contiguous float32 has 4 a request.
        shared_requests: those of shared memory.
        conflicts: turns that they take beyond one because lanes need different words of one bank.
    """

    requests: int
    sectors: int
    shared_requests: int
    conflicts: int

    @property
    def sectors_per_request(self) -> float:
        """Sectors divided by requests; NaN without requests."""
        return self.sectors / self.requests if self.requests else float("nan")


class EmulatedDriver(Driver):
    """The driver API over the emulated device, for which kernels are compiled by g++.

    Attributes:
        checked: whether kernels that are compiled from now on call the device's checks at each access.
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
        """Return what the checks have found last."""
        reports = emulated_device().reports
        return reports[-1] if reports else ""

    def tell_unused(self, address: int, nbytes: int) -> None:
        """Have accesses to memory reported that is of no block yet."""
        self._tell(address, nbytes, -1, None)

    def counted(self, kernel: str) -> tuple[int, int, int, int]:
        """Requests, sectors, shared requests and conflicts of a kernel, as of `Traffic`."""
        names = "requests of", "sectors of", "shared requests of", "conflicts of"
        one, two, three, four = (int(self._count(f"{name} {kernel}".encode())) for name in names)
        return one, two, three, four

    def tell_free(self, address: int, nbytes: int, streams: Sequence[int]) -> None:
        """Have accesses to a freed block reported, which one stream alone has used: of several it has no order yet."""
        if len(streams) == 1:
            self._tell(address, nbytes, 0, streams[0])

    def tell_used(self, address: int, nbytes: int, stream: int) -> None:
        """Have accesses to earlier content of a block reported from here on."""
        self._tell(address, nbytes, 1, stream)


class EmulatedDevice:
    """The emulated device of this process: its driver, how it schedules, and what its checks have found.

    Attributes:
        driver: the driver API over it.
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
        """Forget all reports, counts and errors, and choose how streams and threads are ordered from now on.

        Args:
            order: "eager" runs work when it is queued, "lazy" when something waits for it, "random" at any time
                between, with threads and blocks in random order.
            seed: of the random order; equal seeds give equal orders.
            checks: whether accesses are checked.
        """
        self.driver.failed = False
        self._library.flnb_device_begin(ORDERS.index(order), seed, checks)
        self.driver.emulated = (order, seed)

    @property
    def reports(self) -> list[str]:
        """What the checks have found since `begin`, each once."""
        count = self._library.flnb_device_reports()
        return [self._library.flnb_device_report(i).decode() for i in range(count)]

    def count(self, what: str) -> int:
        """How often a function of the API was called since `begin`, or a sum: "launches", "bytes to the device"..."""
        return int(self._library.flnb_device_count(what.encode()))

    def traffic(self, kernel: str) -> Traffic:
        """What a kernel's launches asked of memory since `begin`, with checks on.

        >>> from flnb.testing.cuda import Traffic
        >>> Traffic(requests=2, sectors=8, shared_requests=0, conflicts=0).sectors_per_request
        4.0
        """
        return Traffic(*self.driver.counted(kernel))

    def set_capacity(self, nbytes: int) -> None:
        """Set how much memory each device has; 0 is the default."""
        self._library.flnb_device_capacity(nbytes)


def emulate(order: Order = "random", seed: int = 0, checked: bool = True) -> EmulatedDevice:
    """Make the emulated device the GPUs of this process, for the backend ``"cuda"`` and for CuPy; returns it.

    It must come before CuPy is imported. Numbers, orders and counts are real; times are not, and it is slow.

    Args:
        order: when work runs, and in which order threads do, as of `EmulatedDevice.begin`.
        seed: of a random order.
        checked: whether each access of kernels is checked, which makes them some ten times slower.

    Raises:
        FileNotFoundError: there is no g++.
        RuntimeError: CuPy is imported already, or what it needs here (extra "cuda-emulated") is not installed.

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
    """The emulated device, which is built at the first call.

    Raises:
        FileNotFoundError: there is no g++.
    """
    return EmulatedDevice()
