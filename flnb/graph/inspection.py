"""Inspection of programs captured by `flnb.jit`: recorded ops, graph rewrites, kernels, memory and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb.dispatch.references import find, referred
from flnb.graph.describing import launches, nest_of
from flnb.graph.listing import listed
from flnb.graph.program import Program
from flnb.graph.rewriting import rewritten
from flnb.graph.values import Value, reachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.graph.nests import Nest


def programs_of(f: Any, who: str) -> list[Program]:
    """Return the programs that `flnb.jit` has captured of a function; for a program, a list with this program.

    Args:
        f: a function of `flnb.jit`, or one of its programs.
        who: the name of the calling function, for error messages.

    Raises:
        TypeError: ``f`` is neither a function of `flnb.jit` nor a program.
        ValueError: the function has no program yet.
    """
    if isinstance(f, Program):
        return [f]
    programs = getattr(f, "programs", None)
    if not isinstance(programs, list):
        raise TypeError(f"{who}: expected a function wrapped by flnb.jit or its program, got {type(f).__name__}")
    if not programs:
        name = getattr(f, "__name__", "the function")
        raise ValueError(
            f"{who}: nothing of {name} was captured yet: call it twice with arguments of the same shapes and dtypes; "
            f"the first call runs normally, the second is captured"
        )
    return programs


def existing_names(f: Any, program: Program) -> dict[Value | None, str]:
    """Return a dict of names for the values that exist before a program runs: "input 0" or a parameter's name, else "".

    Args:
        f: the function of `flnb.jit` that was captured; parameters get their names from the modules of this function.
            Or the program itself; then parameters have no names.
        program: the program.
    """
    modules = [find(holder, name) for holder, name in referred(getattr(f, "function", None))]
    parameters = {
        id(parameter._data): name
        for module in modules
        if hasattr(type(module), "named_parameters")
        for name, parameter in module.named_parameters()
    }
    found: dict[Value | None, str] = {}
    for value in program.layouts:
        if value.op is None and not value.attributes:
            found[value] = parameters.get(id(value.tensor._data), "")
    return found | {value: f"input {i}" for i, value in enumerate(program.inputs)}


class Change(NamedTuple):
    """One graph rewrite: a recorded value that was replaced by another, or removed.

    Attributes:
        rule: "equal" if the value equals an earlier value, "unused" if no op reads it any more, else the name of the op
            whose rule (`flnb.graph.rewriting.RULES`) replaced the value.
        reason: the rule in words.
        where: the file and line of the rule; empty for "equal" and "unused".
        value: the recorded value.
        by: the value that replaces it; None if it was removed.
    """

    rule: str
    reason: str
    where: str
    value: Value
    by: Value | None


class Sweep(NamedTuple):
    """One pass of graph rewriting over all values; ``print`` it to see each replacement.

    Attributes:
        before, after: the values before and after the sweep, in order.
        changes: the values that were replaced or removed.
    """

    before: list[Value]
    after: list[Value]
    changes: list[Change]

    def __str__(self) -> str:
        names: dict[Value, str] = {}
        calls = dict(listed(self.before, names))
        lines = [f"{len(self.before)} values, {len(self.after)} after the sweep"]
        lines += [
            f"{calls[each.value]}: {each.reason}" + (f": {names[each.by]}" if each.by in names else "")
            for each in self.changes
        ]
        return "\n".join(lines)


def history(f: Any) -> list[Sweep]:
    """List the graph rewrites that optimized a function captured by `flnb.jit`, one sweep after another.

    The sweeps are repeated on the recorded values, so that they need not be stored during capture.

    Args:
        f: a function of `flnb.jit`, whose last captured program is used, or one of its programs.

    Raises:
        TypeError: ``f`` is neither a function of `flnb.jit` nor a program.
        ValueError: nothing was captured yet.

    >>> import flnb
    >>> f = flnb.jit(lambda x: flnb.exp(x) * flnb.exp(x))
    >>> x = flnb.ones(3)
    >>> y = f(x), f(x)
    >>> print(flnb.graph.history(f)[0])
    3 values, 2 after the sweep
    %3 = exp(%1)  # float32[3]: equal to an earlier value: %2
    """
    program = programs_of(f, "flnb.graph.history")[-1]
    fired: dict[tuple[str, Value], Any] = {}

    def noting(name: str, rule: Callable[..., Value | None]) -> Callable[..., Value | None]:
        def noted(*arguments: Any) -> Value | None:
            made = rule(*arguments)
            if made is not None:
                fired[name, made] = rule
            return made

        return noted

    wanted = program.recorded.wanted
    rules = {name: noting(name, rule) for name, rule in program.rules.items()}
    now = rewritten(wanted, program.here.backend.overridden(), rules)
    before, after = reachable(wanted), reachable([now.get(x, x) for x in wanted])
    needed, seen = set(after), set()
    changes = []
    for value, by in now.items():
        name = value.op.name if value.op is not None else ""
        if ("constant", by) in fired and by not in seen:
            name = "constant"
        rule = fired.get((name, by)) if by is not value else None
        if rule is not None:
            reason = (rule.__doc__ or name).splitlines()[0].rstrip(".")
            changes.append(Change(name, reason[0].lower() + reason[1:], _place(rule), value, by))
        elif by in seen:
            changes.append(Change("equal", "equal to an earlier value", "", value, by))
        elif by not in needed:
            changes.append(Change("unused", "nothing reads it any more", "", value, None))
        seen.add(by)
    return [Sweep(before, after, changes)]


def _place(rule: Any) -> str:
    """Return the source file and line of a rewrite rule, as "file.py:12"."""
    code = rule.__code__
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


def trace(f: Any) -> str:
    """Return the ops that `flnb.jit` recorded of a function as text, one line per op.

    Args:
        f: a function of `flnb.jit`, whose last captured program is used, or one of its programs.

    Raises:
        TypeError: ``f`` is neither a function of `flnb.jit` nor a program.
        ValueError: nothing was captured yet.

    >>> import flnb
    >>> f = flnb.jit(lambda x: flnb.exp(x) + 1.0)
    >>> y = f(flnb.ones(3)), f(flnb.ones(3))
    >>> print(flnb.graph.trace(f))
    %1 = float32[3], computed
    %2 = exp(%1)  # float32[3]
    %3 = 1.0
    %4 = add(%2, %3)  # float32[3]
    """
    program = programs_of(f, "flnb.graph.trace")[-1]
    return "\n".join(line for _, line in listed(reachable(program.recorded.wanted), {}))


def source(f: Any, form: str = "llvm") -> dict[str, str]:
    """Return the generated source text of each kernel of a function captured by `flnb.jit`.

    Args:
        f: the function, whose last captured program is used, or one of its programs.
        form: "llvm" for LLVM's IR, from which the kernel is compiled; "loops" for a shorter text of the kernel's loops.

    Returns:
        A dict from each kernel's title (its number among the program's launches, and its ops) to its text. The dict
        is empty for programs without kernels: with ``fuse=False``, or where llvmlite is not installed.

    Raises:
        TypeError: ``f`` is neither a function of `flnb.jit` nor a program.
        ValueError: nothing was captured yet, or ``form`` is neither "llvm" nor "loops".

    >>> import flnb
    >>> f = flnb.jit(lambda x: flnb.exp(x) + 1.0)
    >>> y = f(flnb.ones(3)), f(flnb.ones(3))
    >>> for name, text in flnb.graph.source(f, "loops").items():
    ...     print(name, text, sep="\\n")
    #0 exp+add
    over 3:
      %0 = float32 a0[1]
      %1 = exp(%0)
      %2 = 1.0
      %3 = add(%1, %2)
      float32 a1[1] = %3
    """
    if form not in ("llvm", "loops"):
        raise ValueError(f"flnb.graph.source: got form={form!r}; expected 'llvm' or 'loops'")
    program = programs_of(f, "flnb.graph.source")[-1]
    texts = {}
    for each in launches(program):
        if each.kind == "kernel" and each.group is not None:
            nest = nest_of(program, each.group, [x.value for x in each.stored])
            texts[each.title] = (
                nest_text(nest)
                if form == "loops"
                else program.sites[each.group.members[0].place.backend].kernels.source(nest)
            )
    return texts


def nest_text(nest: Nest) -> str:
    """Return a loop nest as text: its loops, scalar steps and arrays, with strides in elements."""

    def array(i: int) -> str:
        dtype, outer, inner = nest.arrays[i]
        return f"{np.dtype(dtype).name} a{i}[{', '.join(map(str, (*outer, *inner)))}]"

    lines = []
    if nest.outer:
        lines.append(f"over {' × '.join(map(str, nest.outer))}:")
    begin = "  " * len(lines)
    if nest.inner:
        lines.append(f"{begin}over {' × '.join(map(str, nest.inner))}:")
    begin = "  " * len(lines)
    for i, step in enumerate(nest.steps):
        if step.op == "load":
            made = array(step.attribute)
        elif step.op == "constant":
            made = str(step.attribute)
        else:
            over = f" over {step.over}" if step.over else ""
            made = f"{step.op}({', '.join(f'%{x}' for x in step.inputs)}){over}"
        lines.append(f"{begin}%{i} = {made}")
    lines += [f"{begin}{array(position)} = %{step}" for step, position in nest.stores]
    return "\n".join(lines)
