"""Analysis of devices in a recording: launches and copies with their times, idle gaps, bytes copied, memory blocks.

A *task* is a kernel launch or a copy. Times are nanoseconds on the host's clock. On an emulated device, durations are
meaningless; only the order in which tasks ended is real (the column "slot" of `Devices.task`).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from flnb_telemetry import device_words, quantity, schema
from flnb_telemetry.analysis.memory import NEVER
from flnb_telemetry.intern import joined
from flnb_telemetry.safe_text import safe_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.device_words import DeviceInfo
    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.schema import Columns, Ints

EMULATED = "emulated device: order and counts are real, durations are not"
"""The note shown in every view with times of an emulated device or the order of its tasks."""
HOST, EVENT, UNKNOWN = "host", "event", ""
"""Causes of an idle gap: the host launched the next task late, its stream waited for an event, or unknown."""


NESTED = 64
"""The number of ops begun before an interval that are searched for ops still running in it (ops can be nested)."""


class Source(Protocol):
    """The protocol of objects that have tables of events: a recording, or the window of a live view."""

    catalog: Catalog

    def table(self, kind: str) -> Columns:
        """Return the events of one kind as columns."""


class Gap(NamedTuple):
    """An idle gap of a device: from t0 to t1 (ns) nothing ran on any of its streams.

    Attributes:
        cause: "host" (the host launched the next task late), "event" (the stream waited for an event), "" (unknown).
        next: the row in `Devices.task` of the task that ended the gap.
        plan: the plan id of the op in which the host spent most of the gap, 0 for none.
    """

    device: str
    t0: int
    t1: int
    cause: str
    next: int
    plan: int


class StepSums(NamedTuple):
    """Totals of a training step: launches, copies, bytes copied to the device and back, and waits of the host.

    Waits include copies to pageable host memory, which block the host.
    """

    step: int
    t0: int
    t1: int
    launches: int
    copies: int
    to_device: int
    to_host: int
    waits: int


@dataclass(frozen=True, slots=True, repr=False)
class Devices:
    """The work of a recording's devices as tables: tasks, waits, events and memory blocks. Made by `devices`.

    Attributes:
        infos: a dict from the place of each device, such as "cuda:0", to its description.
        places: the places of all devices; other tables refer to a device by its index in this list.
        task: launches and copies in the order of the host's calls. Columns: seq, lane, kernel (id; 0 for copies), route
            (direction of a copy; 0 for launches), nbytes, pinned, context, device (index into `places`), stream, plan
            (id of the op that queued the task, 0 for none), t0 and t1 (the host's call), ran0 and ran1 (the run on the
            device, 0 if unknown), bound (the largest error of ran0 and ran1, ns; -1 on emulated devices), seen (when
            the host read ran0 and ran1), and slot (position in the order of an emulated device, else -1).
        event: stream events that were recorded or awaited: t, seq, event (number), awaited (0 or 1), device, stream.
        wait: intervals in which the host was blocked: t0, t1, event, device, stream (-1: all).
        block: blocks on devices or in pinned memory; see `blocks`.
        use: pairs of a task and a block that it used, ordered by task: row indices in `task` and `block`.
        steps: the totals of each training step.
        op: the `op` events.
        traffic: by kernel name, the memory requests, sectors, shared-memory requests and bank conflicts of all its
            launches, as emulated devices count them; see `flnb.testing.cuda.Traffic`.
    """

    infos: dict[str, DeviceInfo]
    places: tuple[str, ...]
    task: Columns
    event: Columns
    wait: Columns
    block: Columns
    use: Columns
    steps: tuple[StepSums, ...]
    op: Columns
    traffic: dict[str, tuple[int, int, int, int]]

    @property
    def emulated(self) -> bool:
        """Return whether any device of the recording is emulated, so that its durations are meaningless."""
        return any(info.emulated for info in self.infos.values())

    @property
    def queued(self) -> NDArray[np.float64]:
        """Return for each task the time (ns) from the host's call to its start on the device; NaN if unknown."""
        known = (self.task["ran1"] > 0) & (self.task["bound"] >= 0)
        return np.where(known, np.maximum(0, self.task["ran0"] - self.task["t1"]), np.nan)

    def gaps(self, place: str) -> list[Gap]:
        """Return the idle gaps between the tasks of the device at ``place`` ("cuda:0"); none for an emulated device."""
        return _gaps(self, place)

    def __len__(self) -> int:
        return len(self.task["seq"])

    def __repr__(self) -> str:
        lines = []
        for at, place in enumerate(self.places):
            mine = self.task["device"] == at
            if not mine.any():
                continue
            launches, streams = int((mine & (self.task["route"] == 0)).sum()), len(np.unique(self.task["stream"][mine]))
            parts = [_count(launches, "launch", "launches")]
            for route, way in enumerate(device_words.ROUTES):
                if nbytes := int(self.task["nbytes"][mine & (self.task["route"] == route)].sum()):
                    parts.append(f"{quantity.size(nbytes)} {way}")
            info = self.infos.get(place)
            name, both = safe_text(info.name) if info else "", ", ".join(parts)
            lines.append(f"{place} {name}: {both}; {_count(streams, 'stream', 'streams')}")
            if info and info.emulated:
                lines.append(f"  {EMULATED} ({info.order} order, seed {info.seed})")
        return "\n".join(lines) or "no device events"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def devices(source: Source) -> Devices:
    """Join the device events of a recording into tables of tasks, waits and blocks.

    >>> import flnb
    >>> from flnb_telemetry.analysis.devices import devices
    >>> with flnb.record() as run:
    ...     y = flnb.ones(3) * 2.0
    >>> devices(run)
    no device events
    """
    catalog = source.catalog
    infos = {}
    for number in source.table("device")["info"].tolist():
        info = catalog.devices.items[number]
        infos[info.place] = info
    launch, copy = source.table("launch"), source.table("copy")
    names = ("seq", "lane", "context", "t0", "t1")
    task = {name: np.concatenate([launch[name], copy[name]]) for name in names}
    zeros, more = np.zeros(len(launch["seq"]), np.int64), np.zeros(len(copy["seq"]), np.int64)
    task["kernel"] = np.concatenate([launch["kernel"].astype(np.int64), more])
    for name in ("route", "nbytes", "pinned"):
        task[name] = np.concatenate([zeros, copy[name].astype(np.int64)])
    order = np.argsort(task["seq"], kind="stable")
    task = {name: column[order] for name, column in task.items()}
    places = list(infos)
    task["device"], task["stream"] = _where(catalog, task["context"], places)
    op = source.table("op")
    task["plan"] = _asked_by(task, op)
    task |= _ran(task["seq"], source.table("ran"))
    recorded, awaited = source.table("event_recorded"), source.table("event_awaited")
    event = {name: np.concatenate([recorded[name], awaited[name]]) for name in ("t", "seq", "event", "context")}
    event["awaited"] = np.repeat([0, 1], [len(recorded["t"]), len(awaited["t"])])
    order = np.argsort(event["seq"], kind="stable")
    event = {name: column[order] for name, column in event.items()}
    wait = dict(source.table("host_wait"))
    for table in (event, wait):
        table["device"], table["stream"] = _where(catalog, table["context"], places)
    block, use = blocks(source, task, event)
    counts = schema.tuples(source.table("traffic"), "name", "requests", "sectors", "shared_requests", "conflicts")
    traffic = {catalog.strings.items[name]: (one, two, three, four) for name, one, two, three, four in counts}
    sums = tuple(_sums(source.table("step"), task, wait))
    return Devices(infos, tuple(places), task, event, wait, block, use, sums, op, traffic)


def _where(catalog: Catalog, context: Ints, places: list[str]) -> tuple[Ints, Ints]:
    """Return the device and the stream of each context id; a device is an index into the list `places`.

    Devices that are not in `places` yet are added to it. ``catalog`` has the contexts behind the ids.
    """
    known, which = np.unique(context, return_inverse=True)
    pairs = []
    for number in known.tolist():
        here = catalog.contexts.items[number]
        if here.device not in places:
            places.append(here.device)
        pairs.append((places.index(here.device), here.stream))
    found = np.array(pairs, np.int64).reshape(-1, 2)[which.reshape(-1)]
    return found[:, 0], found[:, 1]


def _asked_by(task: Columns, op: Columns) -> Ints:
    """Return the plan of the op during which each task was queued, on the same thread; 0 for none."""
    found = np.zeros(len(task["seq"]), np.int64)
    for lane in np.unique(task["lane"]).tolist():
        mine, rows = task["lane"] == lane, np.flatnonzero(op["lane"] == lane)
        if len(rows):
            at = np.maximum(np.searchsorted(op["t0"][rows], task["t0"][mine], "right") - 1, 0)
            inside = (op["t0"][rows[at]] <= task["t0"][mine]) & (task["t0"][mine] <= op["t1"][rows[at]])
            found[mine] = np.where(inside, op["plan"][rows[at]].astype(np.int64), 0)
    return found


def _ran(seq: Ints, ran: Columns) -> Columns:
    """Return when tasks ran on the device, as the columns ran0, ran1, bound, seen and slot of `Devices.task`.

    ``seq`` has the numbers of the tasks; ``ran`` is the table of the events that report when tasks ran.
    """
    last = {name: ran[name][::-1] for name in ("seq", "t0", "t1", "bound", "seen")}
    found = {
        name: joined(seq, last["seq"], last[key]) for name, key in (("ran0", "t0"), ("ran1", "t1"), ("seen", "seen"))
    }
    found["bound"] = joined(seq, last["seq"], last["bound"])
    slot = np.full(len(seq), -1, np.int64)
    rows = np.flatnonzero((found["bound"] < 0) & (found["seen"] > 0))
    slot[rows[np.argsort(found["ran1"][rows], kind="stable")]] = np.arange(len(rows))
    return found | {"slot": slot}


def _gaps(all_of: Devices, place: str) -> list[Gap]:
    """Return the intervals in which no stream of the device at ``place`` was busy, with their causes.

    ``all_of`` has the tasks of all devices.
    """
    task, at = all_of.task, all_of.places.index(place)
    rows = np.flatnonzero((task["device"] == at) & (task["ran1"] > 0) & (task["bound"] >= 0))
    rows = rows[np.argsort(task["ran0"][rows], kind="stable")]
    if len(rows) < 2:
        return []
    reached = np.maximum.accumulate(task["ran1"][rows])
    idle = np.flatnonzero(task["ran0"][rows[1:]] - reached[:-1] > 2 * task["bound"][rows[1:]])
    waited = _awaiting(all_of)
    found = []
    for number in idle.tolist():
        t0, after = int(reached[number]), int(rows[number + 1])
        t1 = int(task["ran0"][after])
        late = int(task["t1"][after]) - t0
        cause = HOST if 2 * late >= t1 - t0 else EVENT if waited[after] else UNKNOWN
        found.append(Gap(place, t0, t1, cause, after, _busiest(all_of.op, int(task["lane"][after]), t0, t1)))
    return found


def _awaiting(all_of: Devices) -> NDArray[np.bool_]:
    """Return for each task whether, since the previous task of its stream, the stream had to wait for an event.

    ``all_of`` has the tasks and events of all devices.
    """
    task, event = all_of.task, all_of.event
    awaited = event["awaited"] == 1
    both = {name: np.concatenate([task[name], event[name][awaited]]) for name in ("device", "stream", "seq")}
    own = np.append(np.ones(len(task["seq"]), np.bool_), np.zeros(int(awaited.sum()), np.bool_))
    order = np.lexsort((both["seq"], both["stream"], both["device"]))
    same = (both["device"][order[1:]] == both["device"][order[:-1]]) & (
        both["stream"][order[1:]] == both["stream"][order[:-1]]
    )
    found = np.zeros(len(own), np.bool_)
    found[order[1:]] = same & ~own[order[:-1]]
    return found[: len(task["seq"])]


def _busiest(op: Columns, lane: int, t0: int, t1: int) -> int:
    """Return the plan id of the op that ran longest between `t0` and `t1` (ns) on the thread `lane`; 0 for none."""
    first = max(int(np.searchsorted(op["t0"], t0)) - NESTED, 0)
    near = slice(first, int(np.searchsorted(op["t0"], t1)))
    covered = np.minimum(op["t1"][near], t1) - np.maximum(op["t0"][near], t0)
    covered[op["lane"][near] != lane] = 0
    return int(op["plan"][near][covered.argmax()]) if covered.max(initial=0) > 0 else 0


def _sums(step: Columns, task: Columns, wait: Columns) -> list[StepSums]:
    """Return the totals of each training step, over the host's calls that began during the step.

    Args:
        step: the events of the steps.
        task: the tasks, with the columns of `Devices.task`.
        wait: the intervals in which the host was blocked.
    """
    order = np.argsort(task["t0"], kind="stable")
    t0, route, nbytes = (task[name][order] for name in ("t0", "route", "nbytes"))
    still = np.sort(np.append(wait["t0"], t0[(route == device_words.TO_HOST) & (task["pinned"][order] == 0)]))
    edges = [np.searchsorted(t, step[edge]) for t in (t0, still) for edge in ("t0", "t1")]
    rows = zip(
        *(step[name].tolist() for name in ("index", "t0", "t1")), *(edge.tolist() for edge in edges), strict=True
    )
    found = []
    for index, begin, end, first, last, before, after in rows:
        ways, moved = route[first:last], nbytes[first:last]
        there, back = (int(moved[ways == way].sum()) for way in (device_words.TO_DEVICE, device_words.TO_HOST))
        launches = int((ways == 0).sum())
        found.append(StepSums(index, begin, end, launches, last - first - launches, there, back, after - before))
    return found


def blocks(source: Source, task: Columns, event: Columns) -> tuple[Columns, Columns]:
    """Return the blocks on devices and in pinned memory, and their uses by tasks.

    Returns:
        Two tables. The first has a row for each block, with the columns of the `alloc` events and: place (string id),
        end (when the block was freed, or `NEVER`), streams (bit i is set if stream i used the block; the last bit
        stands for all streams from 62 on), own (the stream that used the block first, -1 for none), until, on and
        event. The last three are 0, -1 and 0, unless the block was freed before its last use on another stream was
        over. Then `until` is the time at which that use was over (`NEVER` if unseen), `on` is the stream of that use,
        and `event` is the number of the event recorded after it (0 for none). The second table has a row for each use:
        the row of the task and of the block.
    """
    segment = [source.table(kind) for kind in ("segment_alloc", "segment_resize")]
    home, place = (np.concatenate([table[name] for table in segment]) for name in ("segment_id", "place"))
    alloc, freed = source.table("alloc"), source.table("free_completed")
    where = joined(alloc["segment_id"], home, place)
    _, first = np.unique(alloc["alloc_id"], return_index=True)
    rows = np.sort(first[where[first] > 0])
    block = {name: column[rows] for name, column in alloc.items()} | {"place": where[rows]}
    block["end"] = joined(block["alloc_id"], freed["alloc_id"], freed["t"], NEVER)
    count = len(rows)
    more: dict[str, Any] = {name: np.zeros(count, np.int64) for name in ("streams", "until", "event")}
    more |= {"own": np.full(count, -1, np.int64), "on": np.full(count, -1, np.int64)}
    over = np.where(task["seen"] == 0, NEVER, np.where(task["bound"] < 0, task["seen"], task["ran1"]))
    stream = task["stream"].tolist()
    uses = _uses(source.table("addresses"), task["seq"], block)
    for at, used in uses.items():
        last = {stream[row]: row for row in used}  # later rows win: the last use by each stream
        more["own"][at] = own = stream[used[0]]
        more["streams"][at] = sum({1 << min(number, 62) for number in last if number >= 0})  # one bit for all above
        late = [row for number, row in last.items() if number != own and over[row] > block["end"][at]]
        if late:
            row = max(late, key=lambda row: int(over[row]))
            more["until"][at], more["on"][at] = over[row], stream[row]
            after = (event["stream"] == stream[row]) & (event["seq"] > task["seq"][row]) & (event["awaited"] == 0)
            after &= event["device"] == task["device"][row]
            more["event"][at] = event["event"][after][:1].sum()
    block |= more
    for at in np.flatnonzero(block["until"]).tolist():  # until its memory is reused by another block
        again = (block["t"] >= block["end"][at]) & (block["place"] == block["place"][at])
        again &= block["address"] < block["address"][at] + block["size"][at]
        again &= block["address"] + block["size"] > block["address"][at]
        block["until"][at] = min(block["until"][at], block["t"][again].min(initial=NEVER))
    pairs = sorted({(row, at) for at, used in uses.items() for row in used})
    use = np.array(pairs, np.int64).reshape(-1, 2)
    return block, {"task": use[:, 0], "block": use[:, 1]}


def _uses(addresses: Columns, seq: Ints, block: Columns) -> dict[int, list[int]]:
    """Return a dict from the row of each block to the rows of the tasks that used the block while it was live.

    A task uses a block if one of its arguments is an address in the block.

    Args:
        addresses: the events with the addresses among the tasks' arguments.
        seq: the number of each task, ascending.
        block: the table of blocks.
    """
    at = np.searchsorted(seq, addresses["seq"])
    known = (at < len(seq)) & (seq[np.minimum(at, max(len(seq) - 1, 0))] == addresses["seq"]) if len(seq) else at < 0
    given = [addresses[f"address{i}"][known].tolist() for i in range(5)]
    rows = zip(addresses["t"][known].tolist(), at[known].tolist(), *given, strict=True)
    changes = [(t, 2, row, held) for t, row, *held in rows]
    changes += [(t, 1, row, []) for row, t in enumerate(block["t"].tolist())]
    changes += [(t, 0, row, []) for row, t in enumerate(block["end"].tolist()) if t < NEVER]
    address, size = block["address"].tolist(), block["size"].tolist()
    live: list[tuple[int, int]] = []
    found: dict[int, list[int]] = {}
    for _, what, row, held in sorted(changes, key=lambda change: change[:3]):
        if what == 1:
            insort(live, (address[row], row))
        elif what == 0:
            place = (address[row], row)
            index = bisect_right(live, place) - 1
            if index >= 0 and live[index] == place:
                del live[index]
        for each in filter(None, held):
            index = bisect_right(live, each, key=lambda one: one[0]) - 1
            if index >= 0 and each < address[live[index][1]] + size[live[index][1]]:
                found.setdefault(live[index][1], []).append(row)
    return found
