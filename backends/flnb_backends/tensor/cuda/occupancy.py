"""Occupancy of a kernel launch as the driver reports it: registers, shared memory, blocks per multiprocessor."""

from __future__ import annotations

from ctypes import byref, c_int
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from flnb_backends.tensor.cuda.driver import Driver

REGISTERS, SHARED = 4, 1
"""Numbers in ``CUfunction_attribute``."""
THREADS_OF_ALL, REGISTERS_OF_ALL, SHARED_OF_ALL, RESERVED, BLOCKS_OF_ALL = 39, 82, 81, 111, 106
"""Numbers in ``CUdevice_attribute``: limits per multiprocessor; RESERVED is the shared memory reserved per block."""
WARP, PARTS, GRAIN = 32, 4, 256
"""Threads of a warp, register files of a multiprocessor, and the unit in which a warp is allocated registers."""


class Needs(NamedTuple):
    """The resources of a kernel launch: the values of the last fields of `flnb_telemetry.device_words.Kernel`.

    Attributes:
        registers: 32-bit registers of each thread, -1 if unknown.
        static: bytes of static shared memory of each block, -1 if unknown.
        resident: blocks that a multiprocessor runs at once, -1 if unknown.
        most: the most threads that a multiprocessor can hold, whatever the kernel; -1 if unknown.
        limit: the resource that limits `resident`: "threads", "registers", "shared memory" or "blocks"; "" if unknown.
    """

    registers: int
    static: int
    resident: int
    most: int
    limit: str


def needs(driver: Driver, kernel: int, threads: int, shared: int) -> Needs:
    """Return the resources of a launch with ``threads`` per block and ``shared`` bytes of dynamic shared memory.

    This function never raises; a number that the driver does not report is -1, such as an emulated device's registers.
    """
    registers = _query(driver, "cuFuncGetAttribute", REGISTERS, kernel)
    static = _query(driver, "cuFuncGetAttribute", SHARED, kernel)
    resident = _query(driver, "cuOccupancyMaxActiveBlocksPerMultiprocessor", kernel, threads, shared)
    if resident < 0:
        return Needs(registers, static, -1, -1, "")
    device = driver.current()
    have = {
        number: driver.attribute(number, device)
        for number in (THREADS_OF_ALL, REGISTERS_OF_ALL, SHARED_OF_ALL, RESERVED, BLOCKS_OF_ALL)
    }
    warps, blocks = -(-threads // WARP), resident + 1
    each = -(-max(registers, 1) * WARP // GRAIN) * GRAIN  # of a warp
    full = {
        "threads": blocks * warps * WARP > have[THREADS_OF_ALL],
        "registers": blocks * warps > PARTS * (have[REGISTERS_OF_ALL] // PARTS // each),
        "shared memory": blocks * (static + shared + have[RESERVED]) > have[SHARED_OF_ALL],
        "blocks": blocks > have[BLOCKS_OF_ALL],
    }
    limit = next((what for what, over in full.items() if over), "")
    return Needs(registers, static, resident, have[THREADS_OF_ALL], limit)


def _query(driver: Driver, call: str, *arguments: Any) -> int:
    """Return the number that a driver call reports, or -1 if the call fails."""
    found = c_int()
    return -1 if driver.try_call(call, byref(found), *arguments) else found.value
