"""Gradient rules (pulls) compiled to functions of buffers.

A pull calls a few public ops, which spend most of their time on finding plans and making Tensors. But plans and shapes
are the same for every node of one plan (op, shapes, attributes). So a pull is traced once (`flnb.dispatch.tracing`),
and the trace is converted to the text of a function. This function calls the active backend's method of each op
directly, through the same table as the public op. So backends that override an op, memory managers and telemetry get
the same calls as without compilation. A composite's gradient is one call if the backend has a method for it. A pull
that reads the values of a tensor, or does more than call ops, is not compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from time import perf_counter
from typing import Any

import numpy as np
from flnb_telemetry import encoding

from flnb.autograd.pull_tracing import Branch, Number, branches_of
from flnb.dispatch import crossing, state
from flnb.dispatch.failure import Untraceable
from flnb.dispatch.plan import Plan, Spec
from flnb.dispatch.promotion import find_plan
from flnb.dispatch.state import TEMPORARY
from flnb.dispatch.table import OPS
from flnb.dispatch.templates import EMPTY, compiled
from flnb.dispatch.tracing import Traced

__all__ = ["Compiled", "compile_pulls"]

EVENTS, BLOCKS = 1, 2
"""Bits in the number of a version of compiled pulls: it emits an event for each op; it allocates blocks for results."""
AROUND = "here, table, cotangents, owned, reached, leaves, own, lane, retain"
"""Names in the generated text for the values of a backward pass (`Walk`), which are passed as one tuple."""


class Compiled:
    """The compiled gradient functions of a plan: up to four versions of one function, each written when first needed.

    Attributes:
        weight: the size in bytes of the largest result. If the memory manager allocates blocks for results of this
            size, a version with the bit `BLOCKS` must be used.
        ways: the four versions, indexed by the sum of the bits `EVENTS` (the version emits events) and `BLOCKS`; None
            for a version that is not yet written.
    """

    def __init__(self, plan: Plan, branches: list[Branch]) -> None:
        self.plan, self.branches = plan, branches
        steps = [step for branch in branches for step in branch.trace.steps]
        sums = [spec.nbytes for spec in plan.specs if isinstance(spec, Spec)]
        self.weight = max([0, *sums, *[step.plan.weight for step in steps]])
        self.ways: list[Callable[..., Any] | None] = [None] * 4

    def write(self, way: int) -> Callable[..., Any]:
        """Compile one of the four versions, store it in `ways`, and return it.

        ``way`` is the version's index in `ways`. The version emits events if ``way`` has the bit `EVENTS`. It allocates
        results as blocks of the memory manager if ``way`` has the bit `BLOCKS`.
        """
        script = _Script(self.plan, bool(way & EVENTS), bool(way & BLOCKS))
        script.add(", ".join(f"p{i}" for i in range(len(self.plan.specs))) + ", = node[1]", depth=1)
        for branch in self.branches:
            script.check(branch)
        for branch in self.branches:
            script.branch(branch)
        self.ways[way] = function = script.function(self.plan.op.name)
        return function


class _Script:
    """Builds the source text of one function line by line, and collects the objects to which its names refer."""

    def __init__(self, plan: Plan, with_events: bool, blocks: bool) -> None:
        self.plan, self.with_events, self.blocks = plan, with_events, blocks
        self.lines: list[str] = []
        self.unemitted: list[int] = []  # codes of ops in a row, which share clock readings and one write
        self.names: dict[str, Any] = {"new": np.empty, "clock": perf_counter, "add": OPS["add"].index}
        self.number = count().__next__

    def name(self, value: Any) -> str:
        """Return a new name for ``value`` in the text."""
        name = f"v{self.number()}"
        self.names[name] = value
        return name

    def add(self, *lines: str, depth: int) -> None:
        """Add lines of text, indented ``depth`` times."""
        self.lines += ["    " * depth + line for line in lines]

    def run(self, plan: Plan, result: str, call: str, depth: int, reuse: tuple[str, str] | None = None) -> None:
        """Add the lines that run an op.

        Args:
            plan: the op's plan.
            result: the name that the op's result gets in the text.
            call: the text of the call of the backend's method, with ``{}`` in place of the buffer to write to.
            depth: how many times the lines are indented.
            reuse: the name of an existing buffer to write to, and the condition, as text, under which that is allowed.
        """
        out, alloc = f"new((), {self.name(plan.blank)})" if plan.blank else "None", "0"
        if self.blocks and plan.weight > 0:
            made = self.name(plan)
            made = EMPTY.format(spec=f"{made}.spec", plan=made, category=f"here.category or {TEMPORARY}")
            fresh = f"{made} if {plan.weight} >= here.min_block else ({out}, 0)"
            given = fresh if reuse is None else f"({reuse[0]}, 0) if {reuse[1]} else {fresh}"
            out, alloc = result, f"a{result}"
            self.add(f"{out}, {alloc} = {given}", depth=depth)
        elif reuse is not None:
            out = f"{reuse[0]} if {reuse[1]} else {out}"
        if self.with_events and not self.unemitted:
            self.add("t0 = clock()", depth=depth)
        self.add(f"{result} = {call.format(out if plan.op.writes_out else '')}", depth=depth)
        if not self.with_events:
            return
        self.unemitted.append(plan.code)
        self.add(f"t{len(self.unemitted)} = clock()", depth=depth)
        if self.blocks:
            self.add(f"lane.pending += ({plan.code}, t0, t1, {alloc}, node[2], lane.context, 0, 0)", depth=depth)
            self.unemitted = []

    def tell(self, depth: int) -> None:
        """Add the line that emits the events of all ops that were added since the last such line."""
        rows = []
        for i in range(0, len(self.unemitted), encoding.ROW_OPS):
            codes = tuple(self.unemitted[i : i + encoding.ROW_OPS])
            times = [f"t{i + j}" if j <= len(codes) else "0" for j in range(encoding.ROW_OPS + 1)]
            rows.append(
                f"{encoding.row_code(codes)}, {times[0]}, {times[1]}, 0, node[2], lane.context, {times[2]}, {times[3]}"
            )
        if rows:
            self.add(f"lane.pending += ({', '.join(rows)})", depth=depth)
            self.unemitted = []

    def check(self, branch: Branch) -> None:
        """Add the lines that return True if a tensor is not contiguous as assumed; later, a cotangent may be stored."""
        named = {id(x): name for x, name in branch.inputs}
        condition = f"{branch.condition} and " if branch.condition else ""
        for x in branch.trace.assumed:
            self.add(f"if {condition}not here.backend.is_contiguous({named[id(x)]}): return True", depth=1)

    def branch(self, branch: Branch) -> None:
        """Add the lines of one branch: run its ops, and add the results to the cotangents of the parents."""
        depth = 1
        if branch.condition:
            self.add(f"if {branch.condition}:", depth=1)
            depth = 2
        named = {id(x): name for x, name in branch.inputs}
        if branch.condition:  # first, so that nothing comes between pulls and sums
            self.find([i for i, _ in branch.given], depth)
        if branch.whole:
            self.names |= {"pull_whole": crossing.pull_whole, "plan": self.plan}
            self.add(*branch.whole, depth=depth)
        needed = {id(x) for x in [x for x, _ in branch.inputs] + [x for _, x in branch.given]}
        last = {id(x): n for n, step in enumerate(branch.trace.steps) for x in step.operands if isinstance(x, Traced)}
        for n, step in enumerate(branch.trace.steps):
            result = named[id(step.result)] = f"r{self.number()}"
            operands = [self.operand(step.plan, x, named) for x in step.operands]
            arguments = ", ".join([*operands, *map(self.name, step.plan.attributes), "{}"]).removesuffix(
                ", {}" if not step.plan.op.writes_out else ""
            )
            self.run(step.plan, result, f"table[{step.plan.op.index}]({arguments})", depth)
            read = [id(x) for x in step.operands if isinstance(x, Traced)]
            done = {named[x] for x in read if last[x] == n and x not in needed}
            if self.blocks and done:  # memory goes when no op will read it any more
                self.add(f"del {', '.join(sorted(done))}", depth=depth)
        given = [(i, named[id(x)], x._spec) for i, x in branch.given]
        if self.blocks and branch.last:  # sums may need the memory that the node held
            self.add(f"if {branch.last}: node[1] = None; del node[6:]", depth=depth)
        if branch.condition:
            self.give(given, depth)
            if len(branch.given) > 1:
                self.add("return", depth=depth)
            return
        self.tell(1)
        for i, result, spec in given:
            self.add(f"if p{i} is not None:", depth=1)
            self.find([i], 2)
            self.give([(i, result, spec)], 2)

    def operand(self, plan: Plan, x: Any, named: dict[int, str]) -> str:
        """Return the expression for the buffer of operand ``x``, which is a traced tensor or a number.

        ``named`` maps the id of each traced tensor to its name in the text.
        """
        if isinstance(x, Traced):
            return named[id(x)]
        if isinstance(x, Number):
            return f"{self.name(plan.constant)}({x.name}, here.backend)"
        if isinstance(x, (float, int)):
            return self.name(plan.constant(x, state.current().backend))
        return self.name(x._data)

    def find(self, places: Sequence[int], depth: int) -> None:
        """Add the lines that look up the sums of cotangents that the parents ``places`` (positions) have received."""
        for i in places:
            self.add(f"key{i} = p{i}[2]", f"before{i} = cotangents.get(key{i})", depth=depth)

    def give(self, given: Sequence[tuple[int, str, Spec]], depth: int) -> None:
        """Add the lines that add cotangents to the sums of the parents, as `Walk` does.

        The first cotangent of a parent is stored, and later ones are added. The events of later ops depend on whether
        there is an addition, so the lines for the other parents are written twice, once in each branch.

        Args:
            given: for each parent its position, the name of its cotangent in the text, and the cotangent's spec.
            depth: how many times the lines are indented.
        """
        if not given:
            self.tell(depth)
            return
        (i, g, spec), *rest = given
        plan, unemitted = find_plan(OPS["add"], (spec, spec), (), state.current()), list(self.unemitted)
        self.add(f"if before{i} is None:", depth=depth)
        self.give(rest, depth + 1)
        self.add(f"cotangents[key{i}] = {g}", f"if key{i} < 0: leaves.append(p{i})", depth=depth + 1)
        self.add(f"elif p{i}[3] is not own: reached.append(p{i})", depth=depth + 1)
        self.unemitted = unemitted
        self.add("else:", depth=depth)
        # NumPy takes three times as long to add to one number in place as to make a new one
        reuse = (f"before{i}", f"key{i} in owned") if spec.size > 1 else None
        self.run(plan, f"sum{i}", f"table[add](before{i}, {g}, {{}})", depth + 1, reuse)
        self.give(rest, depth + 1)
        self.add(f"cotangents[key{i}] = sum{i}", depth=depth + 1)
        if spec.size > 1:
            self.add(f"owned.add(key{i})", depth=depth + 1)

    def function(self, name: str) -> Callable[..., Any]:
        """Compile the text to a function of a node, which adds to the cotangents of the node's parents.

        The function returns True if public ops must compute these cotangents instead.
        """
        text = "\n".join(["def pull(node, g, around):", f"    {AROUND} = around", *self.lines])
        names = compiled(text, f"<pull of {name}>", self.names)
        return names["pull"]


def compile_pulls(plan: Plan, saved: Sequence[Any]) -> Compiled | bool:
    """Compile the gradient functions of a plan (op, shapes, attributes), and store the result in the plan.

    Args:
        plan: the plan whose gradient functions are compiled.
        saved: the values that a node of this plan saved; only their dtypes and shapes are used.

    Returns:
        The compiled functions, or False if they cannot be compiled.
    """
    try:
        if not plan.op.traceable:
            raise Untraceable
        with state.recording(False):
            made: Any = Compiled(plan, branches_of(plan, saved))
    except Exception:  # whatever a pull cannot do without values
        made = False
    plan.compiled = made
    return made
