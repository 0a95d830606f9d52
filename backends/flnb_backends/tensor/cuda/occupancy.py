"""What a kernel takes of a multiprocessor, as the driver reports it: registers, shared memory, blocks that fit."""

from __future__ import annotations

from ctypes import byref, c_int
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from flnb_backends.tensor.cuda.driver import Driver

__all__ = ["Needs", "needs"]

REGISTERS, SHARED = 4, 1
"""Numbers in ``CUfunction_attribute``."""
THREADS_OF_ALL, REGISTERS_OF_ALL, SHARED_OF_ALL, RESERVED, BLOCKS_OF_ALL = 39, 82, 81, 111, 106
"""Numbers in ``CUdevice_attribute``: what a multiprocessor has, and the shared memory that each block takes besides."""
WARP, PARTS, GRAIN = 32, 4, 256
"""Threads of a warp, parts of a multiprocessor's registers, and how many registers a warp gets at a time."""


class Needs(NamedTuple):
    """What a launch of a kernel takes; the last fields of `flnb_telemetry.device_words.Kernel`.

    Attributes:
        registers: 32-bit registers of each thread, -1 if the driver does not tell.
        static: bytes of statically shared memory of each block, -1 if the driver does not tell.
        resident: how many blocks a multiprocessor holds at once, -1 if the driver does not tell.
        most: how many threads a multiprocessor holds at most, whatever they run.
        limit: what is used up so that not one more block fits: "threads", "registers", "shared memory", "blocks".
    """

    registers: int
    static: int
    resident: int
    most: int
    limit: str


def needs(driver: Driver, kernel: int, threads: int, shared: int) -> Needs:
    """Ask the driver what a kernel takes, in blocks of so many threads with so many bytes of dynamically shared memory.

    Never raises: what the driver does not tell, as an emulated device does not tell registers, is -1.
    """
    registers = _told(driver, "cuFuncGetAttribute", REGISTERS, kernel)
    static = _told(driver, "cuFuncGetAttribute", SHARED, kernel)
    resident = _told(driver, "cuOccupancyMaxActiveBlocksPerMultiprocessor", kernel, threads, shared)
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


def _told(driver: Driver, call: str, *arguments: Any) -> int:
    """The number that a call finds, -1 where it reports an error."""
    found = c_int()
    return -1 if driver.try_call(call, byref(found), *arguments) else found.value
