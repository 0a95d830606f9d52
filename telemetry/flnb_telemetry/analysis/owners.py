"""Live memory grouped by the category, op, scope, line or call stack that allocated it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flnb_telemetry import quantity, schema, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb_telemetry.analysis.memory import MemoryState

KEYS = ("category", "op", "scope", "phase", "line", "stack")
SHOWN = 40


class OwnerRow(NamedTuple):
    """One group of live blocks, with their number and bytes.

    `key` has the group's value of each key, such as ("train.py:3: y = x @ w",).
    """

    key: tuple[str, ...]
    blocks: int
    bytes: int


class Owners:
    """The blocks that are live at one moment, grouped by the op, scope, line or the like that allocated them.

    The group with most bytes comes first.

    Args:
        state: the memory at that moment.
        keys: one or more of `KEYS`, by which to group. The "line" of a block of the backward pass is that of the
            forward op. A "stack" is one line, except in recordings with `flnb.record(stacks=True)`.
    """

    def __init__(self, state: MemoryState, *keys: str) -> None:
        unknown = [key for key in keys if key not in KEYS]
        if unknown or not keys:
            raise ValueError(
                f"run.memory: cannot group by {', '.join(unknown) or 'nothing'}; expected one or more of "
                f"{', '.join(KEYS)}"
            )
        self.keys, catalog, block = keys, state.catalog, state.block
        catalog.refresh()
        plans, contexts = block["plan"], block["context"]
        columns = {"category": block["category"], "op": catalog.op[plans], "phase": catalog.phase[contexts]}
        columns |= {name: getattr(catalog, name)[contexts] for name in ("scope", "line", "stack")}
        names = {"category": schema.CATEGORIES, "phase": schema.PHASES}
        ids = np.stack([columns[key].astype(np.int64) for key in keys])
        groups, member = np.unique(ids, axis=1, return_inverse=True)
        member = member.reshape(-1)
        nbytes = np.bincount(member, block["size"], groups.shape[1]).astype(np.int64)
        counts = np.bincount(member, minlength=groups.shape[1])
        self.rows = sorted(
            (
                OwnerRow(
                    tuple(names.get(key, catalog.strings.items)[i] for key, i in zip(keys, group, strict=True)), *row
                )
                for group, row in zip(
                    groups.T.tolist(), zip(counts.tolist(), nbytes.tolist(), strict=True), strict=True
                )
            ),
            key=lambda row: -row.bytes,
        )

    def __iter__(self) -> Iterator[OwnerRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> OwnerRow:
        return self.rows[number]

    def cells(self) -> list[list[str]]:
        """Return the table as rows of texts, first the titles."""
        rows = [
            [*(part or quantity.UNKNOWN for part in row.key), str(row.blocks), quantity.size(row.bytes)] for row in self
        ]
        return [[*self.keys, "blocks", "bytes"], *rows]

    def __repr__(self) -> str:
        if not self.rows:
            return "no live blocks"
        more = [f"... and {len(self) - SHOWN} more"] * (len(self) > SHOWN)
        return "\n".join(tables.lines(self.cells()[: 1 + SHOWN], "<" * len(self.keys) + ">") + more)

    def _repr_html_(self) -> str:
        return tables.html(self.cells(), "<" * len(self.keys) + ">") if self.rows else "<p>no live blocks</p>"
