"""Repetition: recorded ops that occur again, as in a training loop, are computed by a program made once.

The values to compute form a trace (`flnb.graph.traces`). At the first occurrence of a trace, its values are computed op
by op, unless all its gradients and updates were recorded before (`flnb.graph.segments`). Later they are computed by a
program, which is made once. Numbers that a trace reads, such as a learning rate, are constants of the program as long
as they do not change.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import bus, intern, schema
from numpy.lib.stride_tricks import as_strided

from flnb.dispatch import state
from flnb.dispatch.crossing import call
from flnb.dispatch.plan import spec_of
from flnb.dispatch.state import GRADIENT, OPTIMIZER_STATE
from flnb.dispatch.table import OPS
from flnb.graph.program import MOST_OPS, Program
from flnb.graph.reporting import emit_compile
from flnb.graph.running import at_once, compute, materializing, run, running
from flnb.graph.segments import Segment
from flnb.graph.traces import Trace, to_compute, traced
from flnb.graph.values import ITEM, Place, Recorded, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.dispatch.plan import Spec
    from flnb.tensor import Tensor

ADD, COPY, FULL, RESHAPE, SLICE = (OPS[name] for name in ("add", "copy", "full", "reshape", "slice"))
WORTH = 8
"""A program is made for a trace when its repetitions have computed this number of ops."""
MOST_KNOWN, MOST_PROGRAMS = 256, 24
"""The largest numbers of histories of traces, and of programs, that are stored for each memory manager."""
MOST_CHANGES = 3
"""After this many changes of constant numbers, all numbers become inputs of the program."""


class Known:
    """The history of the traces with one key, and their program.

    Attributes:
        key: the key of the traces.
        ops: the number of ops in such traces since the second one.
        program: the program that computes such a trace, None before it is made.
        constants: the numbers that are constants of the program: a dict from a number's position in the leaves of the
            trace to the number's bytes.
        numbers: the numbers (`Trace.numbers`) of the newest trace.
        contexts: the contexts of the trace from which the program was made.
        specs: the specs of the arrays that the program returns.
        log: the log of such a trace on the deferred backend; None before it is made.
        replay: the `Replay` of the log while no thread uses it, else None.
        following: the history of the trace that followed such a trace the last time.
        reported: whether the warning that the traces are too long for a program was emitted.
    """

    def __init__(self, key: Any) -> None:
        self.key, self.ops, self.changes, self.reported = key, -1, 0, False
        self.program: Program | None = None
        self.contexts: list[int] = []
        self.specs: list[Spec] = []
        self.constants: dict[int, bytes] = {}
        self.numbers: dict[int, bytes] | None = None
        self.varying: set[int] = set()
        self.log: Any = None
        self.replay: Any = None
        self.following: Known | None = None

    @property
    def manager(self) -> Any:
        """Return the memory manager of the program; None without a program."""
        return None if self.program is None else self.program.manager

    def wants_program(self, trace: Trace) -> bool:
        """Return whether to compute a trace by a program; the trace's ops are counted for this decision."""
        before, self.numbers = self.numbers, trace.numbers
        if before is None:
            self.ops = 0
            if not _is_repeated(trace):
                return False
            # Numbers that were made since the trace began may be others each time.
            self.varying.update(i for i in trace.numbers if trace.leaves[i].number > trace.values[0].number)
        else:
            self.varying.update(i for i, number in trace.numbers.items() if before[i] != number)
        self.ops += len(trace.values)
        return self.ops >= WORTH

    def fits(self, trace: Trace) -> bool:
        """Return whether the program is valid for a trace: equal constants and, while recording, equal contexts."""
        return (
            self.program is not None
            and all(trace.numbers[i] == number for i, number in self.constants.items())
            and (bus.lanes is None or trace.contexts == self.contexts)
        )


def _is_repeated(trace: Trace) -> bool:
    """Return whether all gradients and updates of a new trace are segments, whose ops were recorded twice before.

    The trace may also have additions, which sum the gradients of several passes.
    """
    ops: list[Any] = [value.op for value in trace.values if value.place.category in (GRADIENT, OPTIMIZER_STATE)]
    segments = any(isinstance(value.op, Segment) for value in trace.values)
    return segments and all(op is ITEM or op is ADD or isinstance(op, Segment) for op in ops)


def known_traces(manager: Any) -> OrderedDict[int, Known]:
    """Return the histories of traces (`Known`) of a memory manager by the hashes of their keys, the newest last.

    The histories are stored in an attribute of the manager, because their programs refer to the manager. So the garbage
    collector frees both when there is no other reference to the manager.
    """
    table: OrderedDict[int, Known] = vars(manager).setdefault("_known_traces", OrderedDict())
    return table


def forget_traces(manager: Any) -> None:
    """Discard the histories of traces of a memory manager, with their programs, which have memory of the manager."""
    table = known_traces(manager)
    for known in table.values():
        known.log = known.replay = known.following = None  # these may be cycles
    table.clear()


def compute_alike(asked: Sequence[Value], recorder: Callable[[Place], Any]) -> tuple[Trace, Known] | None:
    """Compute recorded values and their inputs: by a program if their trace has occurred before, else op by op.

    Args:
        asked: the values to compute.
        recorder: a function that returns the backend that records the ops of a `Place`; see `CapturedBackend`.

    Returns:
        The trace and its history, if a program computed it.
    """
    with running:
        failure, found = _try_program(asked, recorder)
        compute(asked)  # the rest; nothing else references the values now, so that memory lives no longer than needed
    if failure:  # and the ops did not: otherwise they would have raised an error about the user's mistake
        warnings.warn(
            f"flnb: deferred computed values op by op, which is slower, because their program failed: {failure}",
            RuntimeWarning,
            stacklevel=2,
        )
    return None if failure else found


def _try_program(asked: Sequence[Value], recorder: Callable[[Place], Any]) -> tuple[str, tuple[Trace, Known] | None]:
    """Compute values by a program if their trace has occurred before; the arguments are those of `compute_alike`.

    Returns:
        The error text, "" without an error; and the trace with its history, if there is a program for it.
    """
    values = to_compute(asked)
    found = _program(traced(values, asked), recorder) if len(values) > 1 else None
    return "" if found is None else _run_program(*found), found


def _program(trace: Trace | None, recorder: Callable[[Place], Any]) -> tuple[Trace, Known] | None:
    """Return the trace, and its history with a program for the trace; None if the ops must be computed one by one.

    A program is made if the history has none that is valid for the trace. ``recorder`` is a function that returns the
    backend that records the ops of a `Place`.
    """
    if trace is None or not trace.outputs:
        return None
    place = trace.values[0].place
    places = {id(value.place): value.place for value in trace.values}
    if len({(at.backend, at.manager, at.fuse) for at in places.values()}) > 1:
        return None
    key = type(place.backend), trace.key
    try:
        number = hash(key)
    except TypeError:  # attributes that cannot be looked up
        return None
    known = known_traces(place.manager)
    found = known.get(number)
    if found is None or found.key != key:
        found = known[number] = Known(key)
    known.move_to_end(number)
    if len(known) > MOST_KNOWN:
        known.popitem(last=False)[1].following = None  # which may be a cycle
    if not found.wants_program(trace) or _is_too_long(trace, found):
        return None
    if not found.fits(trace):
        found.changes += found.program is not None and found.contexts == trace.contexts
        bakes = found.changes <= MOST_CHANGES
        found.program = None  # until all is set: Ctrl-C may come between
        found.constants = {i: n for i, n in trace.numbers.items() if bakes and i not in found.varying}
        found.contexts, found.specs = trace.contexts, [spec_of(x.spec.shape, x.spec.dtype) for x in trace.outputs]
        found.program = _built(trace, found.constants, recorder(place))
        programs = [each for each in known.values() if each.program is not None]
        for each in programs[: -MOST_PROGRAMS or None]:
            each.program = each.replay = None
    return trace, found


def _is_too_long(trace: Trace, found: Known) -> bool:
    """Return whether planning a program for a trace would take too long; issues a warning the first time.

    ``found`` is the history of the traces with the key of ``trace``.
    """
    count = sum([len(x.op.rows) if isinstance(x.op, Segment) else 1 for x in trace.values])
    if count > MOST_OPS and not found.reported:
        found.reported = True
        warnings.warn(
            f"flnb: deferred recorded {count:,} ops before a value was needed, and computes them one by one, which is "
            f"slower: programs have at most {MOST_OPS:,} ops. Call flnb.sync() more often, as after some time steps",
            RuntimeWarning,
            stacklevel=2,
        )
    return count > MOST_OPS


def _built(trace: Trace, constants: dict[int, bytes], backend: Any) -> Program:
    """Return a new program for a trace: record the trace's ops once more, and compile them.

    Composites are recorded as the ops of which they consist.

    Args:
        trace: the trace.
        constants: the numbers that become constants of the program: a dict from a number's position in the leaves of
            the trace to the number's bytes.
        backend: the backend on which the ops are recorded.
    """
    t0 = clock()
    here = _state(trace.values[0].place)
    inputs, tensors = [], {}
    for i, leaf in enumerate(trace.leaves):
        array = leaf.tensor._data
        if i in constants:
            array = array.copy()
        else:
            array = as_strided(np.empty((), array.dtype), array.shape, array.strides)
        tensors[leaf] = backend.stand_in(array, i in constants)
        if i not in constants:
            inputs.append(tensors[leaf]._data.read())
    again = here.copy()
    again.change(backend=backend)
    with state.entered(again):
        for value in trace.values:
            op: Any = value.op
            inside = op.values(value, {}) if isinstance(op, Segment) else [value]
            for one in inside:
                again.category, backend.context = one.place.category, one.context if one.context >= 0 else _context(one)
                given = tuple([tensors[x] for x in one.inputs])
                if one.op is RESHAPE and given[0]._data.strides:  # a view of a contiguous result, which is none here
                    given = (call(COPY, given),)
                tensors[one] = run(one, given, backend.buffer)
            if isinstance(op, Segment):
                tensors[value] = tuple([tensors[inside[i]] for i in op.outputs])
    outputs = [tensors[value]._data.read() for value in trace.outputs]
    made = Program(Recorded(inputs, outputs), here, trace.values[0].place.fuse, lends=True)
    emit_compile(made, t0)
    return made


def _context(value: Value) -> int:
    """Return a context id for a value recorded without telemetry; its phase is found from the value's category."""
    late = value.place.category in (GRADIENT, state.PARAMETER, OPTIMIZER_STATE)
    return intern.contexts.id_of(("", schema.BACKWARD)) if late else 0


def _state(place: Place) -> state.State:
    """Return the dispatch state (backend, memory manager) in which a program runs."""
    made = state.session.lasting()
    made.change(backend=place.backend, grad=False, interpreters=(), category=0)
    made.manager, made.min_block = place.manager, max(place.manager.min_block, 0)
    return made


def _run_program(trace: Trace, found: Known) -> str:
    """Run the program of a trace to compute its outputs; returns the error text if that fails, else "".

    ``found`` is the history of the traces with the key of ``trace``; it has the program.
    """
    try:
        made = _run(found, trace.values[0].place, [leaf.tensor for leaf in trace.leaves], len(trace.values))
    except Exception as error:  # computed one by one, the op that fails raises an error that names its line
        found.program, found.ops = None, -len(trace.values) * MOST_KNOWN
        return f"{type(error).__name__}: {error}"
    tensor = found.program.lending.tensor  # type: ignore[union-attr]
    for value, array, spec in zip(trace.outputs, made, found.specs, strict=True):
        value.tensor = tensor(array, spec)
        value.inputs = ()
    return ""


def _run(found: Known, place: Place, inputs: Sequence[Tensor], count: int) -> Sequence[Any]:
    """Run the program of a trace's history ``found`` for the trace's inputs; returns the arrays of the outputs.

    ``count`` is the number of values in the trace, for telemetry; ``place`` is the backend and memory manager that
    compute them.
    """
    assert found.program is not None
    arrays = [x._data for i, x in enumerate(inputs) if i not in found.constants]
    with materializing() as computed:
        made = at_once(place, found.program.run, arrays)
        computed[0] = count
    return made


def run_again(found: Known, place: Place, inputs: Sequence[Tensor], count: int) -> Sequence[Any] | None:
    """Run the program of a trace that was repeated; returns the arrays of its outputs.

    ``count`` is the number of values in the trace. Return None if an input differs from the program's constant in its
    place, or if the program fails. Then the values of the trace must be computed by `compute_alike`, which reports the
    failure.
    """
    if any(inputs[i]._data.tobytes() != number for i, number in found.constants.items()):
        return None
    try:
        return _run(found, place, inputs, count)
    except Exception:
        return None
