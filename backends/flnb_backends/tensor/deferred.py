"""The deferred backend: ops are recorded as values, and computed on another backend when an element is read.

Tensors may be written in place and viewed, but values never change. So a buffer refers to its present value, and a
write replaces this value by another one. A view is a buffer that refers to its base. After a write to the base, the
view is computed again from the base. A write to the view becomes a write to the whole base (PyTorch calls this
functionalization).
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

import numpy as np
from flnb_telemetry import bus

from flnb.dispatch import registry, state
from flnb.dispatch.crossing import create, mark_written
from flnb.dispatch.memory import keepers
from flnb.dispatch.plan import Plan, Spec, residents, spec_of
from flnb.dispatch.table import OPS, Op
from flnb.graph.repetition import compute_alike, forget_traces
from flnb.graph.running import at_once, compute
from flnb.graph.segments import Segment, Segments, segment_of
from flnb.graph.values import CONSTANT, ITEM, Place, Value, last_number
from flnb.tensor import detached
from flnb_backends.tensor import meta
from flnb_backends.tensor.recorded_buffers import Buffer
from flnb_backends.tensor.replay import Replay
from flnb_backends.tensor.trace_log import Log, leave_all, traces, upcoming
from flnb_backends.tensor.upcoming import allocator, compared, expect, expect_next

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.interface import MemoryManager, TensorBackend
    from flnb.tensor import Tensor

__all__ = ["Buffer", "DeferredBackend"]

DEFERRED = "deferred"
MOST_RECORDERS, MOST_LAYOUTS = 1_000, 1_000
"""The most cached recording functions of composites, and the most cached layouts of views for each op."""
LONGEST = 100_000
"""The most ops recorded before all are computed, so that a loop that never reads a value does not fill the memory."""


class DeferredBackend(meta.MetaBackend):
    """A backend that records ops, and computes them on another backend when an element is read.

    At the end of an optimizer's step, all values that this thread has recorded are computed; `flnb.sync` computes those
    of all threads. A value that is never read, and that no other value needs, is not computed. A new sequence of ops is
    computed op by op. A sequence that was recorded before, as in a training loop, is computed by a program like those
    of `flnb.jit` (`flnb.graph.repetition`). Random numbers are drawn immediately, so that they equal those of the
    computing backend. Writing to a view copies its base. A recording that measures gradients reads them at the end of
    each backward pass.

    Args:
        over: the backend that computes, a name, a class or an instance; its buffers must be NumPy arrays. By default
            "cpu" if oneDNN is installed, else "numpy".
        fuse: whether programs may compute several elementwise ops and reductions by one compiled kernel, whose results
            differ from those of single ops in the last digits. In a backend's name: "deferred:fuse=false".

    Raises:
        TypeError: ``over`` is not a backend of NumPy arrays.

    >>> import flnb
    >>> with flnb.use_backend("deferred"):
    ...     y = flnb.exp(flnb.zeros(2)) + 1.0  # nothing is computed
    ...     y.tolist()
    [2.0, 2.0]
    """

    name: ClassVar[str] = "deferred"
    buffer: ClassVar[str] = DEFERRED
    has_values: ClassVar[bool] = True
    defers: ClassVar[bool] = True
    shorthand: ClassVar[str] = "over"

    def __init__(self, over: str | type[TensorBackend] | TensorBackend = "", fuse: bool | str = True) -> None:
        self.over: TensorBackend = registry.make("backend", over) if over else state.first_installed(("cpu", "numpy"))
        if self.has_values and self.over.buffer != "ndarray":
            raise TypeError(f"deferred: expected over='numpy' or another backend of NumPy arrays, got {self.over!r}")
        self.whole_dtypes = self.over.whole_dtypes  # type: ignore[misc]
        self.fuse = fuse in (True, "true")
        self._places: dict[int, Place] = {}  # by category, the newest
        self.waiting: dict[int, list[ref[Buffer]]] = defaultdict(list)  # by thread, buffers to compute
        self.segments = Segments()
        self._empty = allocator(self)
        self._recorders: dict[tuple[Plan, int], Any] = {}
        keepers.add(self)
        if self.has_values:
            residents.setdefault(self.buffer, self)

    def method(self, name: str) -> Any:
        """Return the method that records a primitive, or the computing backend's method of a composite; else None."""
        op = OPS.get(name.removesuffix("_pull"))
        if op is None or op.separately is not None:  # of an optimizer's update, too, the ops are recorded
            return None
        return self.over.method(name) if op.body is not None else getattr(self, name)

    def forget(self, manager: MemoryManager) -> None:
        """Discard the cached places and programs of a memory manager that is no longer used."""
        for category, place in list(self._places.items()):
            if place.manager is manager:
                del self._places[category]
        leave_all()
        forget_traces(manager)

    def libraries(self) -> str:
        return self.over.libraries()

    def overridden(self) -> frozenset[str]:
        return super().overridden() | self.over.overridden()

    def recorder(self, plan: Plan, index: int) -> Callable[..., list[Buffer | None]]:
        """Return a function that records a composite, or its gradient, with results in the buffers ``out``.

        ``index`` is the index, among all ops, of the composite or of its gradient.
        """
        known = self._recorders.get((plan, index))
        if known is not None:
            return known
        op = plan.op if index == plan.op.index else plan.op.gradient
        own, put, leave = len(plan.attributes), self._put, self.leave_trace
        shared: dict[Any, Any] = {}  # equal tuples are one object: Python's garbage collector visits all of them

        def record(*arguments: Any, out: list[Buffer | None]) -> list[Buffer | None]:
            tensors = arguments[: len(arguments) - own]
            which = tuple([x is not None for x in tensors]), tuple([x is not None for x in out])
            if which not in shared:
                shared[which] = *which, [(i,) for i in range(len(out))]
            given, wanted, positions = shared[which]
            items: list[ref[Value]] = []
            leave()
            inputs = tuple([x.value if x.base is None else x.read() for x in tensors if x is not None])
            place = next(x.place for x in out if x is not None)
            whole = Value(op, inputs, (plan, given, wanted, items), plan.spec, place)
            inputs = (whole,)
            for position, buffer in zip(positions, out, strict=True):
                if buffer is not None:
                    item = Value(ITEM, inputs, position, buffer.spec, buffer.place)
                    items.append(ref(item))
                    put(buffer, item)
            return out

        if len(self._recorders) >= MOST_RECORDERS:
            self._recorders.clear()
        self._recorders[plan, index] = record
        return record

    def computed(self, op: Op) -> Callable[..., Buffer]:
        """Make the method of a primitive that computes elements: it records a value for its output buffer."""
        count, put, draws, get = op.arity or -1, self._put, op.name.startswith("random_"), upcoming.get

        def record(out: Buffer, attributes: tuple[Any, ...], *read: Buffer) -> Buffer:
            trace = self.trace()
            if trace is not None and all(x.base is None for x in (out, *read)):
                value = trace.value(op, tuple([x.value for x in read]), attributes, out)
                trace.mark(read, value)
            else:
                self.leave_trace()
                value = Value(op, tuple([x.read() for x in read]), attributes, out.spec, out.place)
            if out.mark is not value:  # else it was prepared
                put(out, value)
            return out

        def method(*arguments: Any) -> Buffer:
            out = meta.target(op, arguments) or Buffer(meta.inferred(op, arguments), self._place())
            given = arguments[:count]
            if get() is not None and not draws:
                read = [x for x in given if isinstance(x, Buffer)]
                return record(out, given[len(read) :], *read)
            inputs = tuple([x.value if x.base is None else x.read() for x in given if isinstance(x, Buffer)])
            put(out, Value(op, inputs, given[len(inputs) :], out.spec, out.place))
            if draws:
                self.drawn(out)
            return out

        return compared(op, put, record, method) if op.arity in (1, 2) and not draws else method

    def drawn(self, out: Buffer) -> None:
        """Compute the random numbers of ``out`` at once, so that the generator is read in the order of the program."""
        compute([out.read()])

    def _place(self, manager: Any = None, category: int = 0) -> Place:
        """Return the `Place` of new values: the backend that will compute them, a memory manager, a memory category.

        Args:
            manager: the manager of the values' memory; None for the active one.
            category: the memory category of the values in telemetry.
        """
        if manager is None:
            manager = state.current().manager
        found = self._places.get(category)
        if found is None or found.manager is not manager:
            found = self._places[category] = Place(self.over, manager, category, self.fuse)
        return found

    def _put(self, buffer: Buffer, value: Value) -> None:
        """Set a buffer's value to one that is not computed yet."""
        if buffer.base is None:  # as `Buffer.put`, whose call would take longer
            buffer.value = buffer.mark = value
            buffer.entry = None
            value.holder = buffer.held
        else:
            buffer.write(value)
        waiting = self.waiting[get_ident()]
        waiting.append(buffer.held)
        if len(waiting) > LONGEST:
            self.eval()

    def trace(self) -> Log | Replay | None:
        """Return the trace of this backend that this thread logs or replays; None if there is none."""
        trace = upcoming.get()
        return trace if trace is not None and trace.backend is self else None

    def leave_trace(self) -> None:
        """Record values without a log or replay until the next computation, because the next op cannot be replayed."""
        trace = self.trace()
        if trace is not None:
            trace.leave()

    def repeats(self) -> bool:
        """Return whether `repeat` may be used: no telemetry runs and no interpreter is active."""
        here = state.current()
        self.leave_trace()
        return bus.lanes is None and here.direct is self.buffer and here.backend is self

    def repeat(self, segment: Segment, inputs: Sequence[Value], targets: Sequence[Buffer] = ()) -> list[Buffer]:
        """Record all ops of ``segment``, applied to ``inputs``, as a single op of the graph.

        Returns:
            The buffers of the results: ``targets`` if they are given, else new ones.
        """
        manager, items = state.current().manager, list[ref[Value]]()
        attributes = None, None, None, items
        place = self._place(manager, segment.category)
        whole = Value(segment, (*inputs, *segment.constants), attributes, segment.rows[0].spec, place)  # type: ignore[arg-type]
        segment.number(whole)
        results, given, waiting = segment.results, (whole,), self.waiting[get_ident()]
        made = targets or [Buffer(spec, self._place(manager, category)) for _, spec, category in results]
        for (position, spec, _), buffer in zip(results, made, strict=True):
            item = Value(ITEM, given, position, spec, buffer.place)
            items.append(ref(item))
            buffer.put(item)
            waiting.append(buffer.held)
        if len(waiting) > LONGEST:
            self.eval()
        return list(made)

    def repeated(self, key: Any, function: Callable[[], object], tensors: Sequence[Tensor], written: int) -> bool:
        here = state.current()
        values: dict[Value, int] = {}
        about: list[Any] = [key, written, here.category, here.overridden, type(self.over)]
        fits, buffers = self.repeats(), [x._data for x in tensors]
        for x in buffers:
            fits = fits and type(x) is Buffer and x.base is None and x.place.manager is here.manager
            if not fits:
                break
            about += values.setdefault(x.value, len(values)), x.spec
        known = self.segments.of(tuple(about)) if fits else None
        targets = buffers[:written]
        if known is None or not known.is_due() or len(set(targets)) < written:
            function()
            return True
        if known.segment is None:
            after = last_number()
            function()
            known.segment = segment_of(list(values), [x.read() for x in targets], after)
            known.failed = known.segment is None
            return True
        self.repeat(known.segment, list(values), targets)
        for x in tensors[:written]:
            mark_written(x)
        return False

    def view(self, op: Op) -> Callable[..., Buffer]:
        """Make the method of a primitive whose result is a view."""
        known: dict[Any, Any] = {}

        def method(x: Buffer, *attributes: Any) -> Buffer:
            key = x.spec, x.strides, attributes
            found = known.get(key)
            if found is None:
                if len(known) >= MOST_LAYOUTS:
                    known.clear()
                found = known[key] = meta.layout(op, x, attributes)
            spec, _, strides = found
            made = Buffer(spec, x.place)
            made.base, made.strides, made.steps = x, strides, (op, attributes)
            return made

        return method

    def eval(self, *buffers: Buffer) -> None:
        """Compute the values of these buffers; without arguments, all values of this thread that are still used."""
        asked = [value for value in [x.read() for x in buffers] if value.tensor is None]
        if buffers and not asked:
            return
        trace, follow = self.trace(), None
        known = trace.finish(asked or None) if trace is not None else None
        if known is None:
            follow = partial(expect_next, self, trace)
        else:
            expect(self, known)
            if buffers:
                return
        if buffers:
            self._compute(asked, follow)
        else:
            self._compute_waiting(get_ident(), follow)

    def _compute_waiting(self, thread: int, follow: Callable[[Any], None] | None = None) -> None:
        """Compute the values that a thread has recorded and that are still referenced; see `_compute`."""
        taken = self.waiting.pop(thread, [])
        try:
            self._compute(
                [x.value if x.base is None else x.read() for x in [each() for each in taken] if x is not None], follow
            )
        except BaseException:  # also Ctrl-C
            self.waiting[thread] += [each for each in taken if _waits(each())]
            raise

    def _compute(self, values: Sequence[Value], follow: Callable[[Any], None] | None) -> None:
        """Compute recorded values, unless all are computed already; then call ``follow`` with their trace."""
        if any(value.tensor is None for value in values):
            found = None
            try:
                found = compute_alike(values, _recorder)
            finally:
                if follow is not None:
                    follow(found)

    def sync(self) -> None:
        """Compute all recorded values, including those of other threads."""
        self.eval()
        for trace in list(traces):
            if type(trace) is Replay and trace.backend is self and trace is not self.trace():  # of another thread
                trace.leave()
        for thread in list(self.waiting):
            self._compute_waiting(thread)
        self.over.sync()

    def from_numpy(self, array: Any, out: Any = None) -> Buffer:
        """Return a buffer with a copy of the array's values, or write them into ``out``."""
        made = out or Buffer(spec_of(array.shape, array.dtype, self.buffer), self._place())
        spec = spec_of(array.shape, array.dtype, self.over.buffer)
        if isinstance(array, Buffer):
            array = self.to_numpy(array)
        if array.ndim:
            copied = at_once(made.place, create, OPS["from_numpy"], spec, (array,))
        else:  # usually a number among the operands of an op
            copied = detached(array.copy(), spec)
        made.write(Value(None, (), CONSTANT, made.spec, made.place, copied))
        return made

    def to_numpy(self, buffer: Any) -> Any:
        """Return the values as a read-only NumPy array, which does not change with later writes to the buffer."""
        view = None if buffer.base is None else buffer.read()  # nothing else refers to the value of a view
        self.eval(buffer)
        value = buffer.value if view is None else view
        values = np.asarray(self.over.to_numpy(value.tensor._data)).view()
        values.flags.writeable = False
        return values

    def staged(self, buffer: Buffer) -> Any:
        """Return the values as a new NumPy array, for communicators."""
        return np.array(self.to_numpy(buffer), order="C")

    def adopt(self, buffer: Any, family: str) -> Any:
        """Convert an array of the computing backend, by a copy, to a buffer of this backend; None for other families.

        The array is copied because the program may write to it later.
        """
        return self.from_numpy(buffer) if family == self.over.buffer else None

    def empty(self, spec: Spec, manager: Any, min_block: int, code: int = 0, category: int = 0) -> tuple[Buffer, int]:
        """Return a buffer without a value, and offset 0; memory is allocated when a value is computed."""
        return self._empty(spec, manager, min_block, code, category)

    def allocator(self) -> Callable[..., tuple[Buffer, int]]:
        """Return the function that `empty` calls, unless a user's class overrides `empty`."""
        return self._empty if type(self).empty is DeferredBackend.empty else self.empty


def _recorder(place: Place) -> Any:
    """Return a backend that records the ops of a program; the program computes on the backend of ``place``."""
    from flnb_backends.tensor.captured import CapturedBackend

    return CapturedBackend(place.backend, opens=place.fuse and place.backend.kernels() is not None)


def _waits(buffer: Buffer | None) -> bool:
    """Return whether a buffer exists (is not None) and has a value that is not computed yet."""
    return buffer is not None and buffer.read().tensor is None
