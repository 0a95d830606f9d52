"""Conversion of events from the flat lists of numbers that threads write to plain records, which are rows of int64.

The most frequent events have a shorter form in the lists. An op's times are float seconds. Up to three ops that ran
without a pause share one record, and so do the request to free a block and its free. `packed` expands these records.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry import schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOAT_TIMES = 1 << schema.AUX_SHIFT
"""A bit of an op's code: the times are float seconds of `time.perf_counter`, which is faster than integers."""
ROW = 2 << schema.AUX_SHIFT
"""A bit of the code of a record of up to `ROW_OPS` ops, each of which began at the end of the previous op. Words 1, 2,
6 and 7 are the times of their beginnings and ends in float seconds. `row_code` returns such codes."""
ROW_OPS = 3
FREE = schema.FREE_REQUESTED | ROW
"""The code of a record of two events: `free_requested`, at the time in word 5, and `free_completed`."""
EXCLUDED = schema.OP | 4 << schema.AUX_SHIFT
"""The code of a record that precedes an op's record and shortens the op. Word 1 has the nanoseconds to remove at the
beginning of the op, word 2 those at its end. `bus.exclude` emits the record."""
FUSED = schema.KERNEL | 1 << schema.AUX_SHIFT
"""The kind of a kernel's record before it is expanded; its word 3 is a number that `parts_number` returned."""
ESTIMATED = schema.OP | 1 << schema.AUX_SHIFT
"""The code, without the plan, of the event of an op that a kernel computes together with other ops."""
_BATCH = 512 * schema.WORDS

_pack = struct.Struct("@" + "qddqqqdd" * 512).pack  # native, as NumPy reads it: a tenth quicker than "="
_pack_one = struct.Struct("@qddqqqdd").pack
_bits_of = struct.Struct("<d").pack
_int_of = struct.Struct("<q").unpack


_KIND = (1 << schema.PLAN_SHIFT) - 1
_ROW_KIND = schema.OP | FLOAT_TIMES | ROW
_rows: dict[tuple[int, ...], int] = {}  # the codes of ops, and the code of the one record for them
_row_ops: list[tuple[int, ...]] = []  # the codes of the ops, by the number in that code
_new_row = threading.Lock()


def row_code(codes: tuple[int, ...]) -> int:
    """Return the code of a record that stands for several successive ops, given the ops' codes."""
    with _new_row:
        code = _rows.get(codes)
        if code is None:
            _row_ops.append(codes)
            code = _rows[codes] = _ROW_KIND | (len(_row_ops) - 1) << schema.PLAN_SHIFT
        return code


_parts: list[tuple[schema.Records, NDArray[np.float64]]] = []  # records of ops, and where in the time of the kernel


def parts_number(codes: list[int], contexts: list[int], shares: list[float]) -> int:
    """Store the ops that a kernel computes, and return the number by which the kernel's records refer to them.

    Args:
        codes, contexts: the codes and context ids of the ops' events.
        shares: the share of the kernel's time that each op takes; their sum is 1.
    """
    records = np.zeros((len(codes), schema.WORDS), np.int64)
    records[:, 0] = [code & schema.PLAN_BITS | ESTIMATED for code in codes]
    records[:, 5] = contexts
    with _new_row:
        _parts.append((records, np.concatenate([[0.0], np.cumsum(shares)])))
        return len(_parts) - 1


def _with_parts(records: schema.Records, kernels: NDArray[np.intp]) -> schema.Records:
    """Insert after each kernel record (at the positions `kernels`) the records of the ops that the kernel computes."""
    made, before = [], 0
    for at in kernels.tolist():
        parts, places = _parts[records[at, 3]]
        kernel, ops = records[at : at + 1].copy(), parts.copy()
        kernel[0, 0] &= ~(1 << schema.AUX_SHIFT)
        kernel[0, 3], kernel[0, 5] = 0, len(ops)
        times = kernel[0, 1] + np.rint(places * (kernel[0, 2] - kernel[0, 1])).astype(np.int64)
        ops[:, 1], ops[:, 2] = times[:-1], times[1:]
        made += [records[before:at], kernel, ops]
        before = at + 1
    return np.concatenate([*made, records[before:]])


def count_events(numbers: list[Any]) -> int:
    """Return the number of events in a flat list of numbers; one record may contain several events."""
    codes = numbers[:: schema.WORDS]
    return sum(
        len(_row_ops[code >> schema.PLAN_SHIFT]) if code & _KIND == _ROW_KIND else 1 + (code == FREE) for code in codes
    )


def _opened(records: schema.Records, rows: NDArray[np.bool_]) -> schema.Records:
    """Replace each record of several ops by one record per op; ``rows`` is the mask of the records of several ops."""
    numbers, which = np.unique(records[rows, 0] >> schema.PLAN_SHIFT, return_inverse=True)
    known = [_row_ops[number] for number in numbers.tolist()]
    counts = np.ones(len(records), np.int64)
    counts[rows] = np.array([len(codes) for codes in known])[which]
    opened = np.repeat(records, counts, axis=0)
    at = np.flatnonzero(np.repeat(rows, counts))
    within = (np.arange(len(opened)) - np.repeat(np.cumsum(counts) - counts, counts))[at]
    codes = np.array([(*codes, 0, 0)[:ROW_OPS] for codes in known]) & ~FLOAT_TIMES
    times, each = opened[at][:, [1, 2, 6, 7]], np.arange(len(at))
    opened[at, 0] = codes[np.repeat(which, counts[rows]), within]
    opened[at, 1], opened[at, 2] = times[each, within], times[each, within + 1]
    opened[at, 6:] = 0
    return opened


def _own_times(records: schema.Records, excluded: NDArray[np.bool_]) -> schema.Records:
    """Apply and remove the records that shorten the op after them; ``excluded`` is the mask of these records.

    Each of them has the ns by which to move the beginning and the end of the op.
    """
    kept = np.flatnonzero(~excluded)
    rows = np.flatnonzero(excluded)
    op = np.searchsorted(kept, rows)
    rows, op = rows[op < len(kept)], op[op < len(kept)]
    found = records[kept]
    np.add.at(found[:, 1], op, records[rows, 1])
    np.subtract.at(found[:, 2], op, records[rows, 2])
    return found


def _both(records: schema.Records, freed: NDArray[np.bool_]) -> schema.Records:
    """Replace each record in the mask ``freed`` by two: the request to free a block, and the free itself."""
    opened = np.repeat(records, 1 + freed, axis=0)
    first = np.flatnonzero(freed) + np.arange(np.count_nonzero(freed))
    opened[first, 0], opened[first, 1] = schema.FREE_REQUESTED, opened[first, 5]
    opened[first + 1, 0] = schema.FREE_COMPLETED
    opened[first, 5] = opened[first + 1, 5] = 0
    return opened


def float_bits(value: float) -> int:
    """Return the 64 bits of a float as a signed integer, the form in which records store floats."""
    return int(_int_of(_bits_of(value))[0])


def nanoseconds(t: float) -> int:
    """Convert float seconds to nanoseconds; an int is returned as it is."""
    return int(t * 1e9) if isinstance(t, float) else t


def _packed_or_dropped(record: list[Any]) -> bytes:
    """Return one record as bytes; if one of its values is out of range, return a `dropped` record instead."""
    try:
        return _pack_one(*record)
    except struct.error:
        t = nanoseconds(record[1])
        return _pack_one(schema.DROPPED, t, count_events(record), t, 0, 0, 0, 0)


def packed(numbers: list[Any]) -> schema.Records:
    """Convert a thread's flat list of numbers to plain records, shape (n, 8), with times in ns."""
    whole = len(numbers) // _BATCH * _BATCH
    try:
        parts = [_pack(*numbers[i : i + _BATCH]) for i in range(0, whole, _BATCH)]
        parts += [_pack_one(*numbers[i : i + 8]) for i in range(whole, len(numbers), 8)]
    except struct.error:
        parts = [_packed_or_dropped(numbers[i : i + 8]) for i in range(0, len(numbers), 8)]
    records = np.frombuffer(bytearray().join(parts), np.int64).reshape(-1, 8)
    codes, doubles = records[:, 0].copy(), records.view(np.float64)
    kinds = codes & _KIND
    single, rows = (kinds == schema.OP | FLOAT_TIMES) | (kinds == schema.RECORD | FLOAT_TIMES), kinds == _ROW_KIND
    factor, several = np.where(single | rows, 1e9, 1.0), bool(rows.any())
    for word in (1, 2):  # column by column, without masks: a quarter of the time
        records[:, word] = np.rint(doubles[:, word] * factor)
    if several:
        doubles[rows, 6:] *= 1e9
    for word in (6, 7):
        records[:, word] = np.rint(doubles[:, word])
    records[:, 0] = codes & ~np.where(single, FLOAT_TIMES, 0)
    if several:
        records = _opened(records, rows)
    excluded = records[:, 0] == EXCLUDED
    if excluded.any():
        records = _own_times(records, excluded)
    kernels = np.flatnonzero(records[:, 0] & _KIND == FUSED)
    if len(kernels):
        records = _with_parts(records, kernels)
    freed = records[:, 0] == FREE
    return _both(records, freed) if freed.any() else records
