"""Which blocks and segments are live now, and what changed since the last frame: the live view of memory.

A block is a row: the eight words of its `alloc` record, then its tape node, offset in its segment, and time of free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

EVENTS = 8192  # allocations and frees in one frame at most
POINTS = 512  # of the timeline that stands for what was left out
FINISHED = 4096  # blocks freed lately that a keyframe tells again
ID, SIZE, SEGMENT = 2, 4, 6
NODE, OFFSET, FREED, WIDTH = 8, 9, 10, 11
CATEGORIES = len(schema.CATEGORIES)


class LiveMemory:
    """Fold records in with `fold`; take what is to be told with `news`."""

    def __init__(self) -> None:
        self.live = np.empty((0, WIDTH), np.int64)
        self.finished = np.empty((0, WIDTH), np.int64)
        self.segments = np.empty((0, schema.WORDS), np.int64)
        self.held = np.zeros(2 + CATEGORIES, np.int64)  # allocated, reserved, then by category
        self.incomplete = False  # the last frame could not tell every change: the next must be a keyframe
        self._forget()

    def _forget(self) -> None:
        self._born: list[Rows] = []
        self._freed: list[Rows] = []
        self._came: list[Rows] = []
        self._went: list[Rows] = []
        self._points: list[NDArray[Any]] = []

    def fold(self, rows: schema.Records, kinds: NDArray[np.int64], ops: schema.Records) -> None:
        """Take in records of memory kinds (in any order) and the op records that came with them."""
        order = np.argsort(rows[:, 1], kind="stable")
        rows, kinds = rows[order], kinds[order]
        came, went = rows[kinds == schema.SEGMENT_ALLOC], rows[kinds == schema.SEGMENT_FREE]
        came = came[_first(came[:, 2]) & ~_in(came[:, 2], self.segments[:, 2])]
        known = np.concatenate([self.segments, came])
        self.segments = known[~_in(known[:, 2], went[:, 2])]
        went = went[_in(went[:, 2], known[:, 2])]

        born = rows[kinds == schema.ALLOC]
        born = born[_first(born[:, ID]) & ~_in(born[:, ID], self.live[:, ID])]
        born = np.concatenate([born, np.zeros((len(born), WIDTH - schema.WORDS), np.int64)], axis=1)
        born[:, OFFSET] = born[:, 3] - _joined(born[:, SEGMENT], known[:, 2], known[:, 3])
        blocks = np.concatenate([self.live, born])
        unknown = blocks[:, NODE] == 0
        if unknown.any():
            made = ops[ops[:, 3] > 0]
            blocks[unknown, NODE] = _joined(blocks[unknown, ID], made[:, 3], made[:, 4])
        born = blocks[len(self.live) :]
        frees = rows[kinds == schema.FREE_COMPLETED]
        blocks[:, FREED] = _joined(blocks[:, ID], frees[:, 2], frees[:, 1])
        gone = blocks[:, FREED] > 0
        freed = blocks[gone]
        self.live = blocks[~gone]
        self.finished = np.concatenate([self.finished, freed])[-FINISHED:]
        self._trace(born, freed, came, went, known)
        for news, more in ((self._born, born), (self._freed, freed), (self._came, came), (self._went, went)):
            if len(more):
                news.append(more)

    def _trace(self, born: Rows, freed: Rows, came: Rows, went: Rows, known: Rows) -> None:
        """Follow the totals through these changes, event by event."""
        changes = np.zeros((len(born) + len(freed) + len(came) + len(went), 3 + CATEGORIES), np.int64)
        row = 0
        for blocks, sign, t in ((born, 1, born[:, 1]), (freed, -1, freed[:, FREED])):
            part = changes[row : row + len(blocks)]
            part[:, 0], part[:, 1] = t, sign * blocks[:, SIZE]
            part[np.arange(len(blocks)), 3 + category(blocks)] = part[:, 1]
            row += len(blocks)
        for segments, sign in ((came, 1), (went, -1)):
            part = changes[row : row + len(segments)]
            part[:, 0] = segments[:, 1]
            part[:, 2] = sign * _joined(segments[:, 2], known[:, 2], known[:, 4])
            row += len(segments)
        changes = changes[np.argsort(changes[:, 0], kind="stable")]
        changes[:, 1:] = self.held + np.cumsum(changes[:, 1:], axis=0)
        if len(changes):
            self.held = changes[-1, 1:].copy()
            self._points.append(_thinned(changes))

    def news(self, keyframe: bool, seconds: Any) -> tuple[dict[str, tuple[str, Any]], bool]:
        """Arrays of section "memory" of a frame, and whether the timeline had to be thinned.

        `seconds` turns an array of times into seconds since the run began.
        """
        born, freed = _all(self._born, WIDTH), _all(self._freed, WIDTH)
        came, went = _all(self._came, schema.WORDS), _all(self._went, schema.WORDS)
        points = _all(self._points, 3 + CATEGORIES)
        thinned = not keyframe and len(born) + len(freed) > EVENTS
        self.incomplete = False
        if keyframe:
            born, freed = np.concatenate([self.finished, self.live]), self.finished
            came, went = self.segments, went[:0]
        elif thinned:
            # Blocks that came and went in between change nothing that is there now: the points stand for them.
            passing = born[:, FREED] > 0
            born, freed = born[~passing], freed[~_in(freed[:, ID], born[passing, ID])]
            if len(born) + len(freed) > EVENTS:
                born, freed, self.incomplete = born[-EVENTS // 2 :], freed[-EVENTS // 2 :], True
        self._forget()
        found: dict[str, tuple[str, Any]] = {}
        if len(born):
            found |= _alloc_arrays(born, seconds)
        if len(freed):
            found |= {"free.id": ("f64", freed[:, ID]), "free.t": ("f64", seconds(freed[:, FREED]))}
        if len(came):
            found |= {"segment.id": ("u32", came[:, 2]), "segment.t": ("f64", seconds(came[:, 1]))}
            found |= {"segment.size": ("f64", came[:, 4]), "segment.address": ("f64", came[:, 3])}
        if len(went):
            found |= {"release.id": ("u32", went[:, 2]), "release.t": ("f64", seconds(went[:, 1]))}
        if thinned:
            points = _thinned(points, POINTS)
            found["memory.t"] = ("f64", seconds(points[:, 0]))
            names = ("allocated", "reserved", *(f"c{i}" for i in range(CATEGORIES)))
            found |= {f"memory.{name}": ("f64", points[:, 1 + i]) for i, name in enumerate(names)}
        return found, thinned


def category(blocks: Rows) -> Rows:
    """The category of each block row."""
    found: Rows = (blocks[:, 0] >> schema.AUX_SHIFT) & 0xFFFF
    return found


def _alloc_arrays(born: Rows, seconds: Any) -> dict[str, tuple[str, Any]]:
    columns = {
        "id": ("f64", born[:, ID]),
        "t": ("f64", seconds(born[:, 1])),
        "segment": ("u32", born[:, SEGMENT]),
        "offset": ("f64", born[:, OFFSET]),
        "size": ("f64", born[:, SIZE]),
        "requested": ("f64", born[:, 5]),
        "category": ("u8", category(born)),
        "plan": ("u32", born[:, 0] >> schema.PLAN_SHIFT),
        "context": ("u32", born[:, 7]),
        "node": ("f64", born[:, NODE]),
    }
    return {f"alloc.{name}": column for name, column in columns.items()}


def _first(ids: Rows) -> NDArray[np.bool_]:
    """True where an id occurs for the first time."""
    found = np.zeros(len(ids), np.bool_)
    found[np.unique(ids, return_index=True)[1]] = True
    return found


def _in(ids: Rows, others: Rows) -> NDArray[np.bool_]:
    """Which ids are among the others; most often there are none, and NumPy's own takes its time all the same."""
    if not len(ids) or not len(others):
        return np.zeros(len(ids), np.bool_)
    return np.isin(ids, others)


def _joined(ids: Rows, keys: Rows, values: Rows) -> Rows:
    """The value of each id, 0 where `keys` lacks it."""
    if not len(keys) or not len(ids):
        return np.zeros(len(ids), np.int64)
    order = np.argsort(keys, kind="stable")
    slot = order[np.minimum(np.searchsorted(keys, ids, sorter=order), len(keys) - 1)]
    found: Rows = np.where(keys[slot] == ids, values[slot], 0)
    return found


def _all(parts: list[NDArray[Any]], width: int) -> NDArray[Any]:
    return np.concatenate([np.empty((0, width), np.int64), *parts])


def _thinned(points: Rows, most: int = 4 * POINTS) -> Rows:
    """At most so many of the points: the last of each stretch, and where most was allocated."""
    if len(points) <= most:
        return points
    chosen = np.append(np.linspace(0, len(points) - 1, most - 1).astype(int), np.argmax(points[:, 1]))
    found: Rows = points[np.unique(chosen)]
    return found
