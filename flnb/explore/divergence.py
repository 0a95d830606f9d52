"""`flnb.bisect`: find the first op on which two backends differ, and write a short script that shows it."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnb_telemetry.safe_text import WHOLE, html_text, safe_lines

from flnb.explore.calls import NEW
from flnb.explore.lockstep import ComparedOp, backends_of, lockstep
from flnb.explore.minimise import Minimised, minimise
from flnb.explore.report import select_button
from flnb.explore.script import array_code, definition, literal, result_code, save, where

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.dispatch.source_lines import Line
    from flnb.explore.calls import OpCall
    from flnb.explore.difference import Difference


@dataclass(frozen=True, repr=False)
class Divergence:
    """The first op of a program whose results on two backends differ.

    Attributes:
        op: the op's name in the op table.
        index: the number of ops that were compared before it.
        place, scope, phase: line of the program, path of the module, and phase in which the op was called.
        nth: its place among the calls of this op with this scope, counted from 0; None for an op without node.
        difference: the difference of the results in the program.
        smallest: the difference of the results in the script, whose inputs were made small and simple.
        call: the op's inputs and attributes as the program had them.
        script: Python code that shows the difference in an empty namespace: at most ten lines, after the source of the
            backend's class if the class cannot be imported.
    """

    op: str
    index: int
    place: Line
    scope: str
    phase: str
    difference: Difference
    smallest: Difference
    call: OpCall
    script: str
    nth: int | None = None

    def __repr__(self) -> str:
        place = where(self.scope, self.phase, self.place.brief)
        head = f"first difference: op {self.index}, {self.op}{place and f' ({place})'}"
        return safe_lines(f"{head}\n  {self.difference}\n  inputs {self.call}") + f"\n\n{self.script}"

    def _repr_html_(self) -> str:
        place = html_text(where(self.scope, self.phase, between=" · "))
        name = select_button(html_text(self.op), self.op, self.scope, self.nth)
        return (
            f"<div><b>{name}</b>, op {self.index}, is the first that differs. {place}"
            f"<div><code>{html_text(self.place.brief)}</code></div><div>{html_text(str(self.difference))}</div>"
            "<pre style='padding:8px;border:1px solid var(--jp-border-color2,#8884)'>"
            f"{html_text(self.script, WHOLE)}</pre></div>"
        )


class _Found(Exception):
    """Raised to end the program at the first difference."""


def bisect(
    function: Callable[[], Any], a: Any, b: Any, *, tolerance: float = 1e-10, seed: int = 0
) -> Divergence | None:
    """Find the first op of ``function()`` on which backend ``b`` differs from backend ``a``; None if none does.

    The program runs on ``a``, and every op also on ``b`` with the same inputs, until the two results of an op differ:
    by more than rounding explains, in shape or dtype, by an exception, or by a write to an input. Then the op's inputs
    are made as small and simple as possible while the backends still differ; dtypes stay the same, and the layout in
    memory if it matters.

    A composite such as softmax runs op by op. If these ops agree and one of the backends has a method for the whole,
    the whole is compared, and its gradient (``softmax_pull``) if the program records gradients.

    Args:
        function: called once, without arguments; an exception ends it at the first difference.
        a, b: names, classes or instances of backends.
        tolerance: allowed error, relative to the largest value of a result; 8 units in the last place (32 in sums)
            are always allowed.
        seed: seed of the session's random generator before the program runs.

    Raises:
        ValueError: ``a`` or ``b`` is a name that no backend has.

    >>> import numpy as np, flnb
    >>> class Faulty(flnb.backends.NumpyBackend):
    ...     def tanh(self, x, out=None):
    ...         return np.tanh(x if x.size < 3 else x + 1, out)
    >>> found = flnb.bisect(lambda: flnb.tanh(flnb.zeros((8, 8)) * 2.0).sum(), "numpy", Faulty)
    >>> found.op, found.call.inputs[0].shape
    ('tanh', (8, 8))
    >>> print(found.script)
    import numpy as np, flnb
    class Faulty(flnb.backends.NumpyBackend):
        def tanh(self, x, out=None):
            return np.tanh(x if x.size < 3 else x + 1, out)
    # tanh on "numpy" and Faulty
    x0 = np.ones((1, 3), "float32")
    print(flnb.explore.compare_op("tanh", [x0], backends=["numpy", Faulty]))
    """
    reference, other = backends_of([a, b], "bisect")
    steps: list[ComparedOp] = []
    count = 0

    def report(step: ComparedOp) -> None:
        nonlocal count
        if step.difference:
            steps.append(step)
            raise _Found
        count += 1

    with suppress(_Found):
        lockstep(function, reference, [other], tolerance, report, seed)
    if not steps:
        return None
    step = steps[0]
    small = minimise(step.call, reference, other, tolerance)
    given = [f'"{one}"' if isinstance(one, str) else type(made) for one, made in ((a, reference), (b, other))]
    script = _script(small, step, given, tolerance)
    found = small.found or step.difference
    where = step.place, step.scope, step.phase
    return Divergence(step.call.op, count, *where, step.difference, found, step.call, script, step.nth)


def _script(small: Minimised, step: ComparedOp, backends: list[Any], tolerance: float) -> str:
    """Return Python code that shows how the results of a call differ on two backends.

    Args:
        small: the minimised call.
        step: the call in the program, for a comment with its line.
        backends: for each backend its class, or its name as a Python literal.
        tolerance: the allowed error, for `compare_op`.
    """
    call = small.call
    names = [one if isinstance(one, str) else one.__name__ for one in backends]
    lines = ["import numpy as np, flnb"]
    for one in dict.fromkeys(one for one in backends if isinstance(one, type)):
        lines += definition(one, one.__name__)
    at = f", {step.place.brief}" if step.place.source and step.place.file[0] != "<" else ""
    lines.append(f"# {call.op} on {names[0]} and {names[1]}{at}"[:110])
    made = {f"x{i}": array_code(kept) for i, kept in enumerate(call.inputs)}
    long = [name for name, text in made.items() if text is None]
    if long:
        path = Path(tempfile.mkdtemp(prefix="flnb-bisect-")) / f"{call.op}.npz"
        save([kept for kept, text in zip(call.inputs, made.values(), strict=True) if text is None], path)
        lines.append(f"[{', '.join(long)}] = flnb.explore.inputs_of({str(path)!r})")
    short = {name: text for name, text in made.items() if text is not None}
    if len(short) <= 4:
        lines += [f"{name} = {text}" for name, text in short.items()]
    else:
        lines.append(f"{', '.join(short)} = {', '.join(short.values())}")
    given = {"out": call.out, "category": call.category, "repeats": small.repeats, "tolerance": tolerance}
    usual = {"out": None, "category": 0, "repeats": 1, "tolerance": 1e-10}
    options = "".join(f", {name}={literal(value)}" for name, value in given.items() if value != usual[name])
    if call.out == NEW:
        options += result_code(call)
    options = f"{f', {literal(call.attributes)}' if call.attributes else ''}, backends=[{', '.join(names)}]{options}"
    return "\n".join([*lines, f'print(flnb.explore.compare_op("{call.op}", [{", ".join(made)}]{options}))'])
