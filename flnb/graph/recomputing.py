"""Rematerialization: recomputes forward values in the backward pass where this saves memory.

A forward value is not stored for the backward pass under two conditions: in the backward pass only loop nests read the
value, and elementwise ops can compute it from values that are smaller or are stored in any case. The nests then compute
the value again. So a dropout stores one byte per element, and GELU only its argument. See Chen et al., "Training deep
nets with sublinear memory cost" (2016). Here the choice is made value by value, the last value first, and only
elementwise ops are computed twice.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from flnb_telemetry import intern
from flnb_telemetry.schema import BACKWARD, FORWARD

from flnb.graph.fusing import is_late
from flnb.graph.layouts import is_view
from flnb.graph.rewriting import like
from flnb.graph.scalars import DISCRETE, REDUCTIONS
from flnb.graph.values import Value, reachable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from flnb.graph.layouts import Layouts

MOST_STEPS = 12
"""The most ops that may be needed to compute a value again."""
JUMPS = DISCRETE - {"maximum", "minimum"}
"""The ops that are computed again only from exactly the same operands."""
LONGEST_CHAIN = 3
"""The most values of a chain that are recomputed one from another. Methods read all of them, so all are stored then."""
WORTH = 1 << 14
"""The smallest size in bytes of values that are recomputed."""


class _Kept:
    """Chooses the forward values that are stored for the backward pass.

    Attributes:
        late: the values of the backward pass.
        kept: forward values that are stored because values in ``late`` read them.
        pinned: forward values that must be stored.
        masks: whether bool values are stored in any case; then the values from which they are computed can be freed
            earlier.
        whole: forward values that backend methods read in the backward pass. If such a value is computed again, the
            copy is stored until its last use.
        chains: for each value of ``whole``, the length of the longest chain of recomputed values that ends with it.
    """

    def __init__(
        self,
        values: Iterable[Value],
        ends: Collection[Value],
        layouts: Layouts,
        in_nest: Callable[[Value], bool],
        masks: bool,
    ) -> None:
        self.layouts, self.in_nest, self.masks = layouts, in_nest, masks
        self.late: set[Value] = set()
        self.kept: set[Value] = set()
        self.whole: set[Value] = set()
        self.chains: dict[Value, int] = {}
        self.pinned = {layouts[x].root for x in ends}
        for value in values:
            if is_view(value):
                continue
            roots = self.roots(value)
            if is_late(value) and not self._is_early(value, roots):
                self.late.add(value)
                needed = [x for x in roots if x not in self.late]
                self.kept.update(needed)
                if not in_nest(value):
                    self.whole.update(needed)

    def roots(self, value: Value) -> list[Value]:
        """Return the values that own the memory of a value's inputs, except values that existed before recording."""
        return [root for root in [self.layouts[x].root for x in value.inputs] if root.op is not None]

    def _is_early(self, value: Value, roots: list[Value]) -> bool:
        """Return whether a value of the backward pass depends on forward values alone, and is or reads a bool mask.

        Such a value can be computed before the backward pass; then the mask, a byte per element, is stored. ``roots``
        are the values that own the memory of its inputs.
        """
        is_condition = value.spec.dtype.char == "?" or any(x.spec.dtype.char == "?" for x in value.inputs)
        return is_condition and bool(roots) and self._repeats(value) and self.late.isdisjoint(roots)

    def _repeats(self, value: Value) -> bool:
        """Return whether a value is elementwise and computed by a nest, so that another nest can compute it again."""
        return self.in_nest(value) and value.op is not None and value.op.name not in REDUCTIONS

    def choose(self) -> None:
        """Replace stored values by smaller ones from which they can be recomputed, as long as this saves memory.

        Values that backend methods read are replaced first. From the values that are then stored, nests can compute
        most of the other values.
        """
        waiting = [self._turn(x) for x in self.kept]
        heapq.heapify(waiting)
        while waiting:
            value = heapq.heappop(waiting)[-1]
            if value in self.pinned or value.spec.nbytes < WORTH:
                continue
            found = self._sources(value)
            if found is not None:
                self.kept.remove(value)
                for x in found - self.kept:
                    heapq.heappush(waiting, self._turn(x))
                self.kept |= found
                if value in self.whole:
                    self._limit_chain(value, found & self.whole)

    def _limit_chain(self, value: Value, sources: Collection[Value]) -> None:
        """Record that ``value`` will be computed again from ``sources``, values of ``whole``.

        If this makes a chain of `LONGEST_CHAIN` recomputed values, the sources are added to ``pinned``: they are
        stored.
        """
        length = self.chains[value] = self.chains.get(value, 0) + 1
        for x in sources:
            self.chains[x] = max(self.chains.get(x, 0), length)
            if length >= LONGEST_CHAIN:
                self.pinned.add(x)

    def _turn(self, value: Value) -> tuple[bool, int, Value]:
        """Return a sort key for a value: `choose` tries to replace values in the order of these keys."""
        return value not in self.whole, -value.number, value

    def _sources(self, value: Value) -> set[Value] | None:
        """Return values to store instead of ``value``, from which it can be computed; None if that saves no memory."""
        sources, best, least = {value}, None, value.spec.nbytes
        for _ in range(MOST_STEPS):
            open_ = [x for x in sources if (x is value or x not in self.kept) and self._repeats(x)]
            last = max(open_, key=lambda x: x.number, default=None)
            if last is None:
                break
            assert last.op is not None
            inputs = self.roots(last)
            if last.op.name in JUMPS:  # what is computed again may differ by a rounding, and a condition then by all
                if self.masks or not self.kept.issuperset(inputs):
                    break
                self.pinned.update(inputs)
            sources = sources - {last} | set(inputs)
            needed = sum(x.spec.nbytes for x in sources - self.kept)
            if needed < least:
                best, least = sources, needed
        return best


def recomputed(
    wanted: Collection[Value], layouts: Layouts, in_nest: Callable[[Value], bool], masks: bool = False
) -> dict[Value, Value]:
    """Rewrite a graph so that the backward pass computes forward values again if that saves memory.

    Args:
        wanted: the values that the program must compute: outputs, updates and effects.
        layouts: the memory locations of values.
        in_nest: returns whether a loop nest computes a value.
        masks: whether conditions, such as those of ReLU, are stored in any case, at one byte for each element.

    Returns:
        A dict from every value to the value that replaces it in the rewritten graph; empty if no memory is saved.
    """
    values = reachable(wanted)
    plan = _Kept(values, wanted, layouts, in_nest, masks)
    before = set(plan.kept)
    plan.choose()
    if plan.kept == before and not (masks and any(map(is_late, before))):
        return {}
    now: dict[Value, Value] = {}
    again: dict[Value, Value] = {}

    def copied(value: Value, inputs: tuple[Value, ...], phase: int) -> Value:
        made = like(Value(value.op, inputs, value.attributes, value.spec, value.place), value)
        made.context = _in_phase(value.context, phase)
        return made

    def for_early(x: Value) -> Value:
        """Return the copy of ``x`` that is computed before the backward pass; it is made at the first request."""
        if x.op is None or x.tensor is not None:
            return x
        if x not in now:
            now[x] = copied(x, tuple(map(for_early, x.inputs)), FORWARD * is_late(x))
        return now[x]

    def for_late(x: Value) -> Value:
        """Return the value that the backward pass reads in place of ``x``: computed again if ``x`` is not stored."""
        root = layouts[x].root
        if root.op is None or root in plan.late or root in plan.kept:
            return for_early(x)
        if x not in again:
            again[x] = copied(x, tuple(map(for_late, x.inputs)), BACKWARD)
        return again[x]

    ends = {layouts[x].root for x in wanted}
    for value in _in_order(values, plan, layouts):
        if layouts[value].root in plan.late:
            now[value] = copied(value, tuple(map(for_late, value.inputs)), 0)
        elif not is_late(value) or value in plan.kept or layouts[value].root in ends:
            for_early(value)
    return now


def _in_order(values: list[Value], plan: _Kept, layouts: Layouts) -> list[Value]:
    """Order values for computation; some values of the backward pass directly follow their inputs.

    These are stored bool masks, and values that are not computed by generated kernels, such as matrix products. Thus
    the gradient of a weight is computed as soon as its inputs are, and the memory of these inputs is free early.
    """
    numbers: dict[Value, tuple[int, int]] = {}
    for x in values:
        if is_late(x) and x.inputs and not is_view(x) and (layouts[x].root not in plan.late or not plan.in_nest(x)):
            numbers[x] = max([numbers.get(y, (y.number, 0)) for y in x.inputs])[0], x.number
    return sorted(values, key=lambda x: numbers.get(x, (x.number, 0)))


def _in_phase(context: int, phase: int) -> int:
    """Return the number of the telemetry context that equals number ``context`` but has another phase.

    ``context`` itself is returned if ``phase`` is 0, or if ``context`` is negative (recorded without telemetry).
    """
    if not phase or context < 0:
        return context
    return intern.contexts.id_of(intern.contexts.items[context]._replace(phase=phase))
