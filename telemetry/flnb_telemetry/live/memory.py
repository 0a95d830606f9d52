"""The live view of memory: the blocks and segments that exist now, and the changes since the last frame.

A block or segment is a row of twelve numbers: the eight of its event; a block's tape node and offset in its segment;
the time of its end (ns; NEVER while it exists); and the time of the request to free it (0 if there was none).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.analysis.memory import NEVER, timeline
from flnb_telemetry.intern import joined, located

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.schema import Ints, Records

    Arrays = dict[str, NDArray[Any]]

EVENTS = 8192  # the most allocations and frees in one frame
POINTS = 512  # of the timeline that replaces allocations and frees beyond these
FINISHED = 4096  # recently freed blocks that a keyframe repeats
T, ID, ADDRESS, SIZE, REQUESTED, SEGMENT, CONTEXT, NODE, OFFSET, END, ASKED, WIDTH = range(1, 13)


class Lives:
    """The existing blocks (or segments) as rows, and the rows that began or ended since the last call of `news`."""

    def __init__(self) -> None:
        self.live = np.empty((0, WIDTH), np.int64)
        self._sent_ids = np.empty(0, np.int64)  # the ids that existed at the last call of news
        self._ended: list[Records] = []

    def fold(self, born: Records, ends: Records) -> None:
        """Add the rows `born` (the first of each id), and remove rows whose ids are in the records `ends`."""
        if not len(born) and not len(ends):
            return
        if (born[1:, ID] <= born[:-1, ID]).any():
            born = born[np.sort(np.unique(born[:, ID], return_index=True)[1])]
        rows = np.concatenate([self.live, born[~_in(born[:, ID], self.live[:, ID])]])
        rows[:, END] = joined(rows[:, ID], ends[:, ID], ends[:, T], NEVER)
        lives = rows[:, END] == NEVER
        self.live = rows[lives]
        self._ended.append(rows[~lives])

    def resize(self, changes: Records) -> Records:
        """Set the new sizes of segments, and return those records in `changes` whose segment exists.

        `changes` are the records of resized segments, in order of time.
        """
        self.live[:, SIZE] = joined(self.live[:, ID], changes[::-1, ID], changes[::-1, SIZE], self.live[:, SIZE])
        return changes[_in(changes[:, ID], self.live[:, ID])]

    def news(self) -> tuple[Records, Records, Records]:
        """Return three tables of rows (blocks or segments), about the time since the last call.

        They have the rows that existed at any moment of that time, those that began, and those that ended.
        """
        ended = np.concatenate([self.live[:0], *self._ended])
        rows = np.concatenate([ended, self.live])
        born = rows[~_in(rows[:, ID], self._sent_ids)]
        self._sent_ids, self._ended = self.live[:, ID], []
        return rows, born, ended


class LiveMemory:
    """The blocks and segments of a running program: `fold` receives records, `news` returns changes for a frame."""

    def __init__(self) -> None:
        self.blocks, self.segments = Lives(), Lives()
        self.finished = self.blocks.live
        self._aside = np.empty(0, np.int64)  # segments of other devices, to which saved tensors are moved
        self._resized: list[Records] = []  # segments, since the last news
        self.incomplete = False  # the last frame lacked some changes: the next must be a keyframe

    def fold(self, rows: Records, ops: Records) -> None:
        """Process the next memory records, in any order, and the simultaneous op records, which have the tape nodes."""
        found, rows = rows, np.zeros((len(rows), WIDTH), np.int64)
        rows[:, : schema.WORDS] = found[np.argsort(found[:, T], kind="stable")]
        kinds = rows[:, 0] & 0xFF
        self._aside = np.concatenate([self._aside, rows[kinds == schema.ASIDE, ID]])
        if len(self._aside):
            home = np.where((kinds == schema.ALLOC) | (kinds == schema.FREE_COMPLETED), rows[:, SEGMENT], rows[:, ID])
            rows, kinds = (some[~_in(home, self._aside)] for some in (rows, kinds))
        came, born = rows[kinds == schema.SEGMENT_ALLOC], rows[kinds == schema.ALLOC]
        known = np.concatenate([self.segments.live, came])
        born[:, OFFSET] = born[:, ADDRESS] - joined(born[:, SEGMENT], known[:, ID], known[:, ADDRESS])
        made = ops[ops[:, 3] > 0]
        for blocks in (self.blocks.live, born):
            unknown = blocks[:, NODE] == 0
            blocks[unknown, NODE] = joined(blocks[unknown, ID], made[:, 3], made[:, 4])
        self.segments.fold(came, rows[kinds == schema.SEGMENT_FREE])
        self._resized.append(self.segments.resize(rows[kinds == schema.SEGMENT_RESIZE]))
        self.blocks.fold(born, rows[kinds == schema.FREE_COMPLETED])

    def news(self, keyframe: bool, start: int) -> tuple[Arrays, bool]:
        """Return the changes since the last call or, with `keyframe`, everything, as arrays for a frame.

        Returns:
            The arrays, with times in seconds since `start` (ns); and whether there were so many changes that blocks
            allocated and freed since the last call are replaced by a coarse timeline.
        """
        (blocks, born, freed), (segments, came, went) = self.blocks.news(), self.segments.news()
        self.finished = np.concatenate([self.finished, freed])[-FINISHED:]
        came, self._resized = np.concatenate([came, *self._resized]), []  # sent again with their new size
        points: Arrays = {}
        self.incomplete = False
        if thinned := not keyframe and len(born) + len(freed) > EVENTS:
            since = min(born[:, T].min(initial=NEVER), freed[:, END].min(initial=NEVER))
            points = _points(blocks, segments, since, start)
            # Blocks that came and went in between do not exist any more: the timeline's points replace them.
            passing = born[born[:, END] < NEVER, ID]
            born, freed = (rows[~_in(rows[:, ID], passing)] for rows in (born, freed))
            if len(born) + len(freed) > EVENTS:
                born, freed, self.incomplete = born[-EVENTS // 2 :], freed[-EVENTS // 2 :], True
        if keyframe:
            born, freed = np.concatenate([self.finished, self.blocks.live]), self.finished
            came, went = self.segments.live, went[:0]
        return arrays(born, freed, came, went, start) | points, thinned


def arrays(born: Records, freed: Records, came: Records, went: Records, start: int) -> Arrays:
    """Return a frame's arrays about blocks and segments, with times in seconds since `start` (ns).

    Empty arrays are left out.

    Args:
        born, freed: the rows of blocks that were allocated, and of blocks that were freed.
        came, went: the rows of segments that were reserved, and of segments that were released.
        start: the time at which the run began, ns.
    """
    alloc = {"id": ID, "segment": SEGMENT, "offset": OFFSET, "size": SIZE, "requested": REQUESTED}
    alloc |= {"context": CONTEXT, "node": NODE}
    columns: Arrays = {f"alloc.{name}": born[:, word] for name, word in alloc.items()}
    columns |= {"alloc.category": _category(born), "alloc.plan": born[:, 0] >> schema.PLAN_SHIFT}
    columns |= {"segment.id": came[:, ID], "segment.size": came[:, SIZE], "segment.address": came[:, ADDRESS]}
    columns |= {"free.id": freed[:, ID], "release.id": went[:, ID]}
    times = {"alloc.t": born[:, T], "free.t": freed[:, END], "segment.t": came[:, T], "release.t": went[:, END]}
    if freed[:, ASKED].any():
        times["free.asked"] = freed[:, ASKED]  # from then on the block waits to be freed
    columns |= {name: (t - start) / 1e9 for name, t in times.items()}
    return {name: column for name, column in columns.items() if len(column)}


def _points(blocks: Records, segments: Records, since: int, start: int) -> Arrays:
    """Return allocated and reserved bytes since a time (ns), at no more than `POINTS` moments, the peak included.

    `start` is the beginning of the run (ns), from which the moments are counted in seconds.
    """
    held, reserved = (
        {"t": rows[:, T], "end": rows[:, END], "size": rows[:, SIZE], "requested": rows[:, REQUESTED]}
        for rows in (blocks, segments)
    )
    every = timeline(held | {"category": _category(blocks)}, reserved, start)
    line = every.spread(POINTS, (since - start) / 1e9)
    found = {"memory.t": line.t, "memory.allocated": line.allocated, "memory.reserved": line.reserved}
    return found | {f"memory.c{i}": column for i, column in enumerate(line.by_category.T)}


def _category(blocks: Records) -> Ints:
    """Return the category, an index into `schema.CATEGORIES`, of each block."""
    return (blocks[:, 0] >> schema.AUX_SHIFT) & 0xFFFF


def _in(ids: Ints, others: Ints) -> NDArray[np.bool_]:
    """Return for each id whether it is in `others`, like `numpy.isin`, but faster if `others` ascend."""
    return located(others, ids, sort=True)[1]
