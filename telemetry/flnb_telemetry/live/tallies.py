"""The ops of a live view, counted by op, scope, line and shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_telemetry.intern import joined
from flnb_telemetry.tally import Tally, buckets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.schema import Columns, Ints

ROWS = 4096
"""The most scopes, lines or shapes of a program that still runs whose times are shown."""
GROUPS = {name: f"(other {name}s)" for name in ("scope", "line", "shape")}
"""The names of the sums beyond these rows."""
WAITING = 1 << 13
"""The most ops that wait to be counted."""


class Tallies:
    """Statistics of the times and bytes of ops, by op, scope, line and shape.

    Ops are counted when the statistics are needed, which is less often than ops arrive.

    Args:
        catalog: resolves the ids in records.
        rows: the largest number of scopes, lines and shapes; None for no limit.

    Attributes:
        by: the statistics: "op", "scope", "line" and "shape".
    """

    def __init__(self, catalog: Catalog, rows: int | None) -> None:
        self._catalog = catalog
        self.by = {"op": Tally()} | {key: Tally(rows, catalog.strings.id_of(other)) for key, other in GROUPS.items()}
        self._waiting: list[Ints] = []

    def take(self, ops: Columns, scope: NDArray[Any]) -> None:
        """Receive the next op events, as columns, and the scope (string id) of each."""
        nbytes = self._catalog.nbytes[ops["plan"]]
        self._waiting.append(np.array([*self._groups(ops, scope), ops["t1"] - ops["t0"], nbytes], np.int64))
        if sum(part.shape[1] for part in self._waiting) > WAITING:
            self.count()

    def count(self) -> None:
        """Add the ops that wait to the statistics."""
        if self._waiting:
            *groups, spent, nbytes = np.concatenate(self._waiting, axis=1)
            self._waiting.clear()
            bucket = buckets(spent)
            for tally, group in zip(self.by.values(), groups, strict=True):
                tally.add(group, spent, bucket, nbytes)

    def settle(self, ops: Columns, scope: NDArray[Any]) -> None:
        """Make percentiles exact from all ops of a run, which were received before (see `Tally.settle`)."""
        self.count()
        for tally, group in zip(self.by.values(), self._groups(ops, scope), strict=True):
            tally.settle(group, ops["t1"] - ops["t0"])

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the statistics as the columns of a frame."""
        self.count()
        found = dict(pair for name, tally in self.by.items() for pair in tally.columns(name).items())
        if "op.name" in found:
            found["op.family"] = joined(found["op.name"], self._catalog.op, self._catalog.family)
        return found

    def _groups(self, ops: Columns, scope: NDArray[Any]) -> list[NDArray[Any]]:
        """Return for each statistic the id of the group of each op: its name, its scope, its line, its shape."""
        catalog = self._catalog
        return [catalog.op[ops["plan"]], scope, catalog.line[ops["context"]], catalog.shape[ops["plan"]]]
