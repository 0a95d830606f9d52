"""Differences between two states of memory, by op and call stack, never by address."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry import Recording, load_run, quantity, schema, tables
from flnb_telemetry.analysis.memory import MemoryState
from flnb_telemetry.extras import require
from flnb_telemetry.safe_text import html_text
from flnb_telemetry.tables import Markup

if TYPE_CHECKING:
    from flnb_telemetry.intern import Frame

TITLES = ("bytes", "blocks", "op", "where")
SHOWN = 20


class DiffRow(NamedTuple):
    """The requested bytes and live blocks of one op at one call stack (or scope), before and after.

    If no op allocated the blocks (scratch memory, for example), `op` is their category in parentheses: "(temporary)".
    """

    op: str
    scope: str
    stack: tuple[Frame, ...]
    bytes_before: int
    bytes_after: int
    blocks_before: int
    blocks_after: int

    @property
    def nbytes(self) -> int:
        """The change of requested bytes, after minus before."""
        return self.bytes_after - self.bytes_before

    @property
    def blocks(self) -> int:
        """The change in the number of live blocks, after minus before."""
        return self.blocks_after - self.blocks_before


@dataclass(frozen=True, eq=False, repr=False)
class Diff:
    """The difference between two states of memory: a row for each op and call stack (or scope) that differs.

    Attributes:
        rows: the largest difference first.
        bytes_before, bytes_after: requested bytes of all live blocks, including those that do not differ.
    """

    rows: tuple[DiffRow, ...]
    bytes_before: int
    bytes_after: int

    def _cells(self) -> list[tuple[str, ...]]:
        """Return the largest differences as the cells of a table."""
        return [
            (_signed(row.nbytes, quantity.size(abs(row.nbytes))), f"{row.blocks:+d}", row.op, row.scope)
            for row in self.rows[:SHOWN]
        ]

    def _summary(self) -> str:
        """Return the live bytes before and after as a line of text."""
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
        """Return a DataFrame of all rows; a call stack is text with one line for each frame, the innermost first."""
        names = ("op", "scope", "bytes_before", "bytes_after", "nbytes", "blocks_before", "blocks_after", "blocks")
        rows = [[*(getattr(row, name) for name in names), "\n".join(map(str, row.stack))] for row in self.rows]
        frame = require("pandas", "lab", "a DataFrame").DataFrame(rows, columns=[*names, "stack"])
        return frame.rename(columns={"nbytes": "bytes"})


def diff(before: Any, after: Any) -> Diff:
    """Compare two states of memory by op and call stack (by scope if no stack is known).

    Blocks are never matched by address, so two steps, two runs or two processes can be compared.

    Args:
        before, after: a state (``run.memory.at(t)``, ``run.memory.peak``); or a recording, a `.flnb` file or a PyTorch
            memory snapshot, whose last state is compared.

    Returns:
        A `Diff`, which prints as a table.

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
        TypeError: an argument is neither a state nor a recording or path.
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
    """Return the memory state for an argument of `diff`: the argument itself, or the last state of a recording."""
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
    """List the live blocks of a state as ((op, scope, call stack), requested bytes, number of blocks)."""
    block, catalog = state.block, state.catalog
    columns = [block[name].astype(np.int64) for name in ("plan", "context", "category")]
    keys, group = np.unique(np.stack(columns), axis=1, return_inverse=True)
    group = group.reshape(-1)
    nbytes, counts = np.zeros(keys.shape[1], np.int64), np.bincount(group, minlength=keys.shape[1])
    np.add.at(nbytes, group, block["requested"])
    plans, contexts, stacks = catalog.plans.items, catalog.contexts.items, catalog.stacks
    return [
        (
            (
                plans[plan].op or f"({schema.CATEGORIES[category]})",
                contexts[context].scope,
                stacks.get(context, ()),
            ),
            size,
            n,
        )
        for (plan, context, category), size, n in zip(keys.T.tolist(), nbytes.tolist(), counts.tolist(), strict=True)
    ]


def _signed(number: int, text: str) -> str:
    """Return ``text``, the absolute value of ``number``, with the sign of ``number``: "+3", "-3", or "0" for 0."""
    return f"{'-' if number < 0 else '+'}{text}" if number else text
