"""Training in less memory: choose the modules to recompute or offload so that a step fits a capacity.

For a recomputed module, only inputs and output are stored, and the module runs again in backward (T. Chen et al.,
"Training deep nets with sublinear memory cost", 2016). Offloaded tensors (`flnb.memory.offload`) are moved to another
device until backward. The changed lifetimes of tensors are predicted from a recorded step (`lifetimes`,
`offload_lifetimes`), and the changed trace is replayed to find its peak.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flnb_telemetry import quantity
from flnb_telemetry.safe_text import safe_text

from flnb.dispatch.state import current
from flnb.interface.memory import MemoryManager
from flnb.memory_lab.candidates import METHODS, bandwidth_of, choices, costs, with_choice
from flnb.memory_lab.lifetimes import Activation, Step
from flnb.memory_lab.offload_lifetimes import shortest
from flnb.memory_lab.recompute import lean
from flnb.memory_lab.replaying import play, stand_in
from flnb.memory_lab.traces import recording

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from flnb_telemetry import Recording

    from flnb.memory_lab.replaying import Outcome
    from flnb.memory_lab.traces import Trace

TRIED = 64
"""The most replays in one search."""


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """Modules to recompute and to offload so that a training step fits a capacity. Sizes are in bytes.

    Attributes:
        recompute: the scopes of modules to run again in backward; () if none.
        offload: the scopes of modules whose saved tensors are to be moved away; () if none.
        fits: whether the replay of the changed trace stayed within the capacity.
        peak: the most bytes reserved in that replay.
        peak_live: the most requested bytes that were live at once in that replay.
        before: (peak, peak_live) of the recording without changes.
        seconds: the seconds that the recomputed ops took in the recording, over all steps.
        moved: the bytes moved away plus the bytes moved back.
        moving: the seconds that these moves take.
        capacity: the capacity given to `fit`.
        activations: each saved tensor (scope, op, shape, nbytes) with its decision, "keep", "recompute" or "offload".
        trace: the changed trace.
    """

    recompute: tuple[str, ...]
    offload: tuple[str, ...]
    fits: bool
    peak: int
    peak_live: int
    before: tuple[int, int]
    seconds: float
    moved: int
    moving: float
    capacity: int
    activations: tuple[Activation, ...]
    trace: Trace

    def apply(self, model: Any, to: Any = None) -> Any:
        """Return a context manager in which training steps recompute and offload: ``with plan.apply(net): step()``.

        Both forward and backward must run inside the ``with`` block.

        Args:
            model: the module, or a list of the modules, whose calls were recorded.
            to: the device to which tensors are offloaded, as for `flnb.memory.offload`.

        Returns:
            The context manager `flnb.memory.lean`.
        """
        return lean(model, self.recompute, self.offload, to)

    def __repr__(self) -> str:
        size = quantity.size
        verdict = "fits in" if self.fits else "does not fit in"
        sums = Counter[str]()
        for one in self.activations:
            sums[one.decision] += one.nbytes
        done = ", ".join(f"{decision} {size(nbytes)}" for decision, nbytes in sums.items())
        return (
            f"{verdict} {size(self.capacity)}: recompute {_listed(self.recompute)}, offload {_listed(self.offload)}\n"
            f"  peak {size(self.before[0])} → {size(self.peak)} reserved, {size(self.before[1])} → "
            f"{size(self.peak_live)} live; {costs(self.seconds, self.moved, self.moving)}\n"
            f"  of what waits for backward: {done or 'nothing'}"
        )


def _listed(scopes: Iterable[str]) -> str:
    """Return scopes as text, separated by commas; "nothing" if there are none."""
    return ", ".join(map(safe_text, scopes)) or "nothing"


def fit(
    run: Recording | str | Path,
    capacity: int | str,
    manager: Any = None,
    methods: str | Sequence[str] = METHODS,
    bandwidth: int | str | None = None,
) -> Fit:
    """Find modules to recompute and to offload so that a recorded training step fits a capacity.

    The search is greedy: modules are tried in the order of benefit per second of cost. The benefit of a module is the
    number of bytes that the module saves for backward x the time until backward reads them. A module that does not
    lower the peak of a replay is not chosen. Only modules with one output are recomputed; modules that save the same
    tensors are offloaded together.

    Args:
        run: a recording of whole training steps, or the path of a saved one. The model must be created during the
            recording, or before the recording on the manager that is active when the recording begins.
        capacity: bytes, or a string with a unit.
        manager: the manager for replays: a name, class or instance; by default a copy of the active manager.
        methods: "recompute", "offload" or both.
        bandwidth: the bandwidth of moves, in bytes per second (or a string with a unit); by default that of the moves
            in the recording; without moves, the bandwidth of copies in host memory is measured.

    Returns:
        A `Fit`. If no choice was enough, ``fits`` is False, and the choice is the one with the lowest peak.

    Raises:
        TypeError: ``run`` is not a recording or path.
        ValueError: no module of the recording saved a tensor that can be recomputed or moved; or ``methods`` is empty
            or has an unknown name.

    >>> import flnb, flnb.nn as nn
    >>> def block():
    ...     return nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
    >>> manager = flnb.memory.Native(flnb.memory.HostDevice("64MiB"))
    >>> with flnb.use_memory_manager(manager), flnb.record() as run:
    ...     net, x = nn.Sequential(*[block() for _ in range(4)]), flnb.ones((1024, 256))
    ...     net(x).sum().backward()
    >>> net.zero_grad()
    >>> plan = flnb.memory.fit(run, "12MiB", manager)
    >>> plan.fits, plan.peak < plan.before[0]
    (True, True)
    >>> with plan.apply(net):
    ...     net(x).sum().backward()
    """
    limit = quantity.bytes_of(capacity, "fit(capacity=...)")
    allowed = _checked_methods(methods)
    run = recording(run, "fit")
    spec = current().manager if manager is None else manager
    rate = bandwidth_of(run) if bandwidth is None else quantity.bytes_of(bandwidth, "fit(bandwidth=...)")
    step = Step(run)
    candidates = choices(step, allowed, rate)
    if not candidates:
        raise ValueError(f"flnb.memory.fit: {_nothing(step, run.name, allowed)}")
    first = _outcome(step.trace, spec)
    (again, away), best, trace, nbytes = _searched(step, candidates, spec, first, limit)
    before = (first.peak_reserved, step.trace.peak_live)
    away = shortest(step, away, [call for call in step.calls if call.scope in again])
    return Fit(
        again, away, best.peak_reserved <= limit, best.peak_reserved, trace.peak_live, before,
        sum(map(step.seconds, again)), nbytes, nbytes / rate, limit,
        step.decided(again, away), trace,
    )  # fmt: skip


def _checked_methods(methods: str | Sequence[str]) -> tuple[str, ...]:
    """Return the argument ``methods`` of `fit` as a tuple; raise ValueError if it is empty or has an unknown name."""
    allowed = (methods,) if isinstance(methods, str) else tuple(methods)
    unknown = [method for method in allowed if method not in METHODS]
    if unknown or not allowed:
        got = f"no method {unknown[0]!r}" if unknown else "methods is empty"
        raise ValueError(f"flnb.memory.fit: {got}; there are {', '.join(map(repr, METHODS))}, give one or both")
    return allowed


def _searched(
    step: Step, candidates: Sequence[Any], spec: Any, first: Any, limit: int
) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], Any, Trace, int]:
    """Return the modules to recompute or offload, the outcome of their replay, the replayed trace, and the bytes moved.

    Args:
        step: the recorded step.
        candidates: the choices to try, the best first.
        spec: the memory manager for replays.
        first: the outcome of the step without any choice.
        limit: the peak (bytes) at which the search ends.
    """
    both: tuple[tuple[str, ...], tuple[str, ...]] = (), ()
    best, trace, nbytes = first, step.trace, 0
    for choice in candidates[:TRIED]:
        if best.peak_reserved <= limit:
            break
        more = with_choice(*both, choice)
        changed, moved = step.changed(*more)
        outcome = _outcome(changed, spec)
        if (outcome.peak_reserved, changed.peak_live) < (best.peak_reserved, trace.peak_live):
            both, best, trace, nbytes = more, outcome, changed, moved
    return both, best, trace, nbytes


def _nothing(step: Step, name: str, methods: Sequence[str]) -> str:
    """Return the error message for a recording in which nothing can be recomputed or offloaded.

    Args:
        step: the recorded training step.
        name: the name of the recording.
        methods: the methods given to `fit`.
    """
    called = ", ".join(dict.fromkeys(call.scope for call in step.calls if step.outermost(call.scope) == call.scope))
    if not called:
        return (
            f"no module of the run {name!r} saved anything for a backward that was recorded; record a whole training "
            f"step (forward and backward) of a model of flnb.nn modules"
        )
    return (
        f"of what the modules of the run {name!r} ({called}) saved for backward, nothing can use "
        f"{' or '.join(methods)}: only tensors created and consumed inside one module qualify, not its inputs or "
        f"outputs; call modules that follow each other in the forward of one around them (nn.Sequential)"
    )


def _outcome(trace: Trace, spec: Any) -> Outcome:
    """Replay a trace on a manager, given as ``spec``, with a simulated device of unlimited capacity.

    If ``spec`` is an instance, the simulated device has the granularity of the instance's device.
    """
    device = stand_in(spec.device, 1 << 50) if isinstance(spec, MemoryManager) else None
    return play(trace, spec, device)
