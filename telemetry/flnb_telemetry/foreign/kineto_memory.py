"""Allocations and frees in traces of PyTorch's profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.foreign.json_stream import amount, integer, text

if TYPE_CHECKING:
    from flnb_telemetry.foreign.kineto import _Trace
    from flnb_telemetry.schema import Columns

BLOCK = ("t", "alloc_id", "address", "size", "requested", "segment_id", "context", "category", "plan", "lane")
SEGMENT = ("t", "segment_id", "address", "size", "place", "lane")
SEGMENTS = ("segment_alloc", "segment_resize", "segment_free")


class Memory:
    """The memory events of a trace by device; only those of the device with most events are put into the recording.

    Traces by PyTorch have no segments. In the recording of such a trace each block is in a segment of its own.
    """

    def __init__(self, trace: _Trace) -> None:
        self._trace = trace
        self._rows: dict[str, dict[str, list[tuple[int, ...]]]] = {}
        self._live: dict[tuple[str, int], tuple[int, ...]] = {}
        self._own: set[tuple[str, int]] = set()  # segments made for one block each
        self._blocks = 0
        self.first, self.last = 1 << 62, -(1 << 62)

    def take(self, event: dict[str, Any], t: int, lane: int) -> None:
        """Store an event "[memory]" or "[segment]" of the thread `lane` at the time `t` (ns)."""
        given = event["args"]
        address, size = integer(given.get("Addr")), amount(given.get("Bytes"))
        self.first, self.last = min(self.first, t), max(self.last, t)
        if event["name"] == "[segment]":
            place = self._trace.strings.id_of(text(given.get("place", ""), "place"))
            self._add("host", str(event.get("cat")), (t, integer(given.get("segment")), address, size, place, lane))
            return
        kind, number = (integer(given.get(key, 0)) for key in ("Device Type", "Device Id"))
        device = "host" if kind == 0 else f"device {kind}:{number}"
        if size < 0:
            self._free(device, address, -size, t, lane)
        else:
            self._alloc(device, address, size, given, t, lane)

    def _alloc(self, device: str, address: int, size: int, given: dict[str, Any], t: int, lane: int) -> None:
        trace, self._blocks = self._trace, self._blocks + 1
        number = integer(given.get("block", self._blocks))
        context = trace.context(given["scope"], given.get("phase"), given.get("line")) if "scope" in given else 0
        plan = trace.plan(given["op"], given) if type(given.get("op")) is str else 0
        category = given.get("category")
        code = schema.CATEGORIES.index(category) if category in schema.CATEGORIES else 0
        asked, segment = amount(given.get("requested", size)), integer(given.get("segment", number))
        row = (t, number, address, size, asked, segment, context, code, plan, lane)
        self._live[device, address] = row
        self._add(device, "alloc", row)
        if "segment" not in given:
            self._own.add((device, number))
            self._add(device, "segment_alloc", (t, number, address, size, 0, lane))

    def _free(self, device: str, address: int, size: int, t: int, lane: int) -> None:
        row = self._live.pop((device, address), None)
        if row is None:  # it was allocated before the trace began
            self._blocks += 1
            row = (t, -self._blocks, address, size, size, -self._blocks, 0, 0, 0, lane)
        self._add(device, "free_completed", (t, *row[1:7], 0, 0, lane))
        if (device, row[5]) in self._own:
            self._own.remove((device, row[5]))
            self._add(device, "segment_free", (t, row[5], address, row[3], 0, lane))

    def _add(self, device: str, kind: str, row: tuple[int, ...]) -> None:
        self._rows.setdefault(device, {}).setdefault(kind, []).append(row)

    def _counts(self) -> dict[str, int]:
        """Return the number of allocations and frees of each device; the device with most comes first."""
        each = {
            device: len(kinds.get("alloc", ())) + len(kinds.get("free_completed", ()))
            for device, kinds in self._rows.items()
        }
        return dict(sorted(each.items(), key=lambda one: -one[1]))

    def tables(self) -> dict[str, Columns]:
        """Return the tables, by kind of event, of the device with most memory events."""
        kinds = self._rows.get(next(iter(self._counts()), ""), {})
        found = {}
        for kind, names in {"alloc": BLOCK, "free_completed": BLOCK, **dict.fromkeys(SEGMENTS, SEGMENT)}.items():
            rows = np.array(kinds.get(kind, []), np.int64).reshape(-1, len(names)).T
            found[kind] = dict(zip(names, rows, strict=True))
        return found

    def facts(self) -> dict[str, Any]:
        """Return the entries for the recording's `meta` about devices; empty if only one device has memory events."""
        counts = self._counts()
        return {"device": next(iter(counts))} | ({"devices": counts} if len(counts) > 1 else {}) if counts else {}
