"""Running a program on a reference backend while every op also runs on other backends, with the same inputs.

So errors of earlier ops do not accumulate, all backends follow the same control flow, and the program and its side
effects run only once. The program runs composites op by op. A composite that one of the backends takes whole is then
run as a whole on all of them, and so is its gradient if the program records gradients.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import bus, schema

from flnb.dispatch import registry, state
from flnb.dispatch.interpreter import use_interpreter
from flnb.dispatch.observe import Observer, observe
from flnb.dispatch.parts import use_backend
from flnb.dispatch.source_lines import Line, lines, site
from flnb.explore.calls import OpCall, call_before
from flnb.explore.composites import CompositeCall, Wholes
from flnb.explore.difference import Difference, difference
from flnb.explore.turns import in_turn
from flnb.random import manual_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.dispatch.table import Op
    from flnb.interface import TensorBackend


@dataclass(frozen=True)
class ComparedOp:
    """One op of a program, compared on one backend with the reference.

    Attributes:
        call: the op with its inputs.
        backend: the backend that was compared.
        seconds: times of the op on that backend, one for each round.
        reference: times of the op on the reference, one for each round.
        difference: how the two results differ.
        place, scope, phase: line of the program, path of the module, and phase in which the op was called.
        nth: the number of calls of this op with the same scope before it; None while gradients are not recorded, as in
            a backward pass, because the op has no node on the tape then.
    """

    call: OpCall
    backend: TensorBackend
    seconds: list[float]
    reference: list[float]
    difference: Difference
    place: Line
    scope: str
    phase: str
    nth: int | None


class Lockstep(Observer):
    """Runs each op of a program also on other backends than the reference, and calls ``report`` with each comparison.

    ``rounds`` is how often each op is timed on every backend.
    """

    def __init__(
        self, reference: TensorBackend, others: Sequence[TensorBackend], tolerance: float,
        report: Callable[[ComparedOp], None], rounds: int,
    ) -> None:  # fmt: skip
        self.reference, self.others, self.tolerance, self.rounds = reference, others, tolerance, rounds
        self.report = report
        self.call: OpCall
        self.wrong: set[TensorBackend] = set()
        self._calls = Counter[Any]()

    def before(self, op: Op, arguments: tuple[Any, ...]) -> None:
        """Store the inputs before the op can overwrite them."""
        self.call = call_before(op, arguments, self.reference)

    def after(self, op: Op, arguments: tuple[Any, ...], result: Any) -> None:
        """Run the op on every other backend, and report how each result differs from the one in the program."""
        self._compare(self.call, self.others, np.array(self.reference.to_numpy(result)))

    def whole(self, call: CompositeCall) -> bool:
        """Compare a composite, or its gradient, as programs run it; return whether all results agree.

        Another backend is compared with the reference if either of them runs the composite by a method of its own. A
        backend that runs the composite op by op is left out if one of the ops already differed, or if the backend
        overrides one of them: then the ops themselves show what differs.
        """
        with bus.uncounted():
            by_reference = call.taken(self.reference)
            chosen = [
                b for b in self.others
                if call.taken(b) or (by_reference and b not in self.wrong and not call.offered(b))
            ]  # fmt: skip
            return not chosen or self._compare(call, chosen)

    def _compare(self, call: OpCall, others: Sequence[TensorBackend], real: Any = None) -> bool:
        """Run a call on ``others`` and report each comparison; ``real`` is the program's own result, if known."""
        here, agree = bus.threads.here, True
        where = lines(*site())[0], here.path, schema.PHASES[here.phase]
        expected, *outcomes = (call.on(backend) for backend in (self.reference, *others))
        if real is not None:
            expected = replace(expected, value=real, error=None)
        timed = in_turn((self.reference, *others), lambda b: call.on(b).seconds, self.rounds)  # all are warm now
        for other, got, seconds in zip(others, outcomes, timed[1:], strict=True):
            found = difference(call, self.reference, expected, got, self.tolerance)
            if found:
                agree = False
                self.wrong.add(other)
            key = call.op, here.path, other
            nth = self._calls[key] if state.current().grad else None
            self._calls[key] += nth is not None
            self.report(ComparedOp(call, other, seconds, timed[0], found, *where, nth))
        return agree


def lockstep(
    function: Callable[[], Any], reference: TensorBackend, others: Sequence[TensorBackend], tolerance: float,
    report: Callable[[ComparedOp], None], seed: int = 0, rounds: int = 0,
) -> Any:  # fmt: skip
    """Call ``function()`` on the reference backend and compare each of its ops on the other backends.

    Results differ if an error exceeds ``tolerance`` (`flnb.explore.difference.difference`).
    The session's random generator is seeded with ``seed`` first. After each backend has run an op once, all backends
    are timed in turn, ``rounds`` times, and ``report`` is called with each comparison. Returns the function's result.
    """
    manual_seed(seed)
    seen = Lockstep(reference, others, tolerance, report, rounds)
    with use_backend(reference), observe(seen), use_interpreter(Wholes(seen.whole)):
        return function()


def backends_of(given: Sequence[Any], what: str) -> list[TensorBackend]:
    """Return backends for two or more names, classes or instances; ``what`` names the calling function in errors."""
    if isinstance(given, str) or len(given) < 2:
        raise ValueError(f"{what}: expected two or more backends, the reference first, got {given!r}")
    made = [registry.make("backend", one) for one in given]
    if made[0].defers:
        raise ValueError(
            f"{what}: the reference {made[0].name!r} records ops and computes them later, so an op returns nothing "
            f"to compare with; name a backend first that computes at once, such as 'numpy'"
        )
    return made
