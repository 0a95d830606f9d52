"""`flnb.compare_backends`: run every op of a program on several backends and compare results and times."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb.dispatch import state
from flnb.dispatch.source_lines import lines
from flnb.dispatch.spelling import misspelt, warn_of_misspelt
from flnb.explore.lockstep import ComparedOp, backends_of, lockstep
from flnb.explore.report import Report, Result
from flnb.explore.turns import ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.explore.difference import Difference
    from flnb.interface import TensorBackend


class _Call(NamedTuple):
    """The comparison of one call of an op on a backend; inputs are stored as text, so that arrays can be freed.

    Attributes:
        inputs: the shapes and dtypes of the inputs, as text.
        line: the line of the user's program that called the op.
        difference: how the result differs from the result of the reference.
        seconds, reference: the times of the op in all rounds, on this backend and on the reference.
        scope, nth: the path of the module, and the place among the calls there, as in `Result`.
    """

    inputs: str
    line: str
    difference: Difference
    seconds: list[float]
    reference: list[float]
    scope: str
    nth: int | None


def _result(op: str, backend: str, calls: list[_Call]) -> Result:
    """Return the row of the report for all calls of one op on one backend."""
    failed = [call for call in calls if call.difference]
    shown = failed[0] if failed else calls[0]
    reason = str(shown.difference) if failed else ""
    if failed and len(calls) > 1:
        reason += f" ({len(failed)} of {len(calls)} calls)"
    error = max(call.difference.error for call in calls)
    time = ratios(*np.sum([(call.seconds, call.reference) for call in calls], axis=0).tolist())
    inputs, line = shown.inputs if failed else "", shown.line
    error_shown = None if failed and not error else error
    return Result(
        op, not failed, len(calls), reason, (), backend, error_shown, time, inputs, line, op, shown.scope, shown.nth
    )


def compare_backends(
    function: Callable[[], Any], backends: Sequence[Any], *, tolerance: float = 1e-10, seed: int = 0, rounds: int = 7
) -> Report:
    """Run a program on a reference backend, and each of its ops also on other backends, with the same inputs.

    A composite such as softmax runs op by op; if one of two backends has a method for the whole, the whole is compared,
    too, and its gradient (``softmax_pull``) if the program records gradients. An optimizer's update runs op by op.

    The returned report has a row for each op and backend: whether it passed, the largest error, the time as a multiple
    of the reference's (median, minimum and maximum over the rounds), and the inputs and source line of the first call
    that differs. A notebook shows the report as a table; a click on an op's name selects its node
    in the dashboard, or the op if it has none there.

    Args:
        function: called once, without arguments.
        backends: two or more names, classes or instances; the first is the reference.
        tolerance: allowed error, relative to the largest value of a result; 8 units in the last place (32 in sums)
            are always allowed.
        seed: seed of the session's random generator before the program runs.
        rounds: how often each op is timed on every backend, in turn, after one run on each that is not timed.

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
        ValueError: fewer than two backends, or ``rounds`` below 1.
    """
    if rounds < 1:
        raise ValueError(f"compare_backends: rounds must be 1 or more, got {rounds}")
    reference, *others = backends_of(backends, "compare_backends")
    names = _distinct(others)
    with warnings.catch_warnings(action="ignore"):  # the report has rows for them
        for other in others:
            warn_of_misspelt(type(other), state.operators)
    calls: list[dict[str, list[_Call]]] = [{} for _ in others]

    def report(step: ComparedOp) -> None:
        which = next(i for i, other in enumerate(others) if other is step.backend)
        about = step.difference, step.seconds, step.reference, step.scope, step.nth
        call = _Call(str(step.call), step.place.brief, *about)
        calls[which].setdefault(step.call.op, []).append(call)

    lockstep(function, reference, others, tolerance, report, seed, rounds)
    shown = names if len(others) > 1 else [""]
    results = [_result(op, name, made) for name, ops in zip(shown, calls, strict=True) for op, made in ops.items()]
    results += [row for name, other in zip(shown, others, strict=True) for row in misspelt_methods(other, name)]
    return Report(f"{', '.join(names)} beside {reference.name}", tuple(results))


def misspelt_methods(backend: TensorBackend, name: str = "") -> list[Result]:
    """Return a failed row for each method of a backend whose name is similar to that of an op, so probably misspelt.

    ``name`` is the name of the backend in the report.
    """
    found = misspelt(type(backend), state.operators)
    reason = "is never called: no op has this name; did you mean {!r}?"
    return [
        Result(f"method {m!r}", False, 0, reason.format(op), (), name, line=defined(backend, m))
        for m, op in found.items()
    ]


def defined(backend: TensorBackend, method: str) -> str:
    """Return file and line of a backend's method as text, empty if the method is not written in Python."""
    code = getattr(getattr(type(backend), method, None), "__code__", None)
    return lines(code, -1)[0].brief if code is not None else ""


def _distinct(backends: Sequence[TensorBackend]) -> list[str]:
    """Return the names of the backends; if a name occurs several times, each is followed by a number."""
    names = [backend.name for backend in backends]
    return [n if names.count(n) == 1 else f"{n} {names[: i + 1].count(n)}" for i, n in enumerate(names)]
