"""The generator for nests whose arrays are contiguous along an outer loop, which is vectorized.

An example is a batch norm of images whose channels come last. A channel's elements are far apart in memory, and
neighbours in memory belong to different channels. So the innermost loop goes over a block of channels. A value that
exists once for each channel, such as the sum or the mean, is an element of a row in scratch memory.
"""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from flnb.graph.scalars import CHEAP
from flnb_backends.native.generator import Generator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flnb.graph.emitter import Scalar
    from flnb.graph.nests import Nest
    from flnb_backends.native.schedule import Pass

MOST, LEAST = 256, 16
"""The largest and the smallest number of indices of the vectorized loop (lanes) in a block."""
TRANSPOSED = 8
"""The number of lanes in a block of a transposition. With more lanes, cache lines would evict each other from L1."""
KEPT = 1 << 18
"""The largest number of elements in scratch memory for one step's values, so that they fit in the L2 cache."""


def lane_of(nest: Nest) -> int | None:
    """Return the number of the outer loop to vectorize, or None if vectorizing the innermost loop is faster.

    An outer loop is faster if more arrays are contiguous along it than along the innermost loop, or if the inner loops
    are too short for vectors and arithmetic takes most of the time.
    """
    kinds = {step.over for step in nest.steps}
    if "outer" in kinds:
        return None
    far = [a for a in nest.arrays if a.inner[-1] not in (0, 1)]
    outer = [sum(a.outer[i] not in (0, 1) for a in nest.arrays) for i in range(len(nest.outer))]
    if "inner" not in kinds:  # a transposition: each of two loops is the best for as many arrays
        good = [i for i in range(len(outer)) if outer[i] <= len(far) and any(a.outer[i] == 1 for a in far)]
    else:
        short = math.prod(nest.inner) < LEAST and not all(
            s.over or s.op in (*CHEAP, "load", "constant") for s in nest.steps
        )
        good = [i for i in range(len(outer)) if outer[i] < len(far) or short]
    return min((i for i in good if nest.outer[i] >= LEAST), key=lambda i: outer[i], default=None)


class SideBySide(Generator):
    """Vectorizes one outer loop in blocks, by making it the innermost loop.

    The docstrings of this class call an index of that loop a *lane*, as in a vector of the processor.

    Args:
        nest: the nest, simplified; it has no reductions over the outer space.
        lane: the number of the outer loop to vectorize.
    """

    def __init__(self, nest: Nest, lane: int):
        self.lane = lane
        super().__init__(nest)

    def _reserve_all(self) -> None:
        steps = self.nest.steps
        places = math.prod(self.nest.inner)
        self.summed = [j for j, step in enumerate(steps) if step.over and self._widens(j) and places > self.together]
        reduces = any(step.over for step in steps)
        self.block = (
            TRANSPOSED if not reduces else max(LEAST, min(MOST, KEPT // max(places, 1))) if self.plan.kept else MOST
        )
        for j, array in self.plan.kept.items():
            if array < 0:
                self._reserve("kept", j, steps[j].dtype, places * self.block)
        for j, step in enumerate(steps):
            if not self.plan.varies[j] and step.op != "constant":
                self._reserve("row", j, step.dtype, self.block)
            if step.over:
                self._reserve("part", j, step.dtype, self.block)
            if j in self.summed:
                self._reserve("total", j, "d", self.block)

    def _write_loops(self) -> None:
        """Emit the outer loops; the innermost of them goes over blocks of the vectorized loop's indices (lanes)."""
        with ExitStack() as loops:
            places: Sequence[str] = self.bases
            for loop in range(len(self.nest.outer)):
                if loop != self.lane:
                    places = self._at(places, loop, loops.enter_context(self.code.loop(*self._bounds(loop))))
            start, stop = self._parts(loops, *self._bounds(self.lane), self.block)
            self.count = self.code.add(f"sub nsw i64 {stop}, {start}")
            self._write_block(self._at(places, self.lane, start))

    @contextmanager
    def _over_lanes(self, places: Sequence[str], brief: bool = True) -> Iterator[Sequence[str]]:
        """Emit a loop over the lanes of a block, whose body is the code emitted in the ``with`` block.

        Yields the arrays' addresses at a lane; ``places`` has those at the first lane. A ``brief`` loop takes little
        time, so it is not unrolled.
        """
        with self.code.loop("0", self.count, parallel=True, brief=brief) as self.index:
            yield self._at(places, self.lane, self.index)

    def _write_block(self, places: Sequence[str]) -> None:
        """Emit all passes of the schedule (see `Pass`) for one block of lanes.

        ``places`` has the arrays' addresses at the first lane of the block.
        """
        complete: list[int] = []
        for each in self.plan.passes:
            last = each is self.plan.passes[-1]
            if complete or each.before or each.reductions or (last and self.plan.single):
                with self._over_lanes(places) as here:
                    self._write_rows(each, here, complete, self.plan.single if last else [])
            if each.reductions or each.stores or each.keeps:
                self._write_pass(each, places)
            complete = each.reductions

    def _write_rows(self, each: Pass, places: Sequence[str], complete: Sequence[int], stores: Sequence[int]) -> None:
        """Emit, for one lane, the steps between two passes: those whose values are equal at all inner places.

        Args:
            each: the later pass.
            places: the addresses of the arrays' elements.
            complete: the reductions that the earlier pass has finished.
            stores: the nest's stores to execute.
        """
        values: dict[int, Scalar] = {}
        for j in (*complete, *each.before):
            values[j] = self._result(j, self.index) if j in complete else self._value(j, values, places)
            self.code.store(values[j], self._row(j))
        for j in each.reductions:
            self._start(j, self.index)
        for i in stores:
            self._store(i, values, places)

    def _row(self, j: int) -> str:
        """Emit the address of step ``j``'s value in scratch memory, where each lane has its own; return the address."""
        return self._slot("row", j, self.nest.steps[j].dtype, self.index)

    def _operand(self, j: int, values: dict[int, Scalar]) -> Scalar:
        """Return the value of step ``j``; a value equal at all inner places is loaded from scratch memory."""
        if j not in values and self.nest.steps[j].op != "constant":
            values[j] = self.code.load(self.nest.steps[j].dtype, self._row(j))
        return super()._operand(j, values)

    def _write_pass(self, each: Pass, places: Sequence[str]) -> None:
        """Emit the pass ``each`` over the inner space for a block of lanes; the loop over the lanes is innermost.

        ``places`` has the arrays' addresses where the loops begin.
        """
        code, inner, split = self.code, self.nest.inner, len(self.nest.outer)
        summed = [j for j in each.reductions if j in self.summed]
        number, here = "0", places
        with ExitStack() as loops:
            for loop, extent in enumerate(inner):
                low, high = "0", str(extent)
                if summed and loop == len(inner) - 1:
                    low, high = self._parts(loops, low, high, self.together)
                    loops.callback(self._flush_lanes, summed)
                index = loops.enter_context(code.loop(low, high))
                here = self._at(here, split + loop, index)
                row = code.add(f"mul nsw i64 {index}, {math.prod(inner[loop + 1 :]) * self.block}")
                number = code.add(f"add nsw i64 {number}, {row}")
            with self._over_lanes(here, brief=False) as addresses:
                self._write_place(each, addresses, code.add(f"add nsw i64 {number}, {self.index}"))

    def _write_place(self, each: Pass, places: Sequence[str], number: str) -> None:
        """Emit the steps of a pass for one lane at one inner place; ``number`` is their index in scratch memory."""
        values = {j: self._kept(j, places, number) for j in each.reads}
        for j in each.steps:
            values[j] = self._value(j, values, places)
        for j in each.reductions:
            self._accumulate(j, values, self.index)
        self._write(each, values, places, number)

    def _flush_lanes(self, summed: Sequence[int]) -> None:
        """Emit the addition of each lane's partial sums to its totals, for the reductions (steps) ``summed``."""
        with self._over_lanes(self.bases):
            for j in summed:
                self._flush(j, self.index)
