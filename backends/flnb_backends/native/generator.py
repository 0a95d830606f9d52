"""The base class of the generators, which turn a loop nest into LLVM IR, as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from flnb.graph.emitter import Scalar
from flnb.graph.scalars import CHEAP, apply, identity
from flnb_backends.native.accumulators import ROWS, combine, wide
from flnb_backends.native.instructions import Code
from flnb_backends.native.rounding import rounded_steps
from flnb_backends.native.schedule import Pass, schedule

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from flnb.graph.nests import Nest

ALIGNMENT = 64
SHORT = 64
"""The number of iterations of a loop below which 512-bit vectors are not faster than 256-bit vectors."""
MANY = 64
"""The number of iterations of a loop that is enough to divide the loop evenly among threads."""
LONG, INTERLEAVED = 256, 4
"""A loop of at least `LONG` iterations computes `INTERLEAVED` vectors side by side, because instructions on one vector
need not wait for the results of instructions on another."""


class Generator(ABC):
    """Writes, for a nest, the LLVM IR of ``void kernel(void **arrays, int64 begin, int64 end, int64 part)``.

    The function computes the iterations from ``begin`` to before ``end`` of one of the nest's loops, and uses part
    number ``part`` of the scratch memory.

    Args:
        nest: the nest, simplified.

    Attributes:
        scratch: the bytes of a part of the scratch memory.
        divided: the number of the loop that may be divided among several calls, which may run in any order; inner loops
            are numbered after outer loops. It is -1 if there is none; then each call computes the whole nest.
    """

    hoists: ClassVar[bool] = False
    """Whether values that are the same at all places of the outer space are computed once, before the loops."""
    together: ClassVar[int] = ROWS
    """How many values a sum in memory adds in its own dtype, before they are added to its total in float64."""

    def __init__(self, nest: Nest):
        self.nest = nest
        self.plan = schedule(self.nest, self.hoists)
        self.rounded = rounded_steps(self.nest)
        self.divided = self._divided()
        self.width = self._width()
        self.summed: list[int] = []
        self.slots: dict[tuple[str, int], int] = {}
        self.scratch = 0
        self._reserve_all()

    def text(self) -> str:
        """Return the LLVM module that contains the function, as text."""
        self.code = code = Code("kernel", "ptr %arrays, i64 %begin, i64 %end, i64 %part", self.width)
        code.interleaved = INTERLEAVED if self.width == 512 and self.nest.inner[-1] >= LONG else 0
        words = [code.element("%arrays", "q", str(i)) for i in range(len(self.nest.arrays) + 1)]
        *self.bases, memory = [code.add(f"load ptr, ptr {word}") for word in words]
        self.memory = code.element(memory, "b", "%part", self.scratch)
        self._write_loops()
        return code.text()

    def _width(self) -> int:
        """Return the width of vectors in bits: 512 if arithmetic takes longer than memory access, otherwise 256."""
        cheap = all(step.over or step.op in ("load", "constant") or step.op in CHEAP for step in self.nest.steps)
        return 256 if cheap or self.nest.inner[-1] < SHORT else 512

    @abstractmethod
    def _reserve_all(self) -> None:
        """Reserve rows of scratch memory, and choose the reductions whose partial results are added in float64."""

    @abstractmethod
    def _write_loops(self) -> None:
        """Emit the loops over the outer and the inner space, including their bodies."""

    # Steps

    def _value(self, j: int, values: dict[int, Scalar], places: Sequence[str]) -> Scalar:
        """Emit the instructions of step ``j`` and return the step's value.

        ``values`` has the values of the steps emitted before; ``places`` has an element's address for each array.
        """
        step = self.nest.steps[j]
        if step.op == "load":
            found = self.code.load(self.nest.arrays[step.attribute].dtype, places[step.attribute])
            return found.to(step.dtype)
        self.code.contract = j not in self.rounded
        found = self._apply(j, [self._operand(i, values) for i in step.inputs])
        self.code.contract = False
        return found

    def _apply(self, j: int, operands: Sequence[Scalar]) -> Scalar:
        """Emit step ``j``, which is not a load, given its operands; returns the step's value."""
        return apply(self.nest.steps[j].op, operands, self.nest.steps[j].dtype)

    def _operand(self, j: int, values: dict[int, Scalar]) -> Scalar:
        """Return the value of step ``j``: from ``values``, or a constant."""
        step = self.nest.steps[j]
        if step.op == "constant":
            number = np.dtype(step.dtype).type(step.attribute).item()
            return Scalar(self.code, self.code.constant(number, step.dtype), step.dtype, number)
        return values[j]

    def _write(self, each: Pass, values: dict[int, Scalar], places: Sequence[str], index: str) -> None:
        """Emit the stores to memory that the pass ``each`` executes in one iteration of its innermost loop.

        Results go to the nest's arrays, at the addresses ``places``. Values for later passes go to rows in scratch
        memory, at the position ``index``. ``values`` has the values of the nest's steps.
        """
        for j in each.keeps:
            if self.plan.kept[j] < 0:
                self.code.store(values[j], self._slot("kept", j, self.nest.steps[j].dtype, index))
        for i in each.stores:
            self._store(i, values, places)

    def _store(self, i: int, values: dict[int, Scalar], places: Sequence[str]) -> None:
        """Emit store number ``i`` of the nest, to the address that ``places`` has for the store's array."""
        j, array = self.nest.stores[i]
        self.code.store(self._operand(j, values).to(self.nest.arrays[array].dtype), places[array])

    # Loops

    @property
    def extent(self) -> int:
        """Return the number of iterations of the loop that may be divided; 1 if there is none."""
        return (*self.nest.outer, *self.nest.inner)[self.divided] if self.divided >= 0 else 1

    def _divided(self) -> int:
        """Return the number of the loop to divide; -1 if there is none.

        This is the first outer loop of at least `MANY` iterations, or else the outer loop with the most. If there are
        no outer loops, or a reduction goes over them, it is the innermost loop, provided that no reduction goes over
        that loop and nothing is written outside of it.
        """
        nest, over = self.nest, {step.over for step in self.nest.steps}
        if nest.outer and "outer" not in over:
            return max(range(len(nest.outer)), key=lambda i: (min(nest.outer[i], MANY), -i))
        single = self.plan.single or any(s.over and not v for s, v in zip(nest.steps, self.plan.varies, strict=True))
        return -1 if single else len(nest.outer) + len(nest.inner) - 1

    def _bounds(self, loop: int) -> tuple[str, str]:
        """Return the start and the stop of a loop, as they are written in LLVM IR.

        Inner loops are numbered after outer loops.
        """
        if loop == self.divided:
            return "%begin", "%end"
        return "0", str((*self.nest.outer, *self.nest.inner)[loop])

    def _at(self, places: Sequence[str], loop: int, index: str) -> list[str]:
        """Emit the computation of all arrays' addresses at an index of a loop; returns these addresses.

        ``places`` has the addresses at index 0 of the loop. Inner loops are numbered after outer loops.
        """
        strides = [(*a.outer, *a.inner)[loop] for a in self.nest.arrays]
        return [
            self.code.element(place, a.dtype, index, stride)
            for place, a, stride in zip(places, self.nest.arrays, strides, strict=True)
        ]

    def _parts(self, loops: ExitStack, low: str, high: str, size: int) -> tuple[str, str]:
        """Emit the beginning of a loop that divides the range from ``low`` to ``high`` into parts of ``size`` indices.

        The loop ends when ``loops`` closes. Return the bounds of a part; the last part may be smaller.
        """
        start = loops.enter_context(self.code.loop(low, high, size))
        stop = self.code.add(f"add nsw i64 {start}, {size}")
        return start, self._smaller(stop, high)

    def _smaller(self, a: str, b: str) -> str:
        """Emit the minimum of two indices; returns the name of the result."""
        return self.code.call("@llvm.smin.i64", "i64", [f"i64 {a}", f"i64 {b}"])

    # Scratch memory

    def _widens(self, j: int) -> bool:
        """Return whether reduction ``j`` adds its partial results in a wider dtype than its own."""
        step = self.nest.steps[j]
        return wide(step.op, step.dtype) != step.dtype

    def _reserve(self, use: str, j: int, dtype: str, count: int) -> None:
        self.slots[use, j] = self.scratch
        self.scratch += -(-count * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT

    def _slot(self, use: str, j: int, dtype: str, index: str) -> str:
        """Emit the computation of the address of an element in step ``j``'s row of scratch memory; returns the address.

        ``use`` is the purpose of the row, such as "part" for partial sums; ``index`` is the index of the element.
        """
        base = self.code.element(self.memory, "b", str(self.slots[use, j]))
        return self.code.element(base, dtype, index)

    def _kept(self, j: int, places: Sequence[str], index: str) -> Scalar:
        """Emit a load of step ``j``'s value, which an earlier pass has stored; return the value.

        The value is in an array, at its address in ``places``, or in scratch memory, at ``index``.
        """
        dtype, array = self.nest.steps[j].dtype, self.plan.kept[j]
        return self.code.load(dtype, places[array] if array >= 0 else self._slot("kept", j, dtype, index))

    # Reductions in memory

    def _identity(self, j: int, dtype: str) -> Scalar:
        step = self.nest.steps[j]
        return Scalar(self.code, self.code.constant(identity(step.op, step.dtype), dtype), dtype)

    def _start(self, j: int, index: str) -> None:
        """Emit a store of reduction ``j``'s initial value, such as 0 for a sum, to element ``index`` of its row."""
        step = self.nest.steps[j]
        self.code.store(self._identity(j, step.dtype), self._slot("part", j, step.dtype, index))
        if j in self.summed:
            self.code.store(self._identity(j, "d"), self._slot("total", j, "d", index))

    def _accumulate(self, j: int, values: dict[int, Scalar], index: str) -> None:
        """Emit the accumulation of step ``j``'s operand in element ``index`` of the reduction's row.

        ``values`` has the values of the steps computed before.
        """
        step = self.nest.steps[j]
        address = self._slot("part", j, step.dtype, index)
        x = self._operand(step.inputs[0], values).to(step.dtype)
        self.code.store(combine(step.op, self.code.load(step.dtype, address), x), address)

    def _flush(self, j: int, index: str) -> None:
        """Emit code that adds reduction ``j``'s partial sum at ``index`` to the total, and resets the partial sum."""
        step = self.nest.steps[j]
        part, total = self._slot("part", j, step.dtype, index), self._slot("total", j, "d", index)
        more = self.code.load(step.dtype, part).to("d")
        self.code.store(combine(step.op, self.code.load("d", total), more), total)
        self.code.store(self._identity(j, step.dtype), part)

    def _result(self, j: int, index: str) -> Scalar:
        """Emit a load of element ``index`` of the row of reduction ``j``, once the reduction is finished."""
        step = self.nest.steps[j]
        use, dtype = ("total", "d") if j in self.summed else ("part", step.dtype)
        return self.code.load(dtype, self._slot(use, j, dtype, index)).to(step.dtype)
