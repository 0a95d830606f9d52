"""What recordings say of devices: kinds of events, the names behind their ids, and the form of these in files."""

from __future__ import annotations

from typing import Any, NamedTuple

DEVICE, LAUNCH, COPY, RAN, EVENT_RECORDED, EVENT_AWAITED, HOST_WAIT, ADDRESSES, TRAFFIC = range(29, 38)
ROUTES = ("", "to the device", "to the host", "on a device", "between devices")
TO_DEVICE, TO_HOST, ON_DEVICE, BETWEEN = 1, 2, 3, 4
"""From where to where a copy goes that the device makes; on two devices its context names the one that it goes to."""
TOOLS = {
    "analysis": ("flnb_telemetry.analysis.devices", "devices"),
    "live": ("flnb_telemetry.livedevices", "LiveDevices"),
    "section": ("flnb_telemetry.livedevices", "section"),
}
"""What makes views of these events, imported when there are any: module and name."""
KINDS: tuple[tuple[Any, ...], ...] = (
    (DEVICE, "device", ("t", "info")),  # an id of `intern.devices`: what the device is, from now on
    # what the host asked of a device's stream, which the context names; seq numbers all of that in this process
    (LAUNCH, "launch", ("t0", "t1", "seq", "", "", "", "context"), "", "kernel"),
    (COPY, "copy", ("t0", "t1", "seq", "nbytes", "pinned", "", "context"), "route"),
    # t0, t1: when the device did what has this number, on the host's clock give or take `bound` (-1: the device is
    # emulated, and its times tell nothing but the order in which things ended); seen: when the host learned it
    (RAN, "ran", ("t0", "t1", "seq", "bound", "seen")),
    # event: its number, one for each time that an event is recorded, 0 for one whose recording was not seen
    (EVENT_RECORDED, "event_recorded", ("t", "seq", "event", "", "", "", "context")),
    (EVENT_AWAITED, "event_awaited", ("t", "seq", "event", "", "", "", "context")),
    # the program stood still for a stream, for an event in it, or for all streams of a device (stream -1)
    (HOST_WAIT, "host_wait", ("t0", "t1", "event", "", "", "", "context")),
    # of arguments of the launch or copy with this number; 0 where it has fewer
    (ADDRESSES, "addresses", ("t", "seq", *(f"address{i}" for i in range(5)))),
    # what the warps of all launches of a kernel have asked of memory so far, as an emulated device counts it
    (TRAFFIC, "traffic", ("t", "requests", "sectors", "shared_requests", "conflicts"), "", "name"),
)
"""Arguments of `schema.Kind`."""


class Kernel(NamedTuple):
    """A kernel as it was launched: numbers of blocks and of threads in each, and bytes of dynamically shared memory.

    What is known of its code: `registers` of a thread, bytes of `static` shared memory of a block, how many blocks are
    `resident` in a multiprocessor at once, how many threads it holds at `most`, -1 each if unknown; and what is used up
    (`limit`: "registers") so that no further block fits, "" if unknown.
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
    """A device: its place ("cuda:0") and name; if it is emulated, how its work is ordered and by which seed."""

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
"""Tables of these names: the first item, the form of an item in JSON, and what makes an item of that."""
