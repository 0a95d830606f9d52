"""The events of a recording between two times, read without reading all events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flnb_telemetry import schema
from flnb_telemetry.formats.stored import Stored, merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def excerpt(
    stored: Mapping[str, schema.Columns], batches: schema.Batches, kinds: Iterable[str], t0: int, t1: int, most: int
) -> dict[str, schema.Columns] | None:
    """Return the events of some kinds that happened between two times (ns), each kind as a table.

    Args:
        stored: the events on disk, or all events of a file, by kind.
        batches: later events, which are in memory.
        kinds: the kinds to return.
        t0, t1: the times.
        most: the largest number of events to read; if the batches and row groups at these times have more, the result
            is None.
    """
    batches = _near(batches, t0, t1)
    groups = {kind: stored.between(kind, t0, t1) for kind in kinds} if isinstance(stored, Stored) else {}
    count = sum(len(rows) for _, rows in batches) + sum(group.rows for own in groups.values() for group in own)
    if count > most:
        return None
    numbers, found = [schema.numbers(rows) for _, rows in batches], {}
    for kind in kinds:
        what = schema.kind_of(kind)
        read = stored.of_groups(kind, groups[kind]) if isinstance(stored, Stored) else stored.get(kind)
        emitted = schema.table(what, batches, numbers)
        found[kind] = _cut(what, merge(what, [emitted] if read is None else [read, emitted]), t0, t1)
    return found


def _near(batches: schema.Batches, t0: int, t1: int) -> schema.Batches:
    """Return the batches that may have events between two times (ns), and each thread's last batch before them.

    The last event of such an earlier batch may have begun before `t0` and ended after it.
    """
    found, before = [], {}
    for batch in batches:
        lane, rows = batch
        if rows[-1, 1] < t0:
            before[lane] = batch
        elif rows[0, 1] <= t1:
            found.append(batch)
    return [*before.values(), *found]


def _cut(kind: schema.Kind, table: schema.Columns, t0: int, t1: int) -> schema.Columns:
    """Return the events of a table that begin before the time t1, and end after t0 (ns)."""
    begin, end = table[kind.words[0]], table["t1" if "t1" in table else kind.words[0]]
    chosen = (begin <= t1) & (end >= t0)
    return {name: column[chosen] for name, column in table.items()}
