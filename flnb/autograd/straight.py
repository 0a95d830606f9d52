"""Pulls of tiny results as straight-line functions of buffers.

A pull is a few public ops. On tiny tensors these spend their time on finding their plans and on making Tensors, and
both are the same for every node of one plan. So a pull is run once on tensors that have a shape and a dtype and no
values, what it does is written down, and the lines become a function that calls the active backend's methods directly.
Every op is still in it, one by one and through the same table: a backend that overrides one, an observer and telemetry
see what they always saw. A pull that asks for a value, or does anything but run ops of the table, is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
from flnb_telemetry import bus

from flnb.dispatch import state
from flnb.dispatch.plan import Plan, Spec, spec_of
from flnb.interface.tape import SAVED
from flnb.ops.movement import sum_to
from flnb.ops.table import OPS, Op
from flnb.tensor import Tensor

__all__ = ["draw"]

LONGEST = 32
"""Ops in a script that is worth writing: longer pulls are about large tensors."""


class NotStraight(Exception):  # not an error: the pull runs as it is
    """A pull does something that cannot be written down."""


class _Script:
    """The lines of one function, and what their names stand for."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.told: list[str] = []  # the same, with an event for each op
        self._untold: list[int] = []  # codes of ops in a row, which share clock readings and one write
        self.length = 0
        self.names: dict[str, Any] = {"empty": np.empty, "clock": perf_counter}
        self.heaviest = 0
        self.depth = 2
        self._number = count().__next__

    def named(self, value: Any) -> str:
        name = f"v{self._number()}"
        self.names[name] = value
        return name

    def write(self, *lines: str, depth: int = 1) -> None:
        self.lines += ["    " * depth + line for line in lines]
        self.told += ["    " * depth + line for line in lines]

    def run(self, plan: Plan, line: str, depth: int) -> None:
        """Add the line that runs an op."""
        self.heaviest = max(self.heaviest, plan.weight)
        indent = "    " * depth
        self.lines.append(indent + line)
        if not self._untold:
            self.told.append(indent + "t0 = clock()")
        self._untold.append(plan.code)
        self.told += [indent + line, f"{indent}t{len(self._untold)} = clock()"]

    def tell(self, depth: int) -> None:
        """Add the line that writes the events of the ops since the last one."""
        rows = []
        for i in range(0, len(self._untold), bus.ROW_OPS):
            codes = tuple(self._untold[i : i + bus.ROW_OPS])
            times = [f"t{i + j}" if j <= len(codes) else "0" for j in range(bus.ROW_OPS + 1)]
            rows.append(f"{bus.row_code(codes)}, {times[0]}, {times[1]}, 0, seq, context, {times[2]}, {times[3]}")
        if rows:
            self.told.append(f"{'    ' * depth}pending += ({', '.join(rows)})")
            self._untold = []

    def blank(self, plan: Plan) -> str:
        """What a method is given to write to."""
        return f"empty((), {self.named(plan.blank)})" if plan.blank else "None"

    def op(self, plan: Plan, buffers: list[str]) -> str:
        """Add the line of an op; the name of its result."""
        out = [self.blank(plan)] if plan.op.writes_out else []
        arguments = [*buffers, *map(self.named, plan.attributes), *out]
        result = f"r{self._number()}"
        self.length += 1
        if self.length > LONGEST:
            raise NotStraight
        self.run(plan, f"{result} = table[{plan.op.index}]({', '.join(arguments)})", self.depth)
        return result

    def find(self, places: Sequence[int]) -> None:
        """Add the lines that look up what parents have got: first, so that nothing comes between pulls and sums."""
        for i in places:
            self.write(f"key{i} = p{i}[2]", f"before{i} = cotangents.get(key{i})", depth=2)

    def give(self, given: Sequence[tuple[int, str, Spec]], depth: int = 2) -> None:
        """Add the lines that take cotangents to parents (as `Walk` does) whose values have these specs: all sums with
        what came before, then the rest. Which of them there are decides what is told together."""
        if not given:
            self.tell(depth)
            return
        (i, g, spec), *rest = given
        plan, untold = _plan(OPS["add"], (spec, spec), ()), list(self._untold)
        blank = self.blank(plan)
        # NumPy takes three times as long to add to one number in place as to make a new one
        out = blank if spec.size == 1 else f"before{i} if key{i} in owned else {blank}"
        self.write(f"if before{i} is None:", depth=depth)
        self.give(rest, depth + 1)
        self.write(f"cotangents[key{i}] = {g}", f"if key{i} < 0: leaves.append(p{i})", depth=depth + 1)
        self.write(f"elif p{i}[3] is not own: reached.append(p{i})", depth=depth + 1)
        self._untold = untold
        self.write("else:", depth=depth)
        self.run(plan, f"sum{i} = add(before{i}, {g}, {out})", depth + 1)
        self.give(rest, depth + 1)
        self.write(f"cotangents[key{i}] = sum{i}", depth=depth + 1)
        if spec.size > 1:
            self.write(f"owned.add(key{i})", depth=depth + 1)

    def function(self, told: bool) -> Callable[..., None]:
        head = [
            "def straight(node, g, table, add, cotangents, owned, reached, leaves, own, backend, pending, context):"
        ]
        if told:
            head.append("    seq = node[2]")
        names = dict(self.names)
        exec("\n".join(head + (self.told if told else self.lines)), names)
        return names["straight"]  # type: ignore[no-any-return]


class _Drawn(Tensor):
    """A tensor without values in the script of a pull; its spec is in no op's plans, so every op ends in `_apply`."""

    __slots__ = ("_name", "_real", "_script")

    _lift = Tensor

    def __init__(self, script: _Script, name: str, spec: Spec) -> None:
        self._script, self._name, self._real = script, name, spec
        self._spec = spec_of(spec.shape, spec.dtype, "drawn")

    @property
    def _level(self) -> _Script:
        return self._script

    @property
    def _data(self) -> NoReturn:
        raise NotStraight

    def _values(self) -> NoReturn:
        raise NotStraight

    def _compose(self, *_: Any) -> NoReturn:
        raise NotStraight

    def _apply(self, op: Op, arguments: tuple[Any, ...], attributes: tuple[Any, ...]) -> _Drawn:
        """Write an op down."""
        if not all(type(x) in (_Drawn, _Scalar, float, int) for x in arguments):
            raise NotStraight
        specs = tuple(x._real if type(x) is _Drawn else x.kind if type(x) is _Scalar else type(x) for x in arguments)
        if len({s.dtype for s in specs if isinstance(s, Spec)}) > 1 or op.accepts in ("integer", "bits", "bool"):
            raise NotStraight  # a conversion would have to come first
        plan = _plan(op, specs, attributes)
        return _Drawn(self._script, self._script.op(plan, [self._buffer(plan, x) for x in arguments]), plan.spec)

    def _buffer(self, plan: Plan, x: Any) -> str:
        """How a line names an argument. Numbers become buffers of the op's dtype, as everywhere."""
        if isinstance(x, _Drawn):
            return x._name
        if isinstance(x, _Scalar):
            return f"{self._script.named(plan.constant)}({x.name}, backend)"
        return self._script.named(plan.constant(x, state.current().backend))


class _Scalar:
    """A Python number that a node saved, another one in every node: it can be given to an op, and nothing else."""

    def __init__(self, name: str, kind: type) -> None:
        self.name, self.kind = name, kind

    def _unknown(self, *_: Any) -> NoReturn:
        raise NotStraight

    __bool__ = __eq__ = __ne__ = _unknown  # else it would answer of itself, the same for every node


def _plan(op: Op, specs: tuple[Any, ...], attributes: tuple[Any, ...]) -> Plan:
    key: Any = specs[0] if op.arity == 1 else specs if op.arity == 2 else (specs, attributes)
    plan = op.plans.get(key)
    if plan is None:
        shape, dtype = op.infer(op, specs, attributes)
        kind = next(s.kind for s in specs if isinstance(s, Spec))
        plan = op.plans.setdefault(key, Plan(op, specs, attributes, spec_of(shape, np.dtype(dtype), kind)))
    return plan


def draw(plan: Plan, saved: Sequence[Any] = ()) -> None:
    """Give a plan its straight functions, or note that it has none.

    A joint pull has them where ``saved`` says what its nodes save: a spec, the type of a number, or None.

    ``straight(node, g, ...)`` takes the buffer g from a node to its parents; ``told`` is the same with an event for
    each op. They may be used where results of ``light`` bytes need no block.
    """
    script = _Script()
    script.write(", ".join(f"p{i}" for i in range(len(plan.specs))) + ", = node[1]")
    try:
        if (plan.joint is not None and not saved) or plan.kind != "ndarray":
            raise NotStraight
        if saved:
            _write_joint(plan, saved, script)
        else:
            _write_pulls(plan, script)
    except Exception:  # whatever a pull cannot do without values
        plan.straight = plan.told = False
        return
    plan.straight = script.function(told=False)
    plan.told = script.function(told=True)
    plan.light = script.heaviest  # last: from now on other threads use them


def _write_pulls(plan: Plan, script: _Script) -> None:
    """Run the pulls on what has no values, and write down what they do: of two parents together, then of each alone."""
    wanted = [i for i, pull in enumerate(plan.pulls) if pull is not None and isinstance(plan.specs[i], Spec)]
    if len(wanted) == 2:
        a, b = wanted
        _write_branch(plan, wanted, f"if p{a} is not None and p{b} is not None and p{a} is not p{b}:", script)
        script.write("return", depth=2)
    for i in wanted:
        _write_branch(plan, [i], f"if p{i} is not None:", script)


def _write_branch(plan: Plan, places: list[int], condition: str, script: _Script) -> None:
    script.write(condition)
    script.find(places)
    script.give([(i, _pulled(plan, i, script), plan.specs[i]) for i in places])


def _pulled(plan: Plan, position: int, script: _Script) -> str:
    """Write down the pull of one argument; the name of what it gives."""
    pull: Any = plan.pulls[position]
    if not pull.__module__.startswith("flnb."):
        raise NotStraight  # a user's function is called for every node
    uses = plan.op.saved_by(position, len(plan.specs))
    saved = _saved([s if used else None for s, used in zip((*plan.specs, plan.spec), uses, strict=True)], script)
    g = _Drawn(script, "g", plan.spec)
    result = pull(g, plan, *saved) if plan.planned else pull(g, *saved)
    shape = plan.shrinks[position]
    if shape is not None:
        result = sum_to(result, shape)
    if type(result) is not _Drawn or result._real is not plan.specs[position]:
        raise NotStraight
    return result._name


def _write_joint(plan: Plan, saved_specs: Sequence[Any], script: _Script) -> None:
    """The same for the one pull of all arguments."""
    script.depth = 1
    pulled = plan.joint(_Drawn(script, "g", plan.spec), plan, *_saved(saved_specs, script))  # type: ignore[misc]
    script.tell(1)
    for i, (result, spec) in enumerate(zip(pulled, plan.specs, strict=True)):
        if result is not None:
            if type(result) is not _Drawn or result._real is not spec:
                raise NotStraight
            script.write(f"if p{i} is not None:")
            script.find([i])
            script.give([(i, result._name, spec)])


def _saved(specs: Sequence[Any], script: _Script) -> list[Any]:
    """What a node saves, as it stands in a script."""
    names = [f"node[{SAVED + i}]" for i in range(len(specs))]
    return [
        spec and (_Drawn(script, f"{name}._data", spec) if isinstance(spec, Spec) else _Scalar(name, spec))
        for name, spec in zip(names, specs, strict=True)
    ]
