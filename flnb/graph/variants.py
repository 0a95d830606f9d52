"""Variants: several rewrites and groupings of a graph are made; a program uses the variant with the least memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from flnb.graph.fusing import grouped, space_of
from flnb.graph.launches import routine_of
from flnb.graph.pooling import with_places
from flnb.graph.recomputing import recomputed
from flnb.graph.values import reachable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flnb.graph.fusing import Group
    from flnb.graph.program import Program
    from flnb.graph.values import Value


class Variant(NamedTuple):
    """One way to compute a program.

    Attributes:
        groups: the fusion groups, in order.
        scratch: a dict from the number of a group to its bytes of scratch memory; groups whose bytes are 0 or unknown
            are missing.
        outputs, updates: the program's outputs and updates in the rewritten graph.
        values: all values that the program computes, and views of them.
    """

    groups: Sequence[Group]
    scratch: dict[int, int]
    outputs: list[Value]
    updates: list[tuple[Value, Value]]
    values: list[Value]


def least_variant(program: Program, kept_apart: Collection[str]) -> Variant:
    """Return the variant that needs the least memory.

    Variants differ in two points: whether forward and backward pass are fused, and which forward values the backward
    pass computes again. Which variant is best depends on how many forward values the backward pass reads.

    Args:
        program: the program, whose outputs, updates and effects are set.
        kept_apart: names of ops that loop nests must not compute.
    """
    layouts, kernels = program.layouts, program.kernels
    ends = [*program.outputs, *[new for _, new in program.updates], *program.effects]
    chosen: list[tuple[dict[Value, Value], bool]] = []
    places = with_places(ends, layouts, kept_apart) if kernels else {}
    for placed, masks in ((places, True), (places, False), ({}, False)) if kernels else ():
        own = [placed.get(x, x) for x in ends]
        again = recomputed(own, layouts, lambda x: space_of(x, kept_apart) is not None, masks)
        chosen.append(({x: again.get(y, y) for x, y in zip(ends, own, strict=True)}, True))
    found: list[tuple[int, int, Variant]] = []
    known: dict[Any, int] = {}
    for now, apart in [*chosen, ({}, True), ({}, False)]:
        outputs = [now.get(x, x) for x in program.outputs]
        updates = [(old, now.get(new, new)) for old, new in program.updates]
        values = reachable([now.get(x, x) for x in ends])
        groups = grouped(values, layouts, kept_apart, apart, kernels, {*outputs}, updates)
        scratch = _scratch(program, groups, known)
        draft, _ = program.placed(groups, updates, outputs, scratch, draft=True)
        found.append((draft.size, len(found), Variant(groups, scratch, outputs, updates, values)))
    return min(found)[-1]


def _scratch(program: Program, groups: Sequence[Group], known: dict[Any, int]) -> dict[int, int]:
    """Return a dict from group number to bytes of scratch memory, for groups that library routines will compute.

    ``known`` caches the bytes by op, shapes and attributes.
    """
    found = {}
    for i, group in enumerate(groups):
        value = group.members[0]
        if group.shape is None and value.op is not None and not value.op.body:
            operands = tuple([(x.spec.shape, program.layouts[x].strides) for x in (*value.inputs, value)])
            key = value.op, operands, repr(value.attributes)
            if key not in known:
                routine = routine_of(value, program.site(value), program.layouts, program.kept_apart)
                known[key] = 0 if routine is None else routine.scratch
            if known[key]:
                found[i] = known[key]
    return found
