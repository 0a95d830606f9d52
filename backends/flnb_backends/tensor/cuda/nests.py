"""CUDA C for loop nests (`flnb.graph.nests`): one kernel for one nest or several independent ones.

A *row* is a place of one loop space (outer or inner) together with all places of the other space. The first space is
called *kept*, the other space *walked*: threads go over the places of the walked space, in as many passes as reductions
require. A block of 256 threads computes several rows side by side. Several threads go over one row together, and their
partial reductions are combined. Sums are trees, in which the order of additions is fixed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flnb.graph.approximations import ALL
from flnb.graph.emitter import Scalar
from flnb.graph.loops import simplified
from flnb.graph.scalars import apply, identity
from flnb_backends.native.rounding import rounded_steps
from flnb_backends.tensor.cuda.launcher import included
from flnb_backends.tensor.cuda.rows import power_of_two
from flnb_backends.tensor.cuda.text import Text, type_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.graph.nests import Nest

THREADS, LANES = 256, 32
MOST_BLOCKS = 1 << 14
JOINS = {"sum": "Sum", "prod": "Product", "max": "Largest", "min": "Smallest", "any": "Largest", "all": "Smallest"}
FUNCTIONS = frozenset(function.__name__ for function in ALL)
"""Functions that CUDA provides for float32 and float64; for other targets the emitter uses approximations."""
MEMORY = "static __device__ {0} *shared_values({0}) {{\n  __shared__ {0} values[256];\n  return values;\n}}\n"


class Written(NamedTuple):
    """The CUDA C text of a kernel.

    Attributes:
        text: the source in CUDA C.
        name: the kernel's name. The kernel's parameters are pointers to the arrays of all nests, in order.
        blocks: how many blocks of `THREADS` threads to launch.
    """

    text: str
    name: str
    blocks: int


def written(nests: Sequence[Nest]) -> Written:
    """Return a kernel for one or more independent nests; each nest is computed by separate blocks of threads."""
    text, end = Text(), 0
    parameters: list[str] = []
    shared: dict[str, int] = {}
    for nest in nests:
        rows = _Rows(nest, len(parameters))
        text.add(f"if ({end} <= blockIdx.x && blockIdx.x < {end + rows.blocks}) {{")
        rows.write(text, f"blockIdx.x - {end}")
        text.add("}")
        end += rows.blocks
        parameters += [f"{type_of(a.dtype)} *a{i}" for i, a in enumerate(nest.arrays, len(parameters))]
        shared |= {type_of(step.dtype): 0 for step in nest.steps if step.over}
    ops = dict.fromkeys(step.op for nest in nests for step in nest.steps if step.op not in ("load", "constant"))
    name = "_".join(["fused", *ops])[:60]
    head = "".join(MEMORY.format(each) for each in shared)
    head = f"{head}{included('nests.cuh')}" if shared else ""
    body = "\n".join(f"  {line}" for line in text.lines)
    signature = f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}({", ".join(parameters)})'
    return Written(f"{head}{signature} {{\n{body}\n}}\n", name, end)


class _Rows:
    """Writes one nest as rows: each place of the outer space is a row, or each place of the inner space.

    Threads go along a row, over the places of the other space.

    Args:
        nest: the nest.
        first: the number of the nest's first array among the kernel's parameters.

    Attributes:
        kept: the extents of the loops whose places are rows.
        walked: the extents of the loops along a row.
        across: the number of rows that a block computes side by side, by threads with consecutive numbers.
        along: the number of threads that go over one row.
        blocks: the number of blocks of threads that compute the nest.
    """

    def __init__(self, nest: Nest, first: int) -> None:
        self.first, self.rounded = first, rounded_steps(nest)
        found = simplified(nest)
        self.steps, self.stores, self.arrays = found.steps, found.stores, found.arrays
        over = {step.over for step in found.steps} - {""}
        self.kept: tuple[int, ...]
        self.walked: tuple[int, ...]
        self.ways: list[tuple[tuple[int, ...], tuple[int, ...]]]
        if not over:
            self.kept, self.walked = (*found.outer, *found.inner), ()
            self.ways = [((*a.outer, *a.inner), ()) for a in found.arrays]
        elif over == {"outer"}:
            self.kept, self.walked = found.inner, found.outer
            self.ways = [(a.inner, a.outer) for a in found.arrays]
        else:
            self.kept, self.walked = found.outer, found.inner
            self.ways = [(a.outer, a.inner) for a in found.arrays]
        rows, n = math.prod(self.kept), math.prod(self.walked)
        beside = sum(kept[-1:] == (1,) for kept, _ in self.ways)
        most = THREADS if not over else LANES if beside > sum(walk[-1:] == (1,) for _, walk in self.ways) else 1
        self.across = min(most, power_of_two(rows)) if most < THREADS else THREADS
        self.along = min(THREADS // self.across, power_of_two(n))
        self.tiles = -(-rows // (THREADS // self.along))
        self.blocks = min(self.tiles, MOST_BLOCKS)
        reach = [sum(abs(s) * (e - 1) for s, e in zip((*k, *w), (*self.kept, *self.walked), strict=True))
                 for k, w in self.ways]  # fmt: skip
        small = max([rows * n + THREADS * MOST_BLOCKS, *reach]) < 1 << 31
        self.index = "int" if small else "long long"
        self.varies: list[bool] = []
        self.phase: list[int] = []
        for step in self.steps:
            varies = any(self.varies[i] for i in step.inputs)
            if step.op == "load":
                varies = any(self.ways[step.attribute][1])
            self.varies.append(varies and not step.over)
            self.phase.append(max((self.phase[i] + bool(self.steps[i].over) for i in step.inputs), default=0))

    def write(self, text: Text, block: str) -> None:
        """Write to ``text`` the loop over the rows of a block; ``block`` is the C expression of the block's number."""
        self.text = text
        rows, n, span = math.prod(self.kept), math.prod(self.walked), self.across * self.along
        text.add(f"for ({self.index} tile = {block}; tile < {self.tiles}; tile += {self.blocks}) {{")
        lane = f"threadIdx.x / {span} * {self.across} + threadIdx.x % {self.across}"
        text.add(f"{self.index} row = tile * {THREADS // self.along} + {lane};")
        text.add(f"const bool exists = row < {rows};")
        text.add("if (!exists) row = 0;" if self.walked else "if (!exists) break;")
        text.add(f"const int begin = threadIdx.x / {self.across} % {self.along};")
        self._places("row", self.kept, "k")
        for i, a in enumerate(self.arrays):
            text.add(f"{type_of(a.dtype)} *p{i} = a{self.first + i} + ({self._away(self.ways[i][0], 'k')});")
        repeated = [i for i in range(len(self.stores)) if self._is_repeated(i)]
        reductions = [j for j, step in enumerate(self.steps) if step.over]
        ready = [self.phase[j] + bool(self.steps[j].over) for j in (self.stores[i][0] for i in repeated)]
        last = max([*ready, *[self.phase[j] for j in reductions]], default=0)
        known: dict[int, Scalar] = {}
        for number in range(last + 1):
            self._compute([j for j in range(len(self.steps)) if self._is_kept(j) and self.phase[j] <= number], known)
            now = [j for j in reductions if self.phase[j] == number]
            self._pass(n, now, repeated if number == last else [], known)
        self._compute([j for j in range(len(self.steps)) if self._is_kept(j)], known)
        single = [i for i in range(len(self.stores)) if i not in repeated]
        for i in single:
            self._store(i, known, "exists && begin == 0", "")
        text.add("}")

    def _pass(self, n: int, reductions: Sequence[int], stores: Sequence[int], known: dict[int, Scalar]) -> None:
        """Write a pass along a row of n places: reductions, whose results are added to ``known``, and stores."""
        if not reductions and not stores:
            return
        text, steps = self.text, self.steps
        for j in reductions:
            start = text.constant(identity(steps[j].op, steps[j].dtype), steps[j].dtype)
            text.add(f"{type_of(steps[j].dtype)} r{j} = {start};")
        text.add(f"for ({self.index} place = exists ? begin : {n}; place < {n}; place += {self.along}) {{")
        self._places("place", self.walked, "w")
        values = dict(known)
        self._compute(self._needed([*[steps[j].inputs[0] for j in reductions], *[self.stores[i][0] for i in stores]],
                                   values), values)  # fmt: skip
        for j in reductions:
            x = self._operand(steps[j].inputs[0], values).to(steps[j].dtype)
            text.add(f"r{j} = {JOINS[steps[j].op]}()(r{j}, {x.value});")
        for i in stores:
            self._store(i, values, "", "w")
        text.add("}")
        for j in reductions:
            text.add(f"r{j} = joined<{self.across}, {self.along}>(r{j}, {JOINS[steps[j].op]}());")
            known[j] = Scalar(text, f"r{j}", steps[j].dtype)

    def _is_kept(self, j: int) -> bool:
        """Return whether step ``j`` is computed once per row."""
        step = self.steps[j]
        return not self.varies[j] and not step.over and step.op != "constant"

    def _is_repeated(self, i: int) -> bool:
        """Return whether store ``i`` writes an element at each place of a row, rather than one per row."""
        j, target = self.stores[i]
        return self.varies[j] or (not self.steps[j].over and any(self.ways[target][1]))

    def _needed(self, roots: Sequence[int], known: dict[int, Scalar]) -> list[int]:
        """List, in order, the steps ``roots`` and all steps on which they depend, except steps in ``known``."""
        found: set[int] = set()
        waiting = list(roots)
        while waiting:
            j = waiting.pop()
            if j not in known and j not in found and self.steps[j].op != "constant":
                found.add(j)
                waiting += self.steps[j].inputs
        return sorted(found)

    def _compute(self, steps: Sequence[int], values: dict[int, Scalar]) -> None:
        """Write each of the steps whose value is not in ``values`` yet, and add its value to ``values``."""
        for j in steps:
            if j not in values:
                values[j] = self._value(j, values)

    def _value(self, j: int, values: dict[int, Scalar]) -> Scalar:
        step, text = self.steps[j], self.text
        if step.op == "load":
            a, way = self.arrays[step.attribute], self.ways[step.attribute][1]
            place = f"p{step.attribute}[{self._away(way, 'w')}]"
            name = text.name(a.dtype, place if self.varies[j] or not self.walked else f"exists ? {place} : 0")
            return Scalar(text, name, a.dtype).to(step.dtype)
        operands = [self._operand(i, values) for i in step.inputs]
        if step.op in FUNCTIONS:
            return operands[0].to(step.dtype).make(step.op)
        text.rounded = j in self.rounded
        found = apply(step.op, operands, step.dtype)
        text.rounded = False
        return found

    def _operand(self, j: int, values: dict[int, Scalar]) -> Scalar:
        step = self.steps[j]
        if step.op == "constant":
            number = np.dtype(step.dtype).type(step.attribute).item()
            return Scalar(self.text, self.text.constant(number, step.dtype), step.dtype, number)
        return values[j]

    def _store(self, i: int, values: dict[int, Scalar], condition: str, walk: str) -> None:
        """Write store ``i``, to be executed if a C expression, ``condition``, is true ("" for always).

        If several places share an element, only the first place writes it. ``walk`` is the letter of the indices along
        a row, "" for a store that is executed once per row.
        """
        j, target = self.stores[i]
        kept, walked = self.ways[target]
        loops = [*zip("k" * len(kept), range(len(kept)), kept, self.kept, strict=True)]
        if walk:
            loops += zip("w" * len(walked), range(len(walked)), walked, self.walked, strict=True)
        tests = [condition] * bool(condition) + [f"{c}{i} == 0" for c, i, s, e in loops if s == 0 and e > 1]
        value = self._operand(j, values).to(self.arrays[target].dtype).value
        test = f"if ({' && '.join(tests)}) " if tests else ""
        self.text.add(f"{test}p{target}[{self._away(walked, walk) if walk else 0}] = {value};")

    def _places(self, number: str, extents: tuple[int, ...], letter: str) -> None:
        """Write definitions of all loop indices, computed from the number of a place.

        Args:
            number: the C expression of the place's number.
            extents: the extents of the loops.
            letter: the beginning of the indices' names; the number of the loop follows.
        """
        below = math.prod(extents)
        for loop, extent in enumerate(extents):
            below //= extent
            part = f"{number} / {below}" if below > 1 else number
            index = f"{part} % {extent}" if loop else part
            self.text.add(f"const {self.index} {letter}{loop} = {index};")

    @staticmethod
    def _away(strides: tuple[int, ...], letter: str) -> str:
        """Return a C expression for the distance of an element from the start of its array, in elements.

        ``strides`` are the array's strides along the loops; ``letter`` + number are the names of the loop indices.
        """
        return " + ".join(f"{letter}{loop} * {s}" for loop, s in enumerate(strides) if s) or "0"
