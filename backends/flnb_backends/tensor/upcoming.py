"""Which trace a thread expects next, and the functions of the deferred backend that compare calls with that trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus

from flnb.graph.running import running
from flnb.graph.values import Value
from flnb_backends.tensor.recorded_buffers import Buffer
from flnb_backends.tensor.replay import Replay
from flnb_backends.tensor.trace_log import Log, traces, upcoming

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.lane import Lane

    from flnb.dispatch.plan import Spec
    from flnb.dispatch.table import Op
    from flnb.graph.repetition import Known
    from flnb.graph.traces import Trace
    from flnb_backends.tensor.deferred import DeferredBackend

MOST_MISSES = 8
"""A log is not used any more when its replays were left this many times more often than finished."""


def expect(backend: DeferredBackend, known: Known | None) -> None:
    """Begin to replay the trace that came next after the last run of the present trace; if there is none, begin a log.

    ``known`` is the history of the present trace, which was just computed. If it is None, or while telemetry records,
    values are recorded without a replay or log.
    """
    before: Any = upcoming.get()
    if before is not None:
        before.leave()
    trace: Any = None
    if known is not None and bus.lanes is None:
        following = known.following
        if following is None or following.log is None:
            trace = Log(backend, known)
        elif not following.log.failed and following.log.misses <= MOST_MISSES and following.program is not None:
            with running:  # no two threads get one replay
                trace, following.replay = following.replay, None
                if trace is None or trace.backend is not backend or trace.program is not following.program:
                    trace = Replay(backend, following)
                trace.begin(following, known)
    if trace is not before:
        upcoming.set(trace)


def expect_next(backend: DeferredBackend, trace: Log | Replay | None, found: tuple[Trace, Known] | None) -> None:
    """Prepare for the next trace, after one that was computed: replay it if it is known, else log it.

    Args:
        backend: the backend that recorded the trace.
        trace: the log or replay of the trace, if there is one.
        found: the trace and its history, if a program computed it.
    """
    known = None
    if found is not None:
        made, known = found
        if type(trace) is Log and known.log is None:
            trace.close(made)
            known.log = trace
        before = trace.after() if trace is not None and trace.strayed else None
        if before is not None and before.manager is known.manager:  # histories refer to no other manager
            before.following = known
    expect(backend, known)


def allocator(backend: DeferredBackend) -> Callable[..., tuple[Buffer, int]]:
    """Return the `TensorBackend.empty` of a deferred backend, which returns the prepared buffer during a replay."""
    places, place_of, get = backend._places, backend._place, upcoming.get

    def empty(spec: Spec, manager: Any, min_block: int, code: int = 0, category: int = 0) -> tuple[Buffer, int]:
        trace = get()
        if trace is not None and trace.backend is backend:
            for buffer in trace.rest:  # only the next one; `next` takes longer
                entry = buffer.entry
                if entry is not None and entry.code is code and entry.category is category and entry.manager is manager:
                    return entry.given
                trace.put_back()
                break
            return trace.another(spec, manager, code, category), 0
        place = places.get(category)
        if place is None or place.manager is not manager:
            place = place_of(manager, category)
        return Buffer(spec, place), 0

    return empty


def compared(
    op: Op, put: Callable[..., None], record: Callable[..., Buffer], method: Callable[..., Buffer]
) -> Callable[..., Buffer]:
    """Return the backend's method of an op of one or two tensors without attributes.

    If the output buffer ``out`` was prepared for this op of these inputs, the method returns ``out`` at once. Otherwise
    it calls one of the functions below.

    Args:
        op: the op.
        put: called as ``put(out, value)`` with a new value, if there is no log or replay.
        record: called as ``record(out, attributes, *inputs)``, if there is a log or replay.
        method: called with the inputs if there is no output buffer.
    """
    get = upcoming.get

    def unary(x: Buffer, out: Buffer | None = None) -> Buffer:
        if out is None:
            return method(x)
        entry = out.entry
        if entry is not None and entry.a is x.mark and entry.op is op:
            return out
        if get() is not None:
            return record(out, (), x)
        put(out, Value(op, (x.value if x.base is None else x.read(),), (), out.spec, out.place))
        return out

    def binary(x: Buffer, y: Buffer, out: Buffer | None = None) -> Buffer:
        if out is None:
            return method(x, y)
        entry = out.entry
        if entry is not None and entry.a is x.mark and entry.b is y.mark and entry.op is op:
            return out
        if get() is not None:
            return record(out, (), x, y)
        a, b = x.value if x.base is None else x.read(), y.value if y.base is None else y.read()
        put(out, Value(op, (a, b), (), out.spec, out.place))
        return out

    return unary if op.arity == 1 else binary


def _stop_traces(lane: Lane) -> None:
    """Stop all replays when telemetry begins to record, because it needs the context of each recorded value."""
    for trace in list(traces):
        trace.stop()


bus.announcers.append(_stop_traces)
