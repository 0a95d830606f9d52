"""The difference between two states of memory, by op and call stack, independent of addresses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry import Recording, load_run, quantity, tables
from flnb_telemetry.analysis.memory import MemoryState
from flnb_telemetry.extras import require
from flnb_telemetry.safe_text import html_text
from flnb_telemetry.tables import Markup

if TYPE_CHECKING:
    from flnb_telemetry.intern import Frame

__all__ = ["Diff", "DiffRow", "diff"]

TITLES = ("bytes", "blocks", "op", "where")
SHOWN = 20


class DiffRow(NamedTuple):
    """Live blocks of one op and place, before and after: requested bytes, and how many."""

    op: str
    scope: str
    stack: tuple[Frame, ...]
    bytes_before: int
    bytes_after: int
    blocks_before: int
    blocks_after: int

    @property
    def nbytes(self) -> int:
        """Change in bytes."""
        return self.bytes_after - self.bytes_before

    @property
    def blocks(self) -> int:
        """Change in the number of blocks."""
        return self.blocks_after - self.blocks_before


@dataclass(frozen=True, eq=False, repr=False)
class Diff:
    """What changed between two states: a row for each op and call stack (or scope) that differs.

    Attributes:
        rows: by how much they differ, the most first; more before as much less.
        bytes_before, bytes_after: requested bytes live in all, also of what does not differ.
    """

    rows: tuple[DiffRow, ...]
    bytes_before: int
    bytes_after: int

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (_signed(row.nbytes, quantity.size(abs(row.nbytes))), f"{row.blocks:+d}", row.op, row.scope)
            for row in self.rows[:SHOWN]
        ]

    def _summary(self) -> str:
        before, after = quantity.size(self.bytes_before), quantity.size(self.bytes_after)
        more = f"; the {SHOWN} largest of {len(self.rows)}" if len(self.rows) > SHOWN else ""
        change = self.bytes_after - self.bytes_before
        return f"live: {before} before, {after} after, {_signed(change, quantity.size(abs(change)))}{more}"

    def __repr__(self) -> str:
        lines = tables.lines([TITLES, *self._cells()], ">><")
        return "\n".join([self._summary(), *(lines if self.rows else ["no difference"])])

    def _repr_html_(self) -> str:
        rows = []
        for (*cells, place), row in zip(self._cells(), self.rows, strict=False):
            stack = html_text("\n".join(map(str, row.stack)))
            rows.append([*cells, Markup(f'<span title="{stack}">{html_text(place)}</span>')])
        return f"<div>{html_text(self._summary())}</div>{tables.html([TITLES, *rows], '>><')}"

    def to_pandas(self) -> Any:
        """A DataFrame of all rows; stacks as text, a line for each frame, the innermost first."""
        names = ("op", "scope", "bytes_before", "bytes_after", "bytes", "blocks_before", "blocks_after", "blocks")
        columns: dict[str, list[Any]] = {
            name: [getattr(row, "nbytes" if name == "bytes" else name) for row in self.rows] for name in names
        }
        stacks = ["\n".join(map(str, row.stack)) for row in self.rows]
        return require("pandas", "lab", "a DataFrame").DataFrame(columns | {"stack": stacks})


def diff(before: Any, after: Any) -> Diff:
    """Compare two states of memory by op and call stack (by scope if no stack is known).

    Blocks are never matched by address, so two steps, two runs or two processes can be compared.

    Args:
        before, after: a state (``run.memory.at(t)``, ``run.memory.peak``); or a recording, a `.flnb` file or a PyTorch
            memory snapshot, of which the end is taken.

    >>> import flnb
    >>> with flnb.use_memory_manager(flnb.memory.Caching()), flnb.record() as run:
    ...     kept = flnb.ones((256, 256))
    ...     halfway = run.memory.at(run.seconds)
    ...     with flnb.scope("leak"):
    ...         more = [kept + 1.0 for _ in range(3)]
    >>> flnb.memory.diff(halfway, run)
    live: 256 KiB before, 1.00 MiB after, +768 KiB
       bytes  blocks  op   where
    +768 KiB      +3  add  leak

    Raises:
        TypeError: neither a state nor what has one.
    """
    sums: dict[tuple[str, str, tuple[Frame, ...]], list[int]] = {}
    for side, source in enumerate((before, after)):
        for key, nbytes, blocks in _held(_state(source)):
            row = sums.setdefault(key, [0, 0, 0, 0])
            row[side] += nbytes
            row[2 + side] += blocks
    rows = [DiffRow(*key, *row) for key, row in sums.items() if row[0] != row[1] or row[2] != row[3]]
    rows.sort(key=lambda row: (-abs(row.nbytes), -abs(row.blocks), row.op, row.scope))
    return Diff(tuple(rows), *(sum(row[side] for row in sums.values()) for side in (0, 1)))


def _state(source: Any) -> MemoryState:
    if isinstance(source, (str, Path)):
        source = load_run(source)
    if isinstance(source, Recording):
        source = source.memory.at(source.seconds)
    if not isinstance(source, MemoryState):
        raise TypeError(
            f"flnb.memory.diff: expected a state (run.memory.at(t)), a recording or the path of a saved run or PyTorch "
            f"snapshot, got {type(source).__name__}"
        )
    return source


def _held(state: MemoryState) -> list[tuple[tuple[str, str, tuple[Frame, ...]], int, int]]:
    """Count the live blocks and their requested bytes for each op and place."""
    block, catalog = state.block, state.catalog
    pairs, group = np.unique(np.stack([block["plan"].astype(np.int64), block["context"]]), axis=1, return_inverse=True)
    group = group.reshape(-1)
    nbytes, counts = np.zeros(pairs.shape[1], np.int64), np.bincount(group, minlength=pairs.shape[1])
    np.add.at(nbytes, group, block["requested"])
    plans, contexts, stacks = catalog.plans.items, catalog.contexts.items, catalog.stacks
    return [
        ((plans[plan].op, contexts[context].scope, stacks.get(context, ())), size, n)
        for (plan, context), size, n in zip(pairs.T.tolist(), nbytes.tolist(), counts.tolist(), strict=True)
    ]


def _signed(number: int, text: str) -> str:
    return f"{'-' if number < 0 else '+'}{text}" if number else text
