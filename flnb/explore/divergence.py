"""`flnb.bisect`: the first op on which two backends differ, as a script of at most ten lines."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnb_telemetry.safe_text import WHOLE, html_text, safe_lines

from flnb.explore.calls import NEW
from flnb.explore.lockstep import ComparedOp, backends_of, lockstep
from flnb.explore.minimise import Minimised, minimise
from flnb.explore.script import array_code, literal, named_backend, save, where

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.dispatch.source_lines import Line
    from flnb.explore.calls import OpCall
    from flnb.explore.difference import Difference

__all__ = ["Divergence", "bisect"]


@dataclass(frozen=True, repr=False)
class Divergence:
    """The first op on which two backends differ.

    Attributes:
        op, index: its name, and how many ops ran before it.
        place, scope, phase: the user's line, the module, the phase.
        difference: in the program; ``smallest`` in the script.
        call: the inputs and attributes as the program had them.
        script: at most ten lines of Python that show the difference.
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

    def __repr__(self) -> str:
        place = where(self.scope, self.phase, self.place.brief)
        head = f"first difference: op {self.index}, {self.op}{place and f' ({place})'}"
        return safe_lines(f"{head}\n  {self.difference}\n  inputs {self.call}") + f"\n\n{self.script}"

    def _repr_html_(self) -> str:
        place = html_text(where(self.scope, self.phase, between=" · "))
        return (
            f"<div><b>{html_text(self.op)}</b>, op {self.index}, is the first that differs. {place}"
            f"<div><code>{html_text(self.place.brief)}</code></div><div>{html_text(str(self.difference))}</div>"
            "<pre style='padding:8px;border:1px solid var(--jp-border-color2,#8884)'>"
            f"{html_text(self.script, WHOLE)}</pre></div>"
        )


class _Found(Exception):
    """Ends the program at the first difference."""


def bisect(
    function: Callable[[], Any], a: Any, b: Any, *, tolerance: float = 1e-10, seed: int = 0
) -> Divergence | None:
    """The first op of ``function()`` on which backend ``b`` differs from backend ``a``; None if none does.

    The program runs on ``a``; every op is run on ``b`` too, on the same inputs, until one differs: by more than
    rounding may (``tolerance`` of the largest value, or 8 units in the last place, 32 in sums), in shape or dtype, by
    an error, by writing to an input. Its inputs are then made as small and simple as the difference allows, with their
    dtypes and, where it matters, their layout in memory.

    Args:
        function: called once, without arguments; it is left by an exception at the first difference.
        a, b: names, classes or instances of backends.
        seed: of the session's random numbers.

    >>> import numpy as np, flnb
    >>> class Faulty(flnb.backends.NumpyBackend):
    ...     def tanh(self, x, out=None):
    ...         return np.tanh(x if x.size < 3 else x + 1, out)
    >>> found = flnb.bisect(lambda: flnb.tanh(flnb.zeros((8, 8)) * 2.0).sum(), "numpy", Faulty)
    >>> found.op, found.call.inputs[0].shape
    ('tanh', (8, 8))
    >>> print(found.script)
    import numpy as np, flnb
    # tanh on "numpy" and Faulty
    x0 = np.ones((1, 3), "float32")
    print(flnb.explore.compare_op("tanh", [x0], backends=["numpy", Faulty]))
    """
    reference, other = backends_of([a, b], "bisect")
    steps: list[ComparedOp] = []
    count = 0

    def tell(step: ComparedOp) -> None:
        nonlocal count
        if step.difference:
            steps.append(step)
            raise _Found
        count += 1

    try:
        lockstep(function, reference, [other], tolerance, tell, seed)
    except _Found:
        pass
    if not steps:
        return None
    step = steps[0]
    small = minimise(step.call, reference, other, tolerance)
    names = [named_backend(given, made) for given, made in ((a, reference), (b, other))]
    script = _script(small, step, names, tolerance)
    found = small.found or step.difference
    where = step.place, step.scope, step.phase
    return Divergence(step.call.op, count, *where, step.difference, found, step.call, script)


def _script(small: Minimised, step: ComparedOp, names: list[tuple[str, str]], tolerance: float) -> str:
    call = small.call
    lines = ["import numpy as np, flnb", *dict.fromkeys(line for _, line in names if line)]
    at = f", {step.place.brief}" if step.place.source and step.place.file[0] != "<" else ""
    lines.append(f"# {call.op} on {names[0][0]} and {names[1][0]}{at}"[:110])
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
    options = "".join(
        f", {name}={literal(value)}"
        for name, value, usual in (
            ("out", call.out, None),
            ("category", call.category, 0),
            ("repeats", small.repeats, 1),
            ("tolerance", tolerance, 1e-10),
        )
        if value != usual
    )
    if call.out == NEW and call.result is not None:
        options += f', result=({call.result[0]}, "{call.result[1].name}")'
    attributes = f", {literal(call.attributes)}" if call.attributes else ""
    backends = ", ".join(name for name, _ in names)
    lines.append(
        f'print(flnb.explore.compare_op("{call.op}", [{", ".join(made)}]{attributes}, backends=[{backends}]{options}))'
    )
    return "\n".join(lines)
