"""Remedies for a request that ran out of memory, each replayed on the recorded trace up to that request.

If the recording has whole training steps before it, the replay goes on: through the rest of the step that failed, and
through one whole step (`flnb.memory_lab.next_step`).
There are no predictions without a recording, or if the replay of the recording does not fail at the same request.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry import quantity

from flnb.dispatch import registry
from flnb.memory_lab import code_snippets as snippets
from flnb.memory_lab import report_text
from flnb.memory_lab.candidates import METHODS, bandwidth_of, choices, costs, with_choice
from flnb.memory_lab.failed_request import requests_until, with_request, without
from flnb.memory_lab.lifetimes import Step
from flnb.memory_lab.next_step import continued, whole_steps
from flnb.memory_lab.offload_lifetimes import shortest
from flnb.memory_lab.replaying import Outcome, play, stand_in
from flnb.memory_lab.traces import recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from flnb_telemetry.schema import Columns

    from flnb.interface.memory import Lease, MemoryDevice, MemoryManager, Shortage
    from flnb.memory_lab.next_step import Continued, Whole
    from flnb.memory_lab.owners import Model
    from flnb.memory_lab.postmortem import Blocker
    from flnb.memory_lab.traces import Trace

WORK = 1_000_000
"""The largest number of calls that are replayed for one report; that takes some seconds."""
READ = 250_000
"""The largest number of ops in a recording whose saved tensors are examined; that takes some seconds."""
TIMED = 1000
"""The number of calls that a trace must have for the time per call to be reported."""
TRIED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""The numbers of modules that are recomputed or offloaded together, one number per trial."""
HOW = "with flnb.record() as run: ..."
STEADY = ("parameter", "optimizer_state")
"""The categories of tensors whose deletion is never proposed."""


class Remedy(NamedTuple):
    """A remedy, with the result of its replay.

    Attributes:
        what: code to paste. A context manager (``flnb.use_memory_manager``, ``flnb.memory.lean``) must enclose the
            program from the beginning of the recording on; other code must precede the line that failed.
        fits: whether all that was replayed would have fitted: the request, and the steps after it if `through` is True.
        peak: the most bytes that would have been reserved in what was replayed.
        cost: the cost in time or calls to the device, as text.
        through: whether the rest of the step and one whole step after it were replayed and would have fitted.
        again: the request of the following steps that would have run out of memory, as text; "" if there is none.
    """

    what: str
    fits: bool
    peak: int
    cost: str
    through: bool = False
    again: str = ""

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """A key for sorting: first the remedies that reach farthest, of these the one with the least memory."""
        return not self.fits, not self.through, not self.again, self.peak


@dataclass(frozen=True, eq=False)
class Remedies:
    """The remedies that were replayed, or the reason why none were.

    Attributes:
        rows: first the remedies that fit, those replayed through a whole step before others; of these the one with the
            least memory is first. Then the remedies that do not fit.
        capacity: bytes that the device had for this manager.
        steps: how far the replays go after the request, as text.
        unknown: why no remedies, or not all, were replayed, and what to do about it; "" if all were.
    """

    rows: tuple[Remedy, ...] = ()
    capacity: int | None = None
    unknown: str = ""
    steps: str = ""

    @property
    def fitting(self) -> tuple[Remedy, ...]:
        """The remedies with which all that was replayed would have fitted."""
        return tuple(row for row in self.rows if row.fits)


class Candidate(NamedTuple):
    """A remedy to be replayed: its code, the resulting trace and manager, and its cost as text."""

    what: str
    trace: Trace
    spec: Any
    cost: str | None = None
    """None if the cost is to be measured: extra time and device calls of this replay, compared to the failed one."""


def search(
    at: Shortage, request: int, blockers: tuple[Blocker, ...], cached: int, models: Mapping[str, Model]
) -> Remedies:
    """Replay all candidate remedies and return the results.

    Args:
        at: the state of memory at the failure.
        request: the bytes requested.
        blockers: the blocks that may be freed.
        cached: the bytes in segments of the manager without any block.
        models: modules in variables, by the scope in which they are called.
    """
    limit = at.available
    if at.run is None:
        return Remedies(
            capacity=limit,
            unknown=f"Nothing was being recorded, so no remedy can be replayed. Run it again under `{HOW}`, from "
            f"before the first large tensor is made, and this report will say what would have worked.",
        )
    if limit is None:
        return Remedies(unknown="The device does not say its capacity, so it is not known when a replay would be full.")
    rows = requests_until(at)
    if not len(rows["t"]):
        late = f"The recording has no allocation of {at.manager.name}: it began too late."
        first = (
            f"Nothing was allocated before, so there is nothing to replay: {at.manager.name} cannot serve this request "
            f"on an empty device. A manager that reserves less at a time may, for example 'native'."
        )
        return Remedies((), limit, late if at.manager.ledger.allocs else first)
    trace = with_request(recorded(at.run, rows), at, request)
    same = play(trace, at.manager, stand_in(at.manager.device, limit))
    if same.first_oom is None or same.first_oom[0] != len(trace) - 1:
        there = "does not run out" if same.first_oom is None else "runs out earlier"
        return Remedies(
            (),
            limit,
            f"Replayed from the recording, {at.manager.name} {there}: the state of memory before the recording began "
            f"matters, which is not in the trace ({trace!r}). Record from before the first large tensor is made "
            f"(`{HOW}`) to see what would have worked.",
        )
    steps = whole_steps(at.run, at.t)
    model = continued(trace, steps)
    candidates = _candidates(at, trace, rows, blockers, cached, models)
    found, left = _replayed(candidates, same, steps if model else [], partial(stand_in, at.manager.device, limit))
    unknown = f"{left} more were not replayed: the trace has {quantity.count(len(trace))} calls." if left else ""
    return Remedies(tuple(found), limit, unknown, report_text.extent(model and model.like, len(steps)))


def _replayed(
    candidates: Iterable[tuple[str, Candidate]], same: Outcome, steps: list[Whole], device: Callable[[], MemoryDevice]
) -> tuple[list[Remedy], int]:
    """Return the best remedy of each group, sorted, and the number of candidates that were not replayed.

    Args:
        candidates: pairs (name of a group, candidate).
        same: the replay of the failure without a remedy.
        steps: the whole steps before the failure; if there are any, replays go on through a whole step.
        device: a function that returns an empty device.
    """
    made, left = same.calls, 0
    best: dict[str, Remedy] = {}
    for group, candidate in candidates:
        if made > WORK:
            left += 1
            continue
        before = best.get(group)
        if before is not None and before.fits and group in METHODS:
            continue  # candidates come cheapest first
        made += len(candidate.trace)
        tried = _tried(candidate, same, device())
        if tried.fits and steps and (on := continued(candidate.trace, steps)):
            made += len(on.trace)
            tried = _through(tried, candidate, on, device())
        if before is None or tried.rank < before.rank:
            best[group] = tried
    once = {row.what: row for row in best.values()}  # two groups may have the same remedy
    return sorted(once.values(), key=lambda row: row.rank), left


def _tried(candidate: Candidate, same: Outcome, device: MemoryDevice) -> Remedy:
    """Replay a remedy; ``same`` is the replay of the failure without a remedy, for comparison."""
    try:
        outcome = play(candidate.trace, candidate.spec, device)
    except (TypeError, ValueError, MemoryError):  # the manager accepts no device that small, or no other device
        return Remedy(candidate.what, False, 0, quantity.UNKNOWN)
    cost = candidate.cost
    if cost is None:
        more = outcome.ns_per_call - same.ns_per_call
        native = outcome.native_calls - same.native_calls
        slower = f", {'+' if more >= 0 else '−'}{quantity.duration(abs(more))} a call"
        time = slower if len(candidate.trace) >= TIMED else ""
        cost = f"{native:+d} native calls{time}" if native or time else "none"
    return Remedy(candidate.what, outcome.first_oom is None, outcome.peak_reserved, cost)


def _through(tried: Remedy, candidate: Candidate, on: Continued, device: MemoryDevice) -> Remedy:
    """Replay a remedy that gets past the request through the steps after it and return it with the result."""
    outcome = play(on.trace, candidate.spec, device)
    if outcome.first_oom is None:
        return tried._replace(through=True, peak=outcome.peak_reserved)
    call, nbytes = outcome.first_oom
    row = int(on.trace.calls[call]) - 1
    again = report_text.again(on.trace.op[row], on.trace.scope[row], nbytes, call >= on.begin)
    return tried._replace(fits=False, peak=outcome.peak_reserved, again=again)


def _candidates(
    at: Shortage, trace: Trace, rows: Columns, blockers: tuple[Blocker, ...], cached: int, models: Mapping[str, Model]
) -> Iterator[tuple[str, Candidate]]:
    """Yield pairs (name of a group of remedies, candidate remedy), the most promising first.

    Only the best candidate of each group will be shown.

    Args:
        at: the state of memory at the failure.
        trace: the program's allocations and frees up to the failed request.
        rows: the blocks of the trace, as rows of `Memory.block`.
        blockers: the blocks that may be freed.
        cached: the bytes in segments of the manager without any block.
        models: modules in variables, by the scope in which they are called.
    """
    if cached:
        yield "release", Candidate("flnb.memory.release_cached()", trace, _releasing(at.manager, len(trace.nbytes)))
    yield from _deleted(at, trace, rows, blockers)
    yield from _leaner(at, trace, rows, models)
    yield from _tuned(at, trace)
    for name in registry.names("memory manager"):
        if name not in (at.manager.name, "planned"):  # which needs the trace of a whole step
            code = snippets.manager(registry.find("memory manager", name), {}, at.manager.device, at.available or 0)
            if code is not None:
                yield name, Candidate(code, trace, name)


def _releasing(manager: MemoryManager, last: int) -> Callable[[Lease], MemoryManager]:
    """Return a function that makes copies of a manager, which release their caches just before request ``last``."""

    def made(lease: Lease) -> MemoryManager:
        inner: Any = type(manager)(lease, **manager.constructor_arguments)
        plain, asked = inner.alloc, 0

        def alloc(nbytes: int, stream: int = 0, hint: Any = None) -> Any:
            nonlocal asked
            asked += 1
            if asked == last:
                inner.release_cached()
            return plain(nbytes, stream, hint)

        inner.alloc = alloc
        return inner

    return made


def _deleted(
    at: Shortage, trace: Trace, rows: Columns, blockers: tuple[Blocker, ...]
) -> Iterator[tuple[str, Candidate]]:
    """Yield candidates that delete variables, or remove user locks, of tensors without other references.

    The arguments are those of `_candidates`.
    """
    row_of = {number: row for row, number in enumerate(rows["alloc_id"].tolist())}
    free = [b for b in dict.fromkeys(blockers) if b.id in row_of and b.category not in STEADY and _by_hand(b)]
    for chosen in [[b] for b in free] + ([free] if len(free) > 1 else []):
        words = [name for b in chosen if not b.locks for name in b.names]
        parts = [f"del {', '.join(words)}"] if words else []
        parts += [f"flnb.memory.unlock({b.id})" for b in chosen if b.locks]
        gone = without(trace, np.array([row_of[b.id] for b in chosen]))
        yield "; ".join(parts), Candidate("; ".join(parts), gone, at.manager, "none")


def _by_hand(blocker: Blocker) -> bool:
    """Return whether the user can free a block by deleting variables or removing locks."""
    if blocker.locks:
        return blocker.orphaned
    return bool(blocker.names) and not blocker.taped and all(n.isidentifier() for n in blocker.names)


def _leaner(
    at: Shortage, trace: Trace, rows: Columns, models: Mapping[str, Model]
) -> Iterator[tuple[str, Candidate]]:  # fmt: skip
    """Yield candidates that recompute or offload more and more modules, beginning with the cheapest modules.

    The last candidate has all modules, because a program that gets past this request may soon request more. The
    arguments are those of `_candidates`.
    """
    if not models or len(at.run.table("op")["t0"]) > READ:
        return
    step = Step(at.run, rows, trace, at.run.seconds_at(at.t))
    rate = bandwidth_of(at.run) if step.movable else 1.0

    def candidate(again: tuple[str, ...], away: tuple[str, ...], names: tuple[str, ...] = ()) -> Candidate:
        changed, nbytes = step.changed(again, away)
        places = names or tuple(dict.fromkeys(map(step.own, again or shortest(step, away))))
        roots = dict.fromkeys(scope.partition(".")[0] for scope in places)
        written = tuple(dict.fromkeys(text for root in roots for text in models[root].written))
        cost = costs(sum(map(step.seconds, again)), nbytes, nbytes / rate)
        return Candidate(snippets.lean(written, "recompute" if again else "offload", places), changed, at.manager, cost)

    for method in METHODS:
        found = [
            choice
            for choice in choices(step, (method,), rate)
            if step.own(choice.scopes[0]).partition(".")[0] in models
        ]
        both: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        for count, choice in enumerate(found, 1):
            both = with_choice(*both, choice)
            if count in TRIED:
                yield method, candidate(*both)
        if method == "offload" and found:
            yield "offload all", candidate(*both)
        for names in _levels([step.own(choice.scopes[0]) for choice in found], models) if method == "recompute" else ():
            again = dict.fromkeys(call.scope for call in step.calls if step.own(call.scope) in names)
            yield "recompute all", candidate(tuple(again), (), names)


def _levels(found: list[str], models: Mapping[str, Model]) -> Iterator[tuple[str, ...]]:
    """Yield, for each depth of nesting, the scopes of all modules of the same classes as those in ``found``.

    Modules that have not run yet are included.

    Args:
        found: the scopes of modules that can be recomputed.
        models: modules in variables, by the scope in which they are called.
    """
    for depth in sorted({scope.count(".") for scope in found} - {0}):
        here = [scope for scope in found if scope.count(".") == depth]
        roots = dict.fromkeys(scope.partition(".")[0] for scope in here)
        kinds = {scope: kind for root in roots for scope, kind in models[root].kinds.items()}
        like = {kinds.get(scope) for scope in here}
        yield tuple(scope for scope, kind in kinds.items() if scope.count(".") == depth and kind in like)


def _tuned(at: Shortage, trace: Trace) -> Iterator[tuple[str, Candidate]]:
    """Yield candidates that change settings of the manager; the arguments are those of `_candidates`."""
    manager = at.manager
    parameters = inspect.signature(type(manager).__init__).parameters
    largest = int(trace.nbytes.max())
    sizes = [limit << 20 for limit in (2, 4, 8, 20, 64, 256, 1024) if limit << 20 <= 2 * largest]
    for name in ("split_limit", "recycling_limit"):
        if name in parameters:
            for limit in sizes:
                settings = {**manager.constructor_arguments, name: f"{limit >> 20}MiB"}
                code = snippets.manager(type(manager), settings, manager.device, at.available or 0)
                if code is not None:
                    yield name, Candidate(code, trace, partial(type(manager), **settings))
