"""The work of devices in Chrome traces: kernels, copies, stream events, and waits of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry import device_words, schema
from flnb_telemetry.device_words import DeviceInfo, Kernel
from flnb_telemetry.foreign.json_stream import amount, extents, integer, text
from flnb_telemetry.intern import Context, Table

if TYPE_CHECKING:
    from collections import Counter

    from flnb_telemetry.foreign.kineto import _Trace

ROUTES = {"HtoD": device_words.TO_DEVICE, "DtoH": device_words.TO_HOST, "PtoP": device_words.BETWEEN}
"""The direction of a copy, by a part of the name that PyTorch gives it; others stay on the device."""
COLUMNS = {
    "launch": ("t0", "t1", "seq", "context", "kernel", "lane"),
    "copy": ("t0", "t1", "seq", "nbytes", "pinned", "context", "route", "lane"),
    "ran": ("t0", "t1", "seq", "bound", "seen", "lane"),
    "event_recorded": ("t", "seq", "event", "context", "lane"),
    "event_awaited": ("t", "seq", "event", "context", "lane"),
    "host_wait": ("t0", "t1", "event", "context", "lane"),
    "device": ("t", "info", "lane"),
}
"""The columns of the tables that are made, by kind of event."""


class Devices:
    """Reads the GPU events of a trace: `slice` and `instant` store one event, `tables` returns all as tables.

    In the tables, each launch or copy call of the host is joined with the kernel or copy that a GPU ran for the call.

    Attributes:
        kernels, infos: the tables of kernels and of devices, for the recording's catalog.
    """

    def __init__(self, trace: _Trace) -> None:
        self._trace = trace
        self._calls: dict[int, tuple[int, int, int, dict[str, Any]]] = {}
        self._ran: dict[int, tuple[int, int, str, dict[str, Any]]] = {}
        self._waits: list[tuple[int, int, int, dict[str, Any]]] = []
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        self.kernels, self.infos = Table([Kernel("")]), Table([DeviceInfo("", "")])

    def slice(self, event: dict[str, Any], category: str, name: str, t0: int, t1: int) -> bool:
        """Store an event of a device that lasted from `t0` to `t1` (ns); return False if it is not about a device.

        ``category`` and ``name`` are those of the event in the trace.
        """
        about = event.get("args") or {}
        if category == "cuda_runtime" and name == "cudaSynchronize":  # those of `save_trace`
            self._waits.append((t0, t1, self._trace.lane(event), about))
        elif category == "cuda_runtime" and "correlation" in about:
            self._calls[integer(about["correlation"])] = t0, t1, self._trace.lane(event), about
        elif category in ("kernel", "gpu_memcpy") and "correlation" in about:
            self._ran[integer(about["correlation"])] = t0, t1, name, about | {"copy": category != "kernel"}
        else:
            return False
        return True

    def instant(self, event: dict[str, Any], t: int) -> None:
        """Store a stream event that was recorded or awaited at the time `t` (ns)."""
        self._events.append((t, text(event.get("name"), "name"), event["args"]))

    def tables(self, properties: Any, unread: Counter[str]) -> dict[str, Any]:
        """Return rows by kind of event; count in `unread` the calls that queued nothing.

        Args:
            properties: the list of devices in the trace, each an object with the keys id, name, and perhaps those of a
                `DeviceInfo`.
            unread: the numbers of events that are not read, by category.
        """
        rows: dict[str, list[tuple[int, ...]]] = {kind: [] for kind in COLUMNS}
        places = self._read_properties(properties, rows["device"])
        for seq in sorted({*self._calls, *self._ran}):
            begun, ended, name, about = self._ran.get(seq, (0, 0, "", {}))
            t0, t1, lane, call = self._calls.get(seq, (begun, begun, 1, {}))
            if not about and "device" not in call:
                unread["cuda_runtime"] += 1
                continue
            self._task(rows, seq, (t0, t1, lane), name or text(call.get("task", ""), "task"), call | about, places)
            if about:
                bound = -1 if about.get("emulated") else amount(about.get("bound", 0))
                rows["ran"].append((begun, ended, seq, bound, integer(about.get("seen", max(ended, 1))), lane))
        for t, name, about in self._events:
            kind = "event_awaited" if name == "cudaStreamWaitEvent" else "event_recorded"
            context = self._context(about, places)
            rows[kind].append((t, integer(about.get("seq", 0)), integer(about.get("event", 0)), context, 1))
        for t0, t1, lane, about in self._waits:
            rows["host_wait"].append((t0, t1, integer(about.get("event", 0)), self._context(about, places), lane))
        return rows

    def _task(
        self, rows: dict[str, list[tuple[int, ...]]], seq: int, call: tuple[int, int, int], name: str,
        about: dict[str, Any], places: dict[int, str],
    ) -> None:  # fmt: skip
        """Add the event of a launch or a copy to `rows`, the rows of events by kind.

        Args:
            rows: the rows to add to.
            seq: the number of the task.
            call: the begin (ns), the end (ns) and the lane of the host's call.
            name: the name of the kernel or copy.
            about: the arguments of the event in the trace.
            places: the place of each device by number, such as "cuda:0".
        """
        t0, t1, lane = call
        context = self._context(about, places)
        if not about.get("copy"):
            grid, block = (extents(about.get(key, ())) or () for key in ("grid", "block"))
            kernel = self.kernels.id_of(Kernel(name, grid, block, amount(about.get("shared memory", 0))))
            rows["launch"].append((t0, t1, seq, context, kernel, lane))
            return
        known = next((route for part, route in ROUTES.items() if part in name), device_words.ON_DEVICE)
        route = device_words.ROUTES.index(about["route"]) if "route" in about else known
        pinned = integer(about["pinned"]) if "pinned" in about else int("Pinned" in name)
        rows["copy"].append((t0, t1, seq, amount(about.get("bytes", 0)), pinned, context, route, lane))

    def _context(self, about: dict[str, Any], places: dict[int, str]) -> int:
        """Return the context id for the device, stream, scope, phase and line in an event's arguments (`about`).

        `places` has the place of each device by number, such as "cuda:0".
        """
        number, phase = integer(about.get("device", 0)), about.get("phase")
        place = places.get(number, f"cuda:{number}")
        scope, line = (text(about.get(key, ""), key) for key in ("scope", "line"))
        return self._trace.contexts.id_of(
            Context(
                scope, schema.PHASES.index(phase) if phase in schema.PHASES else 0, place,
                integer(about.get("stream", 0)), line,
            )
        )  # fmt: skip

    def _read_properties(self, properties: Any, rows: list[tuple[int, ...]]) -> dict[int, str]:
        """Return the places of the devices by number, and add a row for each device."""
        places = {}
        for one in properties if type(properties) is list else ():
            if type(one) is not dict or type(one.get("id")) is not int:
                continue
            place, name, order = (text(one.get(key, ""), key) for key in ("place", "name", "order"))
            places[one["id"]] = place or f"cuda:{one['id']}"
            info = DeviceInfo(places[one["id"]], name, bool(one.get("emulated")), order, integer(one.get("seed", 0)))
            rows.append((0, self.infos.id_of(info), 1))
        return places
