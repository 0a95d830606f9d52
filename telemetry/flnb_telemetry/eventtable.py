"""The events of a recording as columns by kind, from which analyses are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry import schema
from flnb_telemetry.formats.stored import merge

if TYPE_CHECKING:
    from collections.abc import Mapping


class EventTable:
    """The events of a recording up to a certain time, as columns by kind; each kind is computed once.

    Analyses refer to this table instead of the recording, because a reference cycle would delay freeing the records.
    """

    def __init__(self, events: int, batches: schema.Batches, stored: Mapping[str, schema.Columns]) -> None:
        self.events, self._batches, self._stored = events, batches, stored
        self._known: dict[str, schema.Columns] = {}
        self._kinds: list[Any] | None = None  # of each batch, the numbers of its records' kinds

    def __call__(self, kind: str) -> schema.Columns:
        """Return the columns of one kind, such as "op"."""
        what = schema.kind_of(kind)
        if kind not in self._known:
            if self._kinds is None:  # records are long: reading one byte of each for every kind took most of the time
                self._kinds = [schema.numbers(rows) for _, rows in self._batches]
            emitted, stored = schema.table(what, self._batches, self._kinds), self._stored.get(kind)
            self._known[kind] = emitted if stored is None else merge(what, [stored, emitted])
        return dict(self._known[kind])
