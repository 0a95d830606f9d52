"""Logs of traces: the values that one thread records between two computations, from which a trace can be replayed."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from flnb.graph.values import Value
from flnb.interface.living import Living
from flnb_backends.tensor.recorded_buffers import Buffer, is_computed, layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.dispatch.plan import Spec
    from flnb.graph.repetition import Known
    from flnb.graph.traces import Trace
    from flnb.graph.values import Place
    from flnb_backends.tensor.deferred import DeferredBackend

LONGEST = 20_000
"""The largest number of values in a log."""
upcoming: ContextVar[Any] = ContextVar("flnb_upcoming_trace", default=None)
"""The log or `Replay` of the trace that this context records next; a thread has a context of its own."""
traces: Living[Any] = Living()
"""All logs and replays, also those that are not under way."""


def leave_all() -> None:
    """End all logs and replays that are in use; from then on, values are recorded without them."""
    for trace in list(traces):
        trace.leave()


class Row(NamedTuple):
    """One op of a log: its value, and the arguments with which a buffer for its result was requested.

    Attributes:
        op, attributes, spec, place: the same as for a `Value`.
        inputs: for each input the position of its row, or ``~i`` for input ``i`` of the trace.
        code: the number of the op's plan, as `TensorBackend.empty` got it.
        category: the memory category of the buffer, a number.
        manager: the memory manager of the buffer.
    """

    op: Any
    inputs: tuple[int, ...]
    attributes: tuple[Any, ...]
    spec: Spec
    place: Place
    code: Any
    category: int
    manager: Any


class Log:
    """The values of a trace in the order in which they are recorded.

    Only a trace in which each value is recorded for a new buffer, by an op with one result, can be replayed: one with
    views, writes, composites, a backward pass or a step of an optimizer cannot. A log refers weakly to values and
    buffers, so that they live no longer than without a log.

    Attributes:
        after: the history of the trace that was computed before this one.
        rows: the values.
        leaves: for each input of the trace its spec, its place, and its `layout`.
        failed: whether the trace cannot be replayed.
        misses: a count that an abandoned replay of the trace raises by 1, and a finished one lowers by 1, down to 0.
    """

    strayed = True
    rest: tuple[Buffer, ...] = ()
    """The buffers that are prepared for the trace: none, see `Replay`."""

    def __init__(self, backend: DeferredBackend, after: Known) -> None:
        self.backend: Any = backend
        self.after = ref(after)
        self.rows: list[Row] = []
        self.leaves: list[Any] = []
        self.failed, self.misses = False, 0
        self.asked: list[int] | None = None
        self._known: dict[int, tuple[ref[Value], int]] = {}
        self._empty: dict[int, tuple[ref[Buffer], tuple[Any, int, Any]]] = {}  # buffers without a value
        self._buffers: list[ref[Buffer]] = []  # by row
        traces.add(self)

    def another(self, spec: Spec, manager: Any, code: Any, category: int) -> Buffer:
        """Return a new buffer for the result of an op, and store the arguments for the op's row."""
        made = Buffer(spec, self.backend._place(manager, category))
        if not self.failed:
            self._empty[id(made)] = ref(made), (code, category, manager)
        return made

    def value(self, op: Any, inputs: tuple[Value, ...], attributes: Any, out: Buffer) -> Value:
        """Return a new value for the buffer ``out``, and append its row to the log."""
        made = Value(op, inputs, attributes, out.spec, out.place)
        buffer, about = self._empty.pop(id(out), (None, ()))
        if buffer is None or buffer() is not out or len(self.rows) >= LONGEST:
            self.leave()
        else:
            self._known[id(made)] = ref(made), len(self.rows)
            self.rows.append(Row(op, tuple([self._at(x) for x in inputs]), attributes, out.spec, out.place, *about))
            self._buffers.append(buffer)
        return made

    def _at(self, value: Value) -> int:
        """Return the position of a value that an op reads; a value that is older than the trace becomes its input.

        For positions see `Row.inputs`. If the older value is not computed yet, the trace cannot be replayed.
        """
        at = self._find(value)
        if at is not None:
            return at
        if not is_computed(value):  # it was recorded before
            self.failed = True
            return -1
        self.leaves.append((value.spec, value.place, layout(value)))
        self._known[id(value)] = ref(value), -len(self.leaves)
        return -len(self.leaves)

    def _find(self, value: Value) -> int | None:
        """Return the position of a value; None if it is neither in a row nor an input of the trace."""
        known, at = self._known.get(id(value), (None, 0))
        return at if known is not None and known() is value else None

    def finish(self, asked: list[Value] | None) -> None:
        """Store which values are to be computed at the end of the trace (None: all); a log computes none itself."""
        if asked is not None:
            self.asked = [self._at(x) for x in asked]

    def stop(self) -> None:
        """Do nothing: unlike a replay, a log may go on while telemetry records, until its trace is computed."""

    def mark(self, buffers: Sequence[Buffer], value: Value) -> None:
        """Do nothing; see `Replay.mark`."""

    def leave(self) -> None:
        """Discard the rows, so that the trace cannot be replayed; a log that is closed already stays unchanged."""
        if self.backend is not None:
            self.failed, self.rows, self.leaves, self._known, self._empty, self._buffers = True, [], [], {}, {}, []

    def close(self, trace: Trace) -> None:
        """End the log, and store which of its values the program of the trace reads and returns.

        Called once the program has run. Sets these attributes:
            inputs, outputs: the positions of the program's inputs and outputs.
            given: the positions of the rows to whose buffers the user's program still refers.
        """
        inputs, outputs = [self._find(x) for x in trace.leaves], [self._find(x) for x in trace.outputs]
        self.inputs, self.outputs = [x for x in inputs if x is not None], [x for x in outputs if x is not None]
        self.given = [at for at, buffer in enumerate(self._buffers) if buffer() is not None]
        whole = (len(self.inputs), len(self.outputs)) == (len(inputs), len(outputs))
        own = all(at < 0 for at in self.inputs) and all(at >= 0 for at in self.outputs)
        if not (whole and own and {*self.given} <= {*self.outputs}):
            self.leave()
        self.backend, self._known, self._empty, self._buffers = None, {}, {}, []
