"""The kinds of events, the fields of each kind's records, and the conversion of records to named columns and back.

A record is eight int64 numbers, called words. Word 0 is the code, ``kind | aux << 8 | plan << 24``; word 1 is a time of
``time.perf_counter_ns``; the other words depend on the kind. Floats are stored as their 64 bits. `VERSION` changes when
the meaning of a kind changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from flnb_telemetry import device_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = 3
WORDS = 8
RECORD_BYTES = 8 * WORDS
BLOCK = 4096  # records

Records: TypeAlias = "NDArray[np.int64]"
"""Records, shape (n, 8)."""
Columns: TypeAlias = "dict[str, NDArray[Any]]"
"""Named columns of one kind, all of equal length."""
Ints: TypeAlias = "NDArray[np.int64]"
Batches: TypeAlias = "list[tuple[int, Records]]"
"""Batches of records, each with the number of the thread that emitted it."""

OP, ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, OOM = range(1, 8)
SCOPE, STEP, METRIC, GRAD_STAT, EDGE, DROPPED, LEAF, OP_FAILED, CUT, SEGMENT_RESIZE, TRANSFER, ASIDE = range(8, 20)
LOCKED, RELEASED, WALK, NAN_ORIGIN, USE, COLLECTIVE_BEGIN, COLLECTIVE, WAIT, CLOCK_SYNC = range(20, 29)
RECORD, MATERIALIZE, KERNEL, COMPILE, CHOICE = range(38, 43)  # from 29 on: what devices did

CATEGORIES = ("unknown", "parameter", "gradient", "activation", "optimizer_state", "input", "temporary")
PHASES = ("other", "forward", "backward", "optimizer")
FORWARD, BACKWARD, OPTIMIZER = 1, 2, 3
DETACH, NO_GRAD, INTEGER, NO_RULE = 1, 2, 3, 4
"""Reasons why the tape ends at a value: the value was detached; the op on it ran inside `no_grad`; the op returned
integers or bool (a cast, a comparison); or the op has no gradient."""
DIRECTIONS = ("", "away", "back", "compressed", "restored")
AWAY, BACK, COMPRESSED, RESTORED = 1, 2, 3, 4
"""How a saved tensor was moved: to another device, back from it, compressed, or decompressed."""
ENTER_MODULE, ENTER_BLOCK = 1, 3
"""Values of the field "enter" of a scope event: a module call begins, another scope begins; 0 means a scope ends."""

PLAN_SHIFT = 24
PLAN_BITS = -1 << PLAN_SHIFT
"""The mask of the bits of a code that contain the number of the plan."""
AUX_SHIFT = 8


class Kind(NamedTuple):
    """A kind of event: the names of words 1 to 7 ("" for unused words), and which of the words are floats.

    `aux` is the name of the field in bits 8 to 23 of word 0, `plan` that of the field from bit 24 on; "" if unused.
    """

    number: int
    name: str
    words: tuple[str, ...]
    aux: str = ""
    plan: str = ""
    floats: tuple[str, ...] = ()


_BLOCK = ("t", "alloc_id", "address", "size")
_GRADIENT = ("t", "node", "norm", "bad", "numel", "name", "saved")
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        # estimated: the op was computed by a kernel together with others, and has a share of its time
        Kind(OP, "op", ("t0", "t1", "alloc_id", "node", "context", "parent0", "parent1"), aux="estimated", plan="plan"),
        Kind(ALLOC, "alloc", (*_BLOCK, "requested", "segment_id", "context"), aux="category", plan="plan"),
        Kind(FREE_REQUESTED, "free_requested", (*_BLOCK, "", "segment_id", "context")),
        Kind(FREE_COMPLETED, "free_completed", (*_BLOCK, "", "segment_id", "context")),
        # place: the string id of the device that has this memory, "" for the host's
        Kind(SEGMENT_ALLOC, "segment_alloc", ("t", "segment_id", "address", "size", "place")),
        Kind(SEGMENT_FREE, "segment_free", ("t", "segment_id", "address", "size")),
        Kind(SEGMENT_RESIZE, "segment_resize", ("t", "segment_id", "address", "size", "place")),
        Kind(ASIDE, "aside", ("t", "segment_id")),  # the segment is of another device, to which saved tensors move
        Kind(TRANSFER, "transfer", ("t0", "t1", "nbytes", "alloc_id", "copy", "node", "context"), aux="direction"),
        Kind(LOCKED, "locked", ("t", "alloc_id", "locks")),  # the number of user locks that a block has from now on
        Kind(RELEASED, "released", ("t", "nbytes", "segments")),  # what a call of `release_cached` returned
        # free: all unused bytes, those left on the device included; largest_hole: the largest gap in any segment
        Kind(OOM, "oom", ("t", "requested", "free", "largest_hole", "capacity", "reserved", "context")),
        Kind(SCOPE, "scope", ("t", "context"), aux="enter"),
        Kind(STEP, "step", ("t0", "t1", "index", "total")),
        Kind(METRIC, "metric", ("t", "step", "value"), plan="name", floats=("value",)),
        Kind(GRAD_STAT, "grad_stat", _GRADIENT, aux="parameter", plan="plan", floats=("norm",)),
        Kind(EDGE, "edge", ("t", "node", "parent2", "parent3", "parent4", "parent5", "parent6"), plan="plan"),
        Kind(WALK, "walk", ("t", "node")),  # the next gradients are of a backward that began at this node
        Kind(NAN_ORIGIN, "nan_origin", ("t", "node")),  # the first node of the backward that produced NaN or Inf
        # the backend and manager of this thread, or of every one, from now on; names: string ids, capacity -1: none
        Kind(
            USE, "use", ("t", "backend", "manager", "device", "capacity", "min_block", "granularity"), aux="everywhere"
        ),
        # calls of one group of ranks are numbered from 1; one that did not end has a beginning alone. group: an id of
        # `intern.groups`, which tells the rank; bucket: -1 where the call is not of a bucket of gradients, else `name`
        # is the string id of what that holds
        Kind(COLLECTIVE_BEGIN, "collective_begin", ("t", "seq", "group", "name", "", "bucket", "context"), plan="plan"),
        Kind(COLLECTIVE, "collective", ("t0", "t1", "seq", "group", "", "bucket", "context"), plan="plan"),
        # for how long the program stood still for a call
        Kind(WAIT, "wait", ("t0", "t1", "seq", "group", "", "", "context"), plan="plan"),
        # at time t the clock of the rank `peer` showed t + offset, give or take `bound`
        Kind(CLOCK_SYNC, "clock_sync", ("t", "peer", "offset", "bound", "group")),
        *(Kind(*each) for each in device_words.KINDS),
        Kind(DROPPED, "dropped", ("t", "count", "t_last")),
        Kind(OP_FAILED, "op_failed", ("t", "message", "node", "context", "parent0", "parent1"), plan="plan"),
        Kind(CUT, "cut", ("t", "node", "line", "context"), aux="reason"),
        Kind(LEAF, "leaf", ("t", "leaf", "name", "parameter"), plan="plan"),
        # an op of a backend that defers was recorded; it runs later, as an op event
        Kind(RECORD, "record", ("t0", "t1", "", "node", "context", "parent0", "parent1"), plan="plan"),
        # so many ops ran that had waited
        Kind(MATERIALIZE, "materialize", ("t0", "t1", "count", "", "", "", "context")),
        # a kernel of a program ran; the ops that it computes follow
        Kind(KERNEL, "kernel", ("t0", "t1", "", "", "ops", "", "context"), plan="plan"),
        # a function was made into a program: of so many values, by so many calls; or, with no calls, what an op needs
        # before its first call on such shapes was made or loaded: machine code, a library
        Kind(COMPILE, "compile", ("t0", "t1", "values", "calls", "", "", "context")),
        # a backend timed its ways to compute an op (name) on such shapes, and takes this one from now on; string ids
        Kind(CHOICE, "choice", ("t0", "t1", "name", "way", "implementation", "ways", "context")),
    )
}


def tuples(table: Columns, *names: str) -> zip[tuple[Any, ...]]:
    """Iterate over the rows of the named columns, each as a tuple of Python numbers."""
    return zip(*(table[name].tolist() for name in names), strict=True)


def kind_of(name: str) -> Kind:
    """Return the kind with a name; raises a `KeyError` that lists the known names if there is none."""
    if name not in KINDS:
        raise KeyError(f"no event kind {name!r}; the kinds are {', '.join(KINDS)}")
    return KINDS[name]


def among(*numbers: int) -> NDArray[np.bool_]:
    """Return a boolean array that is True at the given kinds' numbers: indexing it is faster than `numpy.isin`."""
    found = np.zeros(256, np.bool_)
    found[list(numbers)] = True
    return found


def columns(kind: Kind, rows: Records) -> Columns:
    """Convert records, all of one kind, to columns by field name.

    Plan and aux fields are unsigned, times and ids int64, floats float64.
    """
    code = rows[:, 0]
    table: Columns = {}
    if kind.plan:
        table[kind.plan] = (code >> PLAN_SHIFT).astype(np.uint32)
    if kind.aux:
        table[kind.aux] = ((code >> AUX_SHIFT) & 0xFFFF).astype(np.uint16)
    for word, name in enumerate(kind.words, start=1):
        if name:
            column = np.ascontiguousarray(rows[:, word])
            table[name] = column.view(np.float64) if name in kind.floats else column
    return table


def rows(kind: Kind, table: Columns) -> Records:
    """Convert columns of one kind back to records, shape (n, 8), the inverse of `columns`; "lane" is ignored."""
    made = np.zeros((WORDS, len(table[kind.words[0]])), np.int64).T  # so that each column is contiguous
    made[:, 0] = kind.number
    for name, shift in ((kind.aux, AUX_SHIFT), (kind.plan, PLAN_SHIFT)):
        if name:
            made[:, 0] |= table[name].astype(np.int64) << shift
    for word, name in enumerate(kind.words, start=1):
        if name:
            made[:, word] = table[name].view(np.int64) if name in kind.floats else table[name]
    return made


def numbers(rows: Records) -> NDArray[np.uint8]:
    """Return the number of each record's kind."""
    return rows[:, 0].astype(np.uint8)  # its lowest byte


def table(kind: Kind, batches: Batches, kinds: list[NDArray[np.uint8]] | None = None) -> Columns:
    """Collect the events of one kind from batches of records as columns, in order of time.

    A column "lane" holds the number of the thread that emitted each event.

    Args:
        kind: the kind of the events.
        batches: pairs of a thread's number and its records.
        kinds: the `numbers` of each batch's records, for a caller that asks for several kinds.
    """
    known = [numbers(rows) for _, rows in batches] if kinds is None else kinds
    chosen = [(lane, rows, each == kind.number) for (lane, rows), each in zip(batches, known, strict=True)]
    count = [int(np.count_nonzero(which)) for _, _, which in chosen]
    words, at = np.empty((WORDS, sum(count)), np.int64), 0
    for (_, rows, which), most in zip(chosen, count, strict=True):
        for first in range(0, len(rows) if most else 0, BLOCK):  # transposed while it is in the cache
            part = rows[first : first + BLOCK]
            if most < len(rows):
                part = part[which[first : first + BLOCK]]
            words[:, at : at + len(part)] = part.T
            at += len(part)
    lane = np.repeat(np.array([lane for lane, _, _ in chosen], np.int32), count)
    if (words[1, 1:] < words[1, :-1]).any():
        order = np.argsort(words[1], kind="stable")
        words, lane = words[:, order], lane[order]
    return columns(kind, words.T) | {"lane": lane}
