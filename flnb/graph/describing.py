"""Descriptions of a program's launches (its kernels and calls): what each reads and stores, as text, and its times."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from flnb_telemetry import intern, schema

from flnb.graph.lowering import lowered
from flnb.graph.reporting import kernel_code, op_event, shares
from flnb.graph.values import ITEM, Value

if TYPE_CHECKING:
    from flnb_telemetry import Recording
    from flnb_telemetry.schema import Ints

    from flnb.graph.fusing import Group
    from flnb.graph.nests import Nest
    from flnb.graph.program import Program


class Stored(NamedTuple):
    """The memory location and lifetime of one value that a program stores.

    Attributes:
        name: the name of the value in the program's text.
        value: the value.
        offset: the offset of the value in the program's block, in bytes; None if the value is not in the block.
        home: the existing value whose memory is overwritten with this value, or None.
        first, last: the number of the launch that writes the value, and of the last launch that reads it.
    """

    name: str
    value: Value
    offset: int | None
    home: Value | None
    first: int
    last: int

    @property
    def where(self) -> str:
        """Return the location as text: "at" an offset of the program's block, "in place", or "new" memory."""
        if self.home is not None:
            return "in place"
        return "new" if self.offset is None else f"at {self.offset}"


class Launch(NamedTuple):
    """One call that a program makes: a kernel of fused ops, or a method of the backend.

    Attributes:
        number: its index in the program, from 0.
        kind: "kernel", "call", or "copy" for a result that is copied to the memory of the value it replaces.
        members: the values that the launch computes, in order.
        shares: each member's share of the launch's time (0 to 1), estimated from the bytes that the member's op alone
            would move.
        reads: the values that the launch reads from memory.
        stored: the members that are written to memory.
        group: the fusion group that the launch computes; None for a copy.
        event: the plan and the context of the launch's event in telemetry.
        own: whether the launch calls a method of the user's class.
    """

    number: int
    kind: str
    members: list[Value]
    shares: list[float]
    reads: list[Value]
    stored: list[Stored]
    group: Group | None
    event: tuple[intern.Plan, intern.Context]
    own: bool

    @property
    def ops(self) -> list[str]:
        """Return the names of the ops that this launch computes."""
        return [x.op.name for x in self.members if x.op is not None and x.op is not ITEM]

    @property
    def title(self) -> str:
        """Return a short label: the launch's number and its first op names, as in "#3 exp+add"."""
        names = list(dict.fromkeys(self.ops)) or ["copy"]
        return f"#{self.number} {'+'.join(names[:4])}{'+…' if len(names) > 4 else ''}"


def launches(program: Program) -> list[Launch]:
    """List a program's launches in order: one for each kernel and each call of a backend method."""
    layouts, memory = program.layouts, program.memory
    written, last = {}, {}
    for i, group in enumerate(program.groups):
        for value in group.members:
            written[value] = i
            for x in value.inputs:
                last[layouts[x].root] = i
    end = len(program.groups)
    last |= {new: end + i for i, (_, new) in enumerate(memory.copies)}
    own = program.here.backend.overridden()
    names: dict[Value, str] = {}
    made = []
    for i, (group, stored) in enumerate(zip(program.groups, program.stored, strict=True)):
        kept = []
        for x in stored:
            names[x] = f"%{len(names) + 1}"
            until = end if x in program.fresh or x in memory.home else last.get(x, i)
            kept.append(Stored(names[x], x, memory.offset.get(x), memory.home.get(x), i, until))
        roots = dict.fromkeys(layouts[x].root for each in group.members for x in each.inputs)
        reads = [x for x in roots if x not in group.members]
        kind = "call" if group.shape is None else "kernel"
        members = list(group.members)
        mine = any(x.op is not None and x.op.name in own for x in members)
        if group.shape is None:
            event = _event(program, op_event(members[0]), members[0])
        else:
            event = _event(program, kernel_code(nest_of(program, group, stored), members), members[-1])
        made.append(Launch(i, kind, members, shares(members), reads, kept, group, event, mine))
    for i, (old, new) in enumerate(memory.copies, end):
        copied, event = [Stored("", new, None, old, i, i)], _event(program, op_event(old), old)
        made.append(Launch(i, "copy", [], [], [new], copied, None, event, "copy" in own))
    return made


def _event(program: Program, code: int, value: Value) -> tuple[intern.Plan, intern.Context]:
    """Return the plan and the context that telemetry stores for an event, given its code and value."""
    return intern.plans.items[code >> schema.PLAN_SHIFT], intern.contexts.items[program.contexts.get(value, 0)]


def nest_of(program: Program, group: Group, stored: list[Value]) -> Nest:
    """Return the loop nest that computes a fusion group of ``program`` and writes its values ``stored`` to memory."""
    return lowered(group, stored, program.layouts).nest


def program_text(program: Program) -> str:
    """Return a program's calls as text, one line each: the ops, their operands, and where results are stored."""
    found = launches(program)
    names = {x.value: x.name for each in found for x in each.stored if x.name}
    lines = []
    for each in found:
        reads = [names.get(x) or repr(x.spec) for x in each.reads]
        kind = "kernel " if each.kind == "kernel" else ""
        made = ", ".join(f"{x.name} {x.value.spec!r} {x.where}".strip() for x in each.stored)
        lines.append(f"{kind}{'+'.join(each.ops) or 'copy'}({', '.join(reads)}) -> {made}")
    return "\n".join(lines)


def times(program: Program, run: Recording) -> Ints:
    """Return the time (ns) of each launch of a program, for each run of the program in a recording.

    Returns:
        An array of shape (runs, launches), with a row for each run of the program that was recorded from beginning to
        end.
    """
    wanted = [launch.event for launch in launches(program)]
    known = {event: i for i, event in enumerate(dict.fromkeys(wanted))}
    plans, contexts = run.catalog.plans.items, run.catalog.contexts.items
    ops, kernels = run.table("op"), run.table("kernel")
    rows = []
    for table, chosen in ((ops, ops["estimated"] == 0), (kernels, slice(None))):
        pairs = zip(table["plan"][chosen].tolist(), table["context"][chosen].tolist(), strict=True)
        numbers = [known.get((plans[p], contexts[c]), -1) for p, c in pairs]
        rows.append(np.array([numbers, table["t0"][chosen], table["t1"][chosen]], np.int64).reshape(3, -1))
    numbers, t0, t1 = (columns := np.concatenate(rows, axis=1))[:, np.argsort(columns[1], kind="stable")]
    sequence = np.array([known[event] for event in wanted], np.int64)
    count = len(sequence)
    starts = np.flatnonzero(numbers[: max(0, len(numbers) - count + 1)] == sequence[0])
    found = [(t1 - t0)[i : i + count] for i in starts if (numbers[i : i + count] == sequence).all()]
    return np.array(found, np.int64).reshape(len(found), count)
