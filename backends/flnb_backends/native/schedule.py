"""Scheduling of a nest: which pass over the inner loops computes each step, and which values are kept in between."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from flnb.graph.scalars import CHEAP

if TYPE_CHECKING:
    from flnb.graph.nests import Nest

__all__ = ["Pass", "Schedule", "schedule"]

FEW = 4
"""Outer places for which it does not pay to compute something once before them."""
MOST_LOADS = 4
"""A value of an earlier pass is computed again if that takes no more loads than these, and cheap operations only."""


@dataclass
class Pass:
    """One pass over the inner loops, executed at each place of the outer loops.

    Attributes:
        before: the steps whose values are the same at all inner places, computed before it, in order.
        steps: the steps computed at each inner place, in order.
        reads: the steps whose values earlier passes kept.
        keeps: the steps whose values are kept for later passes.
        stores: the positions of stores, among the nest's.
        reductions: the reductions, over the inner or the outer space, whose elements it has.
    """

    before: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    keeps: list[int] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)
    reductions: list[int] = field(default_factory=list)


@dataclass
class Schedule:
    """The passes of a nest, and the values that are kept between them.

    Attributes:
        passes: in order; the last has nothing but ``before``, the steps that follow the last pass.
        kept: for each value that is kept, the position of the array that has it, or -1: it has to go to scratch memory.
        varies: for each step, whether its value differs between inner places.
        first: what is computed once, before all places of the outer space, since it is the same at all of them.
        single: the positions of the stores that have one element for all inner places, done after all passes.
    """

    passes: list[Pass]
    kept: dict[int, int]
    varies: list[bool]
    first: Pass
    single: list[int]


def schedule(nest: Nest, hoists: bool = True) -> Schedule:
    """Assign a nest's steps to passes; ``hoists`` adds a first pass for values that no outer loop changes.

    A step that reads a reduction over the inner space comes in a later pass than that. A value that differs between
    inner places and is read in a later pass, too, is computed again there if that is cheap; else it is kept. An array
    is written when no later pass reads one that may be the same memory.
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
        """Rebuild the passes until they are consistent; returns the schedule."""
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
        """Rebuild the passes; returns whether they are final: no further value had to be kept, and no store delayed."""
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
        """Return whether a store writes one element per inner place, rather than one per outer place."""
        j, target = self.nest.stores[i]
        return self.nest.steps[j].over != "outer" and (self.varies[j] or any(self.nest.arrays[target].inner))

    def _compute(self, j: int, number: int, each: Pass) -> None:
        """Add a step, and the steps that it depends on, to a pass."""
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
        """Return whether recomputing a value is as fast as loading it."""
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
        """Move each store to the last pass that still loads from memory that the store may overwrite."""
        steps = self.nest.steps
        ways = [(np.dtype(a.dtype).itemsize, a.outer, a.inner) for a in self.nest.arrays]
        for number, each in enumerate(self.passes):
            loaded = {ways[steps[j].attribute] for j in each.steps if steps[j].op == "load"}
            for i, (_, target) in enumerate(self.nest.stores):
                if number > self.stored[i] and ways[target] in loaded:
                    self.stored[i] = number

    def _array(self, j: int) -> int:
        """Return the position of the array to which a pass stores this kept value unconverted; -1 if there is none."""
        for i in self.passes[self.phase[j]].stores:
            step, target = self.nest.stores[i]
            if step == j and self.nest.arrays[target].dtype == self.nest.steps[j].dtype:
                return target
        return -1
