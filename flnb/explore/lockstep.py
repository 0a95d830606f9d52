"""Running a program on one backend while every op is run on others too, on the same inputs.

Op by op there is nothing that errors of earlier ops could spread to, no control flow that could part, and the program,
with all that it changes, runs once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import bus, schema

from flnb.dispatch import registry
from flnb.dispatch.observe import Observer, observe
from flnb.dispatch.parts import use_backend
from flnb.dispatch.source_lines import Line, lines, site
from flnb.explore.calls import OpCall, Outcome, call_before
from flnb.explore.difference import Difference, difference
from flnb.explore.turns import in_turn
from flnb.random import manual_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.dispatch.table import Op
    from flnb.interface import TensorBackend

__all__ = ["ComparedOp", "backends_of", "lockstep"]


@dataclass(frozen=True)
class ComparedOp:
    """One op of the program on one other backend: the call, its outcome, and its place in the program.

    ``seconds`` and ``reference`` are of that backend and the reference, one number a round.
    """

    call: OpCall
    backend: TensorBackend
    expected: Outcome
    got: Outcome
    seconds: list[float]
    reference: list[float]
    difference: Difference
    place: Line
    scope: str
    phase: str


class Lockstep(Observer):
    """Runs each op of the reference on the other backends, and reports each."""

    def __init__(
        self, reference: TensorBackend, others: Sequence[TensorBackend], tolerance: float,
        tell: Callable[[ComparedOp], None], rounds: int,
    ) -> None:  # fmt: skip
        self.reference, self.others, self.tolerance, self.tell = reference, others, tolerance, tell
        self.rounds = rounds
        self.call: OpCall

    def before(self, op: Op, arguments: tuple[Any, ...]) -> None:
        """Keep the inputs, which the op may write to."""
        self.call = call_before(op, arguments, self.reference)

    def after(self, op: Op, arguments: tuple[Any, ...], result: Any) -> None:
        """Run the others."""
        self._compare(Outcome(np.array(self.reference.to_numpy(result))))

    def failed(self, op: Op, arguments: tuple[Any, ...], error: BaseException) -> None:
        """The program goes no further: nothing to compare with."""

    def _compare(self, real: Outcome) -> None:
        place = bus.threads.here
        where = lines(*site())[0], place.path, schema.PHASES[place.phase]
        expected, *outcomes = (self.call.on(backend) for backend in (self.reference, *self.others))
        expected = replace(expected, value=real.value, error=None)
        reference, *timed = in_turn((self.reference, *self.others), self._seconds, self.rounds)  # all are warm now
        for other, got, seconds in zip(self.others, outcomes, timed, strict=True):
            found = difference(self.call, self.reference, expected, got, self.tolerance)
            self.tell(ComparedOp(self.call, other, expected, got, seconds, reference, found, *where))

    def _seconds(self, backend: TensorBackend) -> float:
        return self.call.on(backend).seconds


def lockstep(
    function: Callable[[], Any], reference: TensorBackend, others: Sequence[TensorBackend], tolerance: float,
    tell: Callable[[ComparedOp], None], seed: int = 0, rounds: int = 0,
) -> Any:  # fmt: skip
    """Call ``function`` on the reference with the session's generator seeded; ``tell`` is called with every op.

    After each backend has run an op once, all are timed in turn, ``rounds`` times.
    """
    manual_seed(seed)
    with use_backend(reference), observe(Lockstep(reference, others, tolerance, tell, rounds)):
        return function()


def backends_of(given: Sequence[Any], what: str) -> list[TensorBackend]:
    """Backends from names, classes and instances: two or more."""
    if isinstance(given, str) or len(given) < 2:
        raise ValueError(f"{what}: expected two or more backends, the reference first, got {given!r}")
    return [registry.make("backend", one) for one in given]
