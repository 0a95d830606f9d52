"""Schedules a nest: assigns each step to a pass over the inner loops, and chooses the values stored between passes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from flnb.graph.scalars import CHEAP

if TYPE_CHECKING:
    from flnb.graph.nests import Nest

FEW = 4
"""With this many outer places or fewer, values are not computed once before the outer loops; it would not be faster."""
MOST_LOADS = 4
"""A value of an earlier pass is computed again if that needs at most this many loads, and cheap operations only."""


@dataclass
class Pass:
    """One pass over the inner loops, executed at each place of the outer loops.

    Steps and stores are given by their positions in the nest.

    Attributes:
        before: the steps computed before the pass, in order: their values are the same at all inner places.
        steps: the steps computed at each inner place, in order.
        reads: the steps whose values earlier passes have stored and this pass loads.
        keeps: the steps whose values this pass stores for later passes.
        stores: the stores that this pass executes at each inner place.
        reductions: the reductions, over the inner or the outer space, whose operands this pass computes.
    """

    before: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    keeps: list[int] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)
    reductions: list[int] = field(default_factory=list)


@dataclass
class Schedule:
    """The passes of a nest, and the values that are stored between them.

    Attributes:
        passes: the passes, in order. The last one has only ``before``: the steps after the last real pass.
        kept: for each step whose value is stored for a later pass, the position of the nest's array that contains the
            value, or -1 for scratch memory.
        varies: for each step, whether its value differs between inner places.
        first: a pass that is executed once, before the outer loops, for values that are equal at all outer places.
        single: the positions of the stores that write one element for all inner places, executed after all passes.
    """

    passes: list[Pass]
    kept: dict[int, int]
    varies: list[bool]
    first: Pass
    single: list[int]


def schedule(nest: Nest, hoists: bool = True) -> Schedule:
    """Assign a nest's steps to passes over the inner space.

    A step that uses the result of a reduction over the inner space is in a later pass than the reduction. If a later
    pass needs a value that differs between inner places, the value is computed again if that is cheap; otherwise it is
    stored. A store that may overwrite memory is not executed before the last pass that loads from this memory.

    Args:
        nest: the nest.
        hoists: whether values that are equal at all outer places are computed once, before the outer loops.
    """
    return _Scheduler(nest, hoists and math.prod(nest.outer) > FEW).result()


class _Scheduler:
    def __init__(self, nest: Nest, hoists: bool):
        self.nest, self.hoists = nest, hoists
        self.fixed: list[bool] = []
        self.varies: list[bool] = []
        self.phase: list[int] = []
        for step in nest.steps:
            varies = any(self.varies[i] for i in step.inputs)
            if step.op == "load":
                varies = any(nest.arrays[step.attribute].inner)
            fixed = not step.over and all(self.fixed[i] for i in step.inputs)
            if step.op == "load":
                fixed = not any(nest.arrays[step.attribute].outer)
            self.fixed.append(fixed)
            self.varies.append(varies and step.over != "inner")
            self.phase.append(max((self.phase[i] + (nest.steps[i].over == "inner") for i in step.inputs), default=0))
        self.kept: set[int] = set()
        self.first = Pass()
        self.stored = [self.phase[j] + (nest.steps[j].over == "inner") for j, _ in nest.stores]
        self.passes: list[Pass] = []

    def result(self) -> Schedule:
        """Return the schedule: build the passes again and again until they do not change any more."""
        while not self._consistent():
            pass
        for j, step in enumerate(self.nest.steps):
            if not self.varies[j] and step.over == "" and step.op != "constant":
                self.passes[min(self.phase[j], len(self.passes) - 1)].before.append(j)
                if self.fixed[j]:
                    self.first.before.append(j)
        kept = {j: self._array(j) for j in sorted(self.kept)} | dict.fromkeys(self.first.keeps, -1)
        over = [self.nest.steps[j].over for j, _ in self.nest.stores]
        single = [i for i in range(len(over)) if over[i] != "outer" and not self._repeated(i)]
        return Schedule(self.passes, kept, self.varies, self.first, single)

    def _consistent(self) -> bool:
        """Rebuild the passes; return whether they are final: no further value has to be stored, no store delayed."""
        before = len(self.kept), list(self.stored)
        reductions = [j for j, step in enumerate(self.nest.steps) if step.over]
        stores = [i for i in range(len(self.nest.stores)) if self._repeated(i)]
        count = 1 + max([self.phase[j] for j in reductions] + [self.stored[i] for i in stores], default=-1)
        self.passes = [Pass() for _ in range(count + 1)]
        for i in stores:
            self.passes[self.stored[i]].stores.append(i)
        for j in reductions:
            self.passes[self.phase[j]].reductions.append(j)
        for j in sorted(self.kept):
            self.passes[self.phase[j]].keeps.append(j)
        for number, each in enumerate(self.passes):
            roots = [i for j in each.reductions for i in self.nest.steps[j].inputs]
            for j in (*roots, *(self.nest.stores[i][0] for i in each.stores), *each.keeps):
                self._compute(j, number, each)
            each.steps.sort()
        self._delay()
        return before == (len(self.kept), self.stored)

    def _repeated(self, i: int) -> bool:
        """Return whether store ``i`` writes an element at each inner place, rather than one at each outer place."""
        j, target = self.nest.stores[i]
        return self.nest.steps[j].over != "outer" and (self.varies[j] or any(self.nest.arrays[target].inner))

    def _compute(self, j: int, number: int, each: Pass) -> None:
        """Add step ``j``, and the steps on which it depends, to the pass ``each``, which has the number ``number``."""
        if not self.varies[j] or j in each.steps or j in each.reads:
            return
        if self.hoists and self.fixed[j] and not self._cheap(j) and each is not self.first:
            each.reads.append(j)
            if j not in self.first.keeps:
                self.first.keeps.append(j)
                self._compute(j, 0, self.first)
                self.first.steps.sort()
            return
        if self.phase[j] < number and (j in self.kept or not self._cheap(j)):
            self.kept.add(j)
            each.reads.append(j)
            return
        for i in self.nest.steps[j].inputs:
            self._compute(i, number, each)
        each.steps.append(j)

    def _cheap(self, j: int) -> bool:
        """Return whether computing the value of step ``j`` again takes little more time than loading it."""
        loads, waiting, seen = set(), [j], set()
        while waiting:
            i = waiting.pop()
            if i in seen or not self.varies[i]:
                continue
            seen.add(i)
            step = self.nest.steps[i]
            if step.op == "load" or i in self.kept:
                loads.add(i)
            elif step.op in CHEAP:
                waiting += step.inputs
            else:
                return False
        return len(loads) <= MOST_LOADS

    def _delay(self) -> None:
        """Delay each store until the last pass that loads from memory that the store may overwrite."""
        steps = self.nest.steps
        ways = [(np.dtype(a.dtype).itemsize, a.outer, a.inner) for a in self.nest.arrays]
        for number, each in enumerate(self.passes):
            loaded = {ways[steps[j].attribute] for j in each.steps if steps[j].op == "load"}
            for i, (_, target) in enumerate(self.nest.stores):
                if number > self.stored[i] and ways[target] in loaded:
                    self.stored[i] = number

    def _array(self, j: int) -> int:
        """Return the position of an array to which the value of step ``j`` is stored without conversion; -1 if none."""
        for i in self.passes[self.phase[j]].stores:
            step, target = self.nest.stores[i]
            if step == j and self.nest.arrays[target].dtype == self.nest.steps[j].dtype:
                return target
        return -1
