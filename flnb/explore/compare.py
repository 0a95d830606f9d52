"""`flnb.compare_backends`: every op of a program on several backends side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch import state
from flnb.dispatch.spelling import misspelt
from flnb.explore.lockstep import ComparedOp, backends_of, lockstep
from flnb.explore.report import Report, Result
from flnb.explore.turns import ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.interface import TensorBackend

__all__ = ["compare_backends"]


class _Row:
    """The facts about one op on one backend."""

    def __init__(self, rounds: int) -> None:
        self.calls = self.failures = 0
        self.error = 0.0
        self.seconds, self.reference = np.zeros((2, rounds))  # of all calls
        self.line = ""
        self.first: ComparedOp | None = None

    def add(self, step: ComparedOp) -> None:
        self.calls += 1
        self.error = max(self.error, step.difference.error)
        self.seconds += step.seconds
        self.reference += step.reference
        self.line = self.line or step.place.brief
        if step.difference:
            self.failures += 1
            self.first = self.first or step

    def result(self, op: str, backend: str) -> Result:
        first, reason, inputs = self.first, "", ""
        if first is not None:
            reason = f"{first.difference}" + (f" ({self.failures} of {self.calls} calls)" if self.calls > 1 else "")
            inputs = str(first.call)
        line = first.place.brief if first is not None else self.line
        time = ratios(self.seconds.tolist(), self.reference.tolist())
        error = self.error if first is None or self.error else None
        return Result(op, first is None, self.calls, reason, (), backend, error, time, inputs, line, op)


def compare_backends(
    function: Callable[[], Any], backends: Sequence[Any], *, tolerance: float = 1e-10, seed: int = 0, rounds: int = 7
) -> Report:
    """Run a program on the first backend, and each of its ops on the others too, on the same inputs.

    The report has a row for each op and backend: whether it passed, the largest error, the time beside the reference's
    (the median of the rounds, and the least and the most of them), and of the first call that differs, the inputs and
    the line. In a notebook it is a table, in which a click on an op selects it in the dashboard.

    Args:
        function: called once, without arguments, with the session's random numbers seeded.
        backends: names, classes or instances; the first is the reference.
        tolerance: of the largest error, relative to the largest value; 8 units in the last place (32 in sums) are
            always allowed.
        rounds: how often each op is timed on every backend, by turns, after it ran there once.

    >>> import numpy as np, flnb
    >>> class Rounded(flnb.backends.NumpyBackend):
    ...     def exp(self, x, out=None):
    ...         return np.round(np.exp(x), 1, out)
    >>> report = flnb.compare_backends(lambda: flnb.exp(flnb.ones((2,)) * 0.5), ["numpy", Rounded])
    >>> [(row.op, row.passed) for row in report.results]
    [('full', True), ('multiply', True), ('exp', False)]
    >>> report["exp"].reason
    'largest error 4.87e-02, allowed 1.57e-06; 2 of 2 values differ; at [0] 1.6 where 1.6487212 was expected'

    Raises:
        ValueError: fewer than two backends, or no round.
    """
    if rounds < 1:
        raise ValueError(f"compare_backends: rounds must be 1 or more, got {rounds}")
    reference, *others = backends_of(backends, "compare_backends")
    names = _distinct(others)
    rows: dict[tuple[int, str], _Row] = {}

    def tell(step: ComparedOp) -> None:
        which = next(i for i, other in enumerate(others) if other is step.backend)
        rows.setdefault((which, step.call.op), _Row(rounds)).add(step)

    lockstep(function, reference, others, tolerance, tell, seed, rounds)
    shown = names if len(others) > 1 else [""]
    results = [row.result(op, shown[which]) for (which, op), row in sorted(rows.items(), key=lambda item: item[0][0])]
    results += [
        Result(f"method {name!r}", False, 0, f"is no primitive and never called; did you mean {meant!r}?", (), shown[i])
        for i, other in enumerate(others)
        for name, meant in misspelt(type(other), state.operators).items()
    ]
    return Report(f"{', '.join(names)} beside {reference.name}", tuple(results))


def _distinct(backends: Sequence[TensorBackend]) -> list[str]:
    """The backends' names, numbered where two are alike."""
    names = [backend.name for backend in backends]
    return [n if names.count(n) == 1 else f"{n} {names[: i + 1].count(n)}" for i, n in enumerate(names)]
