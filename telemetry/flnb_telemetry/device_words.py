"""The schema of device events in recordings: kinds of events, tables of kernels and devices, their form in files."""

from __future__ import annotations

from typing import Any, NamedTuple

DEVICE, LAUNCH, COPY, RAN, EVENT_RECORDED, EVENT_AWAITED, HOST_WAIT, ADDRESSES, TRAFFIC = range(29, 38)
ROUTES = ("", "to the device", "to the host", "on a device", "between devices")
TO_DEVICE, TO_HOST, ON_DEVICE, BETWEEN = 1, 2, 3, 4
"""The direction of a copy, an index of `ROUTES`. For a copy between devices, the event's context is the destination."""
TOOLS = {
    "analysis": ("flnb_telemetry.analysis.devices", "devices"),
    "live": ("flnb_telemetry.live.devices", "LiveDevices"),
    "section": ("flnb_telemetry.live.devices", "section"),
    "programs": ("flnb_telemetry.live.programs", "LivePrograms"),
    "finished": ("flnb_telemetry.live.programs", "finished"),
}
"""Modules and names of analyses and live views of devices, which are imported only if there are device events."""
KINDS: tuple[tuple[Any, ...], ...] = (
    (DEVICE, "device", ("t", "info")),  # info: an id of `intern.devices`, valid from now on
    # calls of the host that queue work in a stream, which the context names; seq numbers them within this process
    (LAUNCH, "launch", ("t0", "t1", "seq", "", "", "", "context"), "", "kernel"),
    (COPY, "copy", ("t0", "t1", "seq", "nbytes", "pinned", "", "context"), "route"),
    # t0, t1: when the device ran task `seq`, ns on the host's clock, to within `bound` (-1: the device is emulated, and
    # only the order of its end times has a meaning); seen: when the host read these times
    (RAN, "ran", ("t0", "t1", "seq", "bound", "seen")),
    # event: a number that is new each time an event is recorded, 0 if its recording was not seen
    (EVENT_RECORDED, "event_recorded", ("t", "seq", "event", "", "", "", "context")),
    (EVENT_AWAITED, "event_awaited", ("t", "seq", "event", "", "", "", "context")),
    # the host was blocked until a stream, an event in it, or all streams of a device (stream -1) were done
    (HOST_WAIT, "host_wait", ("t0", "t1", "event", "", "", "", "context")),
    # addresses among the arguments of launch or copy `seq`; 0 for none
    (ADDRESSES, "addresses", ("t", "seq", *(f"address{i}" for i in range(5)))),
    # memory traffic of all launches of a kernel so far, as counted by an emulated device
    (TRAFFIC, "traffic", ("t", "requests", "sectors", "shared_requests", "conflicts"), "", "name"),
)
"""The arguments of `schema.Kind` for each kind of event."""


class Kernel(NamedTuple):
    """A kernel and its launch configuration.

    Attributes:
        name: the kernel's name.
        grid: the extents of the grid, in blocks; empty if unknown.
        block: the extents of a block, in threads; empty if unknown.
        shared: the bytes of dynamic shared memory of each block.
        registers: the number of 32-bit registers of each thread; -1 if unknown, also for the following numbers.
        static: the bytes of static shared memory of each block.
        resident: the number of blocks that a multiprocessor runs at once.
        most: the largest number of threads that a multiprocessor can hold.
        limit: the resource that limits `resident`, such as "registers"; "" if unknown.
    """

    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared: int = 0
    registers: int = -1
    static: int = -1
    resident: int = -1
    most: int = -1
    limit: str = ""


class DeviceInfo(NamedTuple):
    """A device: its place ("cuda:0") and name; for an emulated device, the order of tasks and the random seed."""

    place: str
    name: str
    emulated: bool = False
    order: str = ""
    seed: int = 0


def _kernel(item: list[Any]) -> Kernel:
    name, grid, block, *rest = item
    return Kernel(name, tuple(grid), tuple(block), *rest)


TABLES: dict[str, tuple[Any, Any, Any]] = {
    "kernels": (Kernel(""), (str, [int], [int], *[int] * 5, str), _kernel),
    "devices": (DeviceInfo("", ""), (str, str, bool, str, int), DeviceInfo._make),
}
"""Tables of interned items, by name: the first item, the JSON types of an item's fields, and its decoder."""
