"""The generator for nests that are vectorized along the inner space, the usual case."""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from flnb.graph.emitter import Scalar, select
from flnb_backends.native.accumulators import CHUNK, Accumulator
from flnb_backends.native.generator import Generator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from flnb_backends.native.schedule import Pass

TILE = 4096
"""The number of inner places in a tile, chosen such that a tile's sums over the outer space fit in the L1 cache."""


def scaled_quotient(x: Scalar, divisor: Scalar) -> Scalar:
    """Emit x / divisor as x times the reciprocal, which is computed once, outside of the loop; return the result.

    If the reciprocal of a divisor would not be a normal number, the divisor is scaled first. The results for zeros,
    infinities and NaN are the same as those of a division.
    """
    large, size = 2.0**100, divisor.make("abs")
    scale = select(size < 1 / large, large, select(size > large, divisor.constant(1 / large), 1.0))
    return (x * scale) * (1.0 / (divisor * scale))


class PlaceByPlace(Generator):
    """Emits loops over the outer space, and inside them passes over the inner space; the innermost loop is vectorized.

    A reduction over the outer space has a row in scratch memory, to which the values of each outer place are added.
    """

    hoists = True

    def _reserve_all(self) -> None:
        steps, varies = self.nest.steps, self.plan.varies
        self.columns = [j for j, step in enumerate(steps) if step.over == "outer"]
        self.tiled = self._tiles()
        if math.prod(self.nest.outer) > self.together:
            self.summed = [j for j in self.columns if self._widens(j)]
        size = TILE if self.tiled else math.prod(self.nest.inner)
        for j, array in self.plan.kept.items():
            if array < 0:
                self._reserve("kept", j, steps[j].dtype, size)
        for j in self.columns:
            self._reserve("part", j, steps[j].dtype, size if varies[j] else 1)
        for j in self.summed:
            self._reserve("total", j, "d", size if varies[j] else 1)

    def _tiles(self) -> bool:
        """Return whether the inner space is divided into tiles, each computed for all places of the outer space."""
        alone = all(step.over != "inner" for step in self.nest.steps) and not self.plan.single
        columns = bool(self.columns) and all(self.plan.varies[j] for j in self.columns)
        return alone and columns and len(self.nest.inner) == 1 and self.nest.inner[0] > 2 * TILE

    def _write_loops(self) -> None:
        split = len(self.nest.outer)
        self.low, self.high = self._bounds(split + len(self.nest.inner) - 1)
        with ExitStack() as loops:
            if self.tiled:
                self.low, self.high = self._parts(loops, self.low, self.high, TILE)
            self._write_outer()

    def _write_outer(self) -> None:
        """Emit the loops over the outer space, for the whole inner space or one tile of it."""
        code, first = self.code, self.plan.first
        if first.steps:
            same: dict[int, Scalar] = {}
            for j in first.before:
                same[j] = self._value(j, same, self.bases)
            with self._over_inner(self.bases) as (here, index):
                values = dict(same)
                for j in first.steps:
                    values[j] = self._value(j, values, here)
                self._write(first, values, here, index)
        self._for_columns(self.columns, lambda j, index, places: self._start(j, index))
        rows = code.variable(Scalar(code, "0", "q")) if self.summed else ""
        with ExitStack() as loops:
            places = self.bases
            for loop in range(len(self.nest.outer)):
                places = self._at(places, loop, loops.enter_context(code.loop(*self._bounds(loop))))
            self._write_place(places)
            if rows:
                count = code.get(rows, "q") + 1
                code.set(rows, count)
                with code.when(str(count.equal(self.together).value)):
                    code.set(rows, count.constant(0))
                    self._flush_columns()
        self._flush_columns()
        self._store_columns()

    def _write_place(self, places: Sequence[str]) -> None:
        """Emit all passes at one place of the outer space, given the arrays' addresses (``places``) there."""
        values: dict[int, Scalar] = {}
        for each in self.plan.passes:
            for j in each.before:
                values[j] = self._value(j, values, places)
            self._write_pass(each, values, places)
        for i in self.plan.single:
            self._store(i, values, places)
        for j in self.columns:
            if not self.plan.varies[j]:
                self._accumulate(j, values, "0")

    def _write_pass(self, each: Pass, known: dict[int, Scalar], outer: Sequence[str]) -> None:
        """Emit a pass over the inner space from the addresses ``outer``; add the results of reductions to ``known``."""
        steps = self.nest.steps
        inner = [j for j in each.reductions if steps[j].over == "inner"]
        columns = [j for j in each.reductions if steps[j].over == "outer" and self.plan.varies[j]]
        if not (inner or columns or each.stores or each.keeps):
            return
        chunked = bool(inner) and self.nest.inner[-1] > CHUNK
        several = chunked or len(self.nest.inner) > 1
        sums = {j: Accumulator(self.code, steps[j].op, steps[j].dtype, several) for j in inner}
        with self._over_inner(outer, list(sums.values()), chunked) as (places, index):
            values = dict(known)
            for j in each.reads:
                values[j] = self._kept(j, places, index)
            for j in each.steps:
                values[j] = self._value(j, values, places)
            for j, total in sums.items():
                total.add(self._operand(steps[j].inputs[0], values))
            for j in columns:
                self._accumulate(j, values, index)
            self._write(each, values, places, index)
        for j, total in sums.items():
            known[j] = total.result()

    @contextmanager
    def _over_inner(
        self, places: Sequence[str], sums: Sequence[Accumulator] = (), chunked: bool = False, brief: bool = False
    ) -> Iterator[tuple[Sequence[str], str]]:
        """Emit loops over the inner space; the code emitted in the ``with`` block becomes the body of these loops.

        Args:
            places: for each array, the name of its address where the loops begin, in the generated text.
            sums: the accumulators to which the body adds; each accumulates a partial result per chunk.
            chunked: whether the innermost loop is divided into chunks; otherwise all of it is one chunk.
            brief: whether the loop takes little time, so that it is not unrolled.

        Yields:
            The names of the arrays' addresses in the present iteration, and the name of the index that the iteration
            uses in rows of scratch memory.
        """
        code, inner, split = self.code, self.nest.inner, len(self.nest.outer)
        number = "0"
        with ExitStack() as loops:
            for loop, extent in enumerate(inner[:-1]):
                index = loops.enter_context(code.loop("0", str(extent)))
                places = self._at(places, split + loop, index)
                row = code.add(f"mul nsw i64 {index}, {math.prod(inner[loop + 1 :])}")
                number = code.add(f"add nsw i64 {number}, {row}")
            low, high = self.low, self.high
            if chunked:
                low, high = self._parts(loops, low, high, CHUNK)
            for each in sums:
                each.begin_chunk()
            with code.loop(low, high, parallel=True, brief=brief) as index:
                local = code.add(f"sub nsw i64 {index}, {self.low}") if self.tiled else index
                yield self._at(places, split + len(inner) - 1, index), code.add(f"add nsw i64 {number}, {local}")
            for each in sums:
                each.end_chunk()

    def _apply(self, j: int, operands: Sequence[Scalar]) -> Scalar:
        """Emit step ``j``; a division by a value that is equal at all inner places may become a `scaled_quotient`."""
        step = self.nest.steps[j]
        scaled = step.op == "divide" and step.dtype == "f" and j not in self.rounded and self.plan.varies[j]
        if scaled and not self.plan.varies[step.inputs[1]]:
            return scaled_quotient(*[x.to("f") for x in operands])
        return super()._apply(j, operands)

    # Reductions over the outer space

    def _for_columns(self, columns: Sequence[int], write: Callable[[int, str, Sequence[str]], None]) -> None:
        """Call ``write(j, index, addresses)`` for each reduction j of ``columns``, inside a loop over its elements.

        For a reduction with a single element ``write`` is called outside of the emitted loop.
        """
        varying = [j for j in columns if self.plan.varies[j]]
        if varying:
            with self._over_inner(self.bases, brief=True) as (places, index):
                for j in varying:
                    write(j, index, places)
        for j in columns:
            if not self.plan.varies[j]:
                write(j, "0", self.bases)

    def _flush_columns(self) -> None:
        """Emit the addition of the partial sums of reductions over the outer space to the totals."""
        self._for_columns(self.summed, lambda j, index, places: self._flush(j, index))

    def _store_columns(self) -> None:
        """Emit the stores of the results of reductions over the outer space."""
        code, arrays = self.code, self.nest.arrays
        for j, array in self.nest.stores:
            if self.nest.steps[j].over != "outer":
                continue
            if self.plan.varies[j] or any(arrays[array].inner):
                with self._over_inner(self.bases, brief=True) as (places, index):
                    number = index if self.plan.varies[j] else "0"
                    code.store(self._result(j, number).to(arrays[array].dtype), places[array])
            else:
                code.store(self._result(j, "0").to(arrays[array].dtype), self.bases[array])
