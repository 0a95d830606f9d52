"""Training in less memory: which modules to run again in backward, so that a recorded step fits below a capacity.

T. Chen et al., "Training deep nets with sublinear memory cost", 2016: a module that is checkpointed keeps its inputs
and output, and runs again in backward. What that does to the lifetimes of a recorded step is worked out from its
events; the changed trace is replayed, and only what the replay says is promised.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flnb_telemetry import quantity

from flnb.dispatch.state import current
from flnb.memory.lifetimes import Step
from flnb.memory.remedies import stand_in
from flnb.memory.replaying import play

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb_telemetry import Recording

    from flnb.memory.replaying import Outcome
    from flnb.memory.traces import Trace

__all__ = ["Fit", "fit"]

TRIED = 64
"""Replays of one search at most."""


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """What to run again so that a step fits. Sizes in bytes.

    Attributes:
        recompute: the scopes of the modules to checkpoint; () where the step fits as it is.
        fits: whether the replay of the changed trace stayed below the capacity.
        peak: the most that would be reserved, as replayed; peak_live: the largest sum of requested bytes.
        before: the same two without the plan.
        seconds: what the recomputed ops took in the recording, all steps together.
        capacity: that was asked for.
        trace: the changed trace.
    """

    recompute: tuple[str, ...]
    fits: bool
    peak: int
    peak_live: int
    before: tuple[int, int]
    seconds: float
    capacity: int
    trace: Trace

    @contextmanager
    def apply(self, model: Any) -> Iterator[Any]:
        """Run the modules of this plan again in backward: ``with plan.apply(net): step()``.

        Gradients are the same to the last bit. Buffers that a module writes (a running mean) are moved once, not twice.

        Args:
            model: the module, or the modules in a list, whose calls were recorded.

        Raises:
            LookupError: a scope of the plan is no module of the model.
        """
        modules = _modules(model, self.recompute)
        own = [module.__dict__.get("forward") for module in modules]  # of a plan around this one, or the user's
        try:
            for module in modules:
                module.__dict__["forward"] = _again(module)
            yield model
        finally:
            for module, forward in zip(modules, own, strict=True):
                module.__dict__.pop("forward", None)
                if forward is not None:
                    module.__dict__["forward"] = forward

    def __repr__(self) -> str:
        size = quantity.size
        what = ", ".join(self.recompute) or "nothing"
        verdict = "fits in" if self.fits else "does not fit in"
        return (
            f"{verdict} {size(self.capacity)}: recompute {what}\n  peak {size(self.before[0])} → {size(self.peak)} "
            f"reserved, {size(self.before[1])} → {size(self.peak_live)} live; recomputing takes "
            f"{quantity.duration(1e9 * self.seconds)}"
        )


def fit(run: Recording, capacity: int | str, manager: Any = None) -> Fit:
    """Find modules of a recorded step to checkpoint, so that its peak stays below a capacity.

    Greedy: of the modules that have one output, the one is taken whose saved bytes, times how long they wait, are most
    for the time it takes to run it again; each choice is replayed, and one that does not lower the peak is taken back.

    Args:
        run: a recording of whole training steps, from before the model is made or with it made on the manager that is
            active when the recording begins.
        capacity: bytes, or a text with a unit.
        manager: to replay with: a name, class or instance; the active one, in its settings, when not given.

    Returns:
        A plan. ``fits`` is False where no choice was enough; it is then the one with the lowest peak that was found.

    Raises:
        ValueError: nothing was recorded that modules have saved for backward.

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
    spec = current().manager if manager is None else manager
    step = Step(run)
    candidates = step.candidates()
    if not candidates:
        raise ValueError(
            f"flnb.memory.fit: no module of the run {run.name!r} saved anything for a backward that was recorded; "
            f"record a whole training step (forward and backward) of a model of flnb.nn modules"
        )
    first = best = _outcome(step.trace, spec)
    chosen: tuple[str, ...] = ()
    trace = step.trace
    for scope in candidates[:TRIED]:
        if best.peak_reserved <= limit:
            break
        inside = tuple(other for other in chosen if not _nested(scope, other))
        changed = step.recomputed((*inside, scope))
        outcome = _outcome(changed, spec)
        if (outcome.peak_reserved, changed.peak_live) < (best.peak_reserved, trace.peak_live):
            best, chosen, trace = outcome, (*inside, scope), changed
    before = (first.peak_reserved, step.trace.peak_live)
    seconds = sum(step.seconds(scope) for scope in chosen)
    fits = best.peak_reserved <= limit
    return Fit(chosen, fits, best.peak_reserved, trace.peak_live, before, seconds, limit, trace)


def _nested(a: str, b: str) -> bool:
    return a == b or a.startswith(b + ".") or b.startswith(a + ".")


def _outcome(trace: Trace, spec: Any) -> Outcome:
    from flnb.interface.memory import MemoryManager

    device = stand_in(spec.device, 1 << 50) if isinstance(spec, MemoryManager) else None
    return play(trace, spec, device)


def _modules(model: Any, scopes: tuple[str, ...]) -> list[Any]:
    """The modules that have these scopes when the model is called."""
    found: dict[str, Any] = {}
    for root in model if isinstance(model, (list, tuple)) else [model]:
        for path, module in root.named_modules():
            found[f"{root._name}.{path}" if path else root._name] = module
    missing = [scope for scope in scopes if scope not in found]
    if missing:
        raise LookupError(
            f"Fit.apply: the plan's scope {missing[0]!r} is no module of the model; its modules are "
            f"{', '.join(list(found)[:8])}{', ...' if len(found) > 8 else ''}; give apply() the model that was recorded"
        )
    return [found[scope] for scope in scopes]


def _again(module: Any) -> Any:
    """The module's `forward`, checkpointed; what it writes to buffers is undone after it ran again."""
    from flnb.autograd.checkpoint import checkpoint

    plain = module.forward

    def forward(*inputs: Any, **options: Any) -> Any:
        ran = False

        def once_more(*inputs: Any, **options: Any) -> Any:
            nonlocal ran
            if not ran:
                ran = True
                return plain(*inputs, **options)
            before = [(x, x._values().copy()) for _, x in module.named_buffers() if x._spec.kind == "ndarray"]
            try:
                return plain(*inputs, **options)
            finally:
                for buffer, values in before:
                    buffer._values()[...] = values

        return checkpoint(once_more)(*inputs, **options)

    return forward
