"""The deferred backend: ops are recorded as values, and computed on another backend when an element is asked for.

Tensors may be written in place and viewed, values may not. So a buffer is a cell that holds the value it has now; a
write puts another value into it. A view is a buffer that names what it is a view of: it reads anew when that was
written, and a write to it becomes a write of the whole (what is called functionalization elsewhere).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

import numpy as np

from flnb.dispatch import registry, state
from flnb.dispatch.crossing import create
from flnb.dispatch.plan import Plan, Spec, residents, spec_of
from flnb.dispatch.table import OPS, Op
from flnb.graph.running import at_once, compute
from flnb.graph.values import ITEM, PUT, Value
from flnb.tensor import detached
from flnb_backends.tensor import meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flnb.interface import TensorBackend

__all__ = ["Buffer", "DeferredBackend"]

GRAPH = "graph"
LONGEST = 100_000
"""So many ops may be recorded before all are computed: a loop that never reads a value does not fill the memory."""
waiting: list[ref[Buffer]] = []
"""The buffers whose values may not be computed yet."""


class Buffer(meta.Buffer):
    """A tensor's buffer on the deferred backend: a cell with the value that the tensor has now.

    Attributes:
        backend: the backend that computes.
        category: of the memory that its value will have.
        value: what was computed, or will be.
        writes: how often the memory was written; counted by the buffer that is no view.
        seen: of a view: the number of writes for which ``value`` was read.
        steps: of a view: the op and the attributes that make it from its base.
    """

    __slots__ = ("__weakref__", "backend", "category", "seen", "steps", "value", "writes")

    base: Buffer | None
    value: Value
    steps: tuple[Op, tuple[Any, ...]]
    seen: int

    def __init__(self, spec: Spec, backend: TensorBackend, category: int = 0) -> None:
        super().__init__(spec)
        self.backend, self.category, self.writes = backend, category, 0

    def read(self) -> Value:
        """Return the value that this buffer has now."""
        if self.base is not None and self.seen != (writes := self.root().writes):
            op, attributes = self.steps
            self.value = Value(op, (self.base.read(),), attributes, self.spec, self.backend)
            self.seen = writes
        return self.value

    def write(self, op: Any, inputs: tuple[Value, ...], attributes: tuple[Any, ...], tensor: Any = None) -> None:
        """Let this buffer, everything it is a view of, and all other views have the elements of a new value."""
        value = Value(op, inputs, attributes, self.spec, self.backend, self.category, tensor)
        if self.base is None:
            self.value = value
            self.writes += 1
            if tensor is None:
                waiting.append(ref(self))
        else:
            self.base.write(PUT, (self.base.read(), value), self.steps)
            self.value, self.seen = value, self.root().writes

    def root(self) -> Buffer:
        """Return the buffer that is no view."""
        found = self
        while found.base is not None:
            found = found.base
        return found


class DeferredBackend(meta.MetaBackend):
    """A backend that records ops, and computes them on another one when an element is asked for.

    A step of an optimizer computes all that is left of it, `flnb.sync` everything. Values that nobody asks for, and
    that nothing else needs, are not computed. Random numbers are drawn at once, so that they are those of the backend
    below.

    Args:
        over: the backend that computes, of NumPy arrays: a name, a class or an instance.

    Raises:
        TypeError: ``over`` is not a backend of NumPy arrays.

    >>> import flnb
    >>> with flnb.use_backend("deferred"):
    ...     y = flnb.exp(flnb.zeros(2)) + 1.0  # nothing is computed
    ...     y.tolist()
    [2.0, 2.0]
    """

    name: ClassVar[str] = "deferred"
    buffer: ClassVar[str] = GRAPH
    has_values: ClassVar[bool] = True
    defers: ClassVar[bool] = True

    def __init__(self, over: str | type[TensorBackend] | TensorBackend = "numpy") -> None:
        self.over: TensorBackend = registry.make("backend", over)
        if self.over.buffer != "ndarray":
            raise TypeError(f"deferred: computes on a backend of NumPy arrays, got {self.over!r}")
        self.whole_dtypes = self.over.whole_dtypes  # type: ignore[misc]
        residents.setdefault(GRAPH, self)

    def method(self, name: str) -> Any:
        """Return the method that records a primitive; of a composite, the one that computes it, None without one."""
        op = OPS.get(name)
        return getattr(self, name) if op is not None and op.body is None else self.over.method(name)

    def overridden(self) -> frozenset[str]:
        return super().overridden() | self.over.overridden()

    def recorder(self, plan: Plan, index: int) -> Callable[..., list[Buffer | None]]:
        """Return what records a composite, whose results are written to the buffers ``out``, or its gradient."""
        op = plan.op if index == plan.op.index else plan.op.gradient
        own = len(plan.attributes)

        def record(*arguments: Any, out: list[Buffer | None]) -> list[Buffer | None]:
            tensors = arguments[: len(arguments) - own]
            inputs = tuple([x.read() for x in tensors if x is not None])
            attributes = plan, tuple([x is not None for x in tensors]), tuple([x is not None for x in out])
            made = [x for x in out if x is not None]
            whole = Value(op, inputs, attributes, plan.spec, self.over, made[0].category if made else 0)
            for i, buffer in enumerate(out):
                if buffer is not None:
                    buffer.write(ITEM, (whole,), (i,))
            return out

        return record

    def computed(self, op: Op) -> Callable[..., Buffer]:
        """Make the method of a primitive that writes to memory: it records a value for the buffer that it gets last."""

        def method(*arguments: Any) -> Any:
            *given, out = arguments
            inputs = tuple([x.read() for x in given if isinstance(x, Buffer)])
            out.write(op, inputs, tuple(given[len(inputs) :]))
            if op.name.startswith("random_"):
                self.eval(out)  # the generator is read now: what others draw from it comes after
            if len(waiting) > LONGEST:
                self.eval()
            return out

        return method

    def view(self, op: Op) -> Callable[..., Buffer]:
        """Make the method of a primitive that returns a view."""

        def method(x: Buffer, *attributes: Any) -> Buffer:
            spec, _, strides = meta.layout(op, x, attributes)
            made = Buffer(spec, self.over)
            made.base, made.strides, made.steps, made.seen = x, strides, (op, attributes), -1
            return made

        return method

    def eval(self, *buffers: Buffer) -> None:
        """Compute the values of these buffers, without arguments those of all that are still referred to."""
        found: Iterable[Buffer | None] = buffers
        if not buffers:
            taken = waiting[:]
            del waiting[: len(taken)]  # another thread may have added some
            found = [each() for each in taken]
        compute([x.read() for x in found if x is not None])

    def sync(self) -> None:
        """Compute everything that was recorded."""
        self.eval()
        self.over.sync()

    def from_numpy(self, array: Any, out: Any = None) -> Buffer:
        """Return a buffer with a copy of the array's values, or write them into ``out``."""
        if out is None:
            out = Buffer(spec_of(array.shape, array.dtype, GRAPH), self.over)
        spec = spec_of(array.shape, array.dtype, self.over.buffer)
        if array.ndim:
            with state.entered(at_once(self.over, out.category)):
                out.write(None, (), (), create(OPS["from_numpy"], spec, (array,)))
        else:  # a number among the operands of an op, as a rule
            out.write(None, (), (), detached(array.copy(), spec))
        return out

    def to_numpy(self, buffer: Any) -> Any:
        """Return the values as a NumPy array, which must not be written to."""
        self.eval(buffer)
        values = np.asarray(self.over.to_numpy(buffer.read().tensor._data)).view()
        values.flags.writeable = False
        return values

    def adopt(self, buffer: Any, family: str) -> Any:
        """Copy a NumPy array: the program may write to it before the copy is used."""
        return self.from_numpy(buffer) if family == self.over.buffer else None

    def empty(self, spec: Spec, manager: Any, min_block: int, code: int = 0, category: int = 0) -> tuple[Buffer, int]:
        """Return a buffer without a value; memory is allocated when the value is computed."""
        return Buffer(spec, self.over, category), 0
