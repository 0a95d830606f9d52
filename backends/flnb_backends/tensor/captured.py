"""The backend that is active while `flnb.jit` captures a function: ops are recorded and not computed."""

from __future__ import annotations

import gc
import sys
from bisect import bisect
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flnb_telemetry import bus, intern
from flnb_telemetry.schema import FORWARD
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided

from flnb.dispatch import source_lines
from flnb.dispatch.crossing import next_seq
from flnb.dispatch.effects import effects
from flnb.dispatch.plan import residents, spec_of
from flnb.dispatch.state import first_installed
from flnb.graph.fusing import FUSED
from flnb.graph.lending import address_of
from flnb.graph.rewriting import like
from flnb.graph.values import CONSTANT, ITEM, MOVE, Value
from flnb.interface.tape import CODE, LASTI, SEQ, Node
from flnb.tensor import detached
from flnb_backends.tensor.deferred import Buffer, DeferredBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.dispatch.plan import Plan, Spec
    from flnb.interface import TensorBackend
    from flnb.tensor import Tensor


class CapturedBackend(DeferredBackend):
    """A backend that records a function's ops, including reads and writes of tensors made outside of the function.

    Args:
        over: the backend that will run the program.
        opens: whether composites are recorded op by op if kernels can be generated for all of their ops; other
            composites are recorded as one op.

    Attributes:
        leaves: the arrays made before the function began that it reads or writes, by address and layout. An entry has
            the array, the `Value` of its elements before the first write, and its recording buffer.
        recorders: for each backend that the function uses, the backend that records ops on its buffers; the keys are
            the names of the buffers' families. All recorders share their leaves.
        context: the id of the scope and phase of recorded values; None for the scope and phase that are active.
        arguments: the tensors among the function's arguments.
        random: the recorded random numbers, in order; every run of the program draws all of them.
    """

    name: ClassVar[str] = "captured"
    buffer: ClassVar[str] = "captured"
    has_values: ClassVar[bool] = False
    aliases: ClassVar[bool] = True

    def __init__(self, over: TensorBackend, opens: bool = True) -> None:
        super().__init__(over)
        self.opens = opens
        family = "captured" if over.buffer == "ndarray" else f"captured {over.buffer}"
        if not opens:  # compiled gradient functions belong to a family's plans, and differ
            family += " whole"
        self.buffer = sys.intern(family)  # type: ignore[misc]  # families are compared by identity
        self.leaves: dict[Any, tuple[Any, Value, Buffer]] = {}
        self.random: list[Value] = []
        self.context: int | None = None
        self.arguments: list[Tensor] = []
        self.recorders = {over.buffer: self}
        self._made: list[Value] = []  # what was recorded outside of backward passes
        self._after: list[int] = []  # for each of them, a number between those of its node and of the next one

    def adopt(self, buffer: Any, family: str) -> Any:
        """Return the recording buffer of an array; arrays with the same memory and layout have the same buffer.

        Return None if ``family`` is not the buffer family of the backend that will compute.
        """
        if family != self.over.buffer:
            return None
        key = _key(buffer)
        if key not in self.leaves:
            made = self._buffer_for(buffer)
            self.leaves[key] = buffer, made.value, made
        return self.leaves[key][2]

    def _buffer_for(self, array: Any) -> Buffer:
        """Return a new recording buffer that holds the elements of an array, in the array's layout."""
        made = Buffer(spec_of(array.shape, array.dtype, self.buffer), self._place())
        made.strides = None if array.flags.c_contiguous else array.strides
        made.value = self._known(made, array)
        return made

    def buffer_of(self, x: Tensor) -> Buffer:
        """Return the recording buffer of a tensor, also of a tensor on another device."""
        kind = x._spec.kind
        return x._data if self.records(kind) else self._recorder_of(kind).adopt(x._data, kind)

    def records(self, family: str) -> bool:
        """Return whether ops on buffers of this family are recorded."""
        return any(each.buffer == family for each in self.recorders.values())

    def counterpart(self, other: TensorBackend) -> TensorBackend:
        """Return the recording backend for ``other``, a backend that the captured function has activated."""
        if not other.programs:
            return other
        made = self.recorders.get(other.buffer)
        if made is None:
            made = self.recorders[other.buffer] = CapturedBackend(other, self.opens and other.kernels() is not None)
            made.leaves, made.random, made.waiting, made.recorders = (
                self.leaves,
                self.random,
                self.waiting,
                self.recorders,
            )
            made._made, made._after, made.arguments = self._made, self._after, self.arguments
        return made

    def is_contiguous(self, buffer: Any) -> bool:
        """Return whether the elements of a recording buffer, or of an array, are in row-major order without gaps."""
        return super().is_contiguous(buffer) if isinstance(buffer, Buffer) else bool(buffer.flags.c_contiguous)

    def moved(self, x: Tensor) -> Tensor:
        """Record a copy of a tensor from another device to this backend's memory."""
        if x._spec.kind == self.over.buffer:
            return x
        made = Buffer(spec_of(x._spec.shape, x._spec.dtype, self.buffer), self._place())
        self._put(made, Value(MOVE, (self.buffer_of(x).read(),), (), made.spec, made.place))
        return detached(made, made.spec)

    def _recorder_of(self, family: str) -> CapturedBackend:
        """Return the backend that records on buffers of a family."""
        if family not in self.recorders:
            self.counterpart(residents.get(family) or first_installed(("cpu", "numpy")))
        return self.recorders[family]

    def stand_in(self, array: Any, constant: bool) -> Tensor:
        """Make a recorded tensor for an array: a constant of the program if ``constant`` is True, else an input."""
        made = self._buffer_for(array)
        made.value.attributes = CONSTANT if constant else ()
        return detached(made, made.spec)

    def leaf(self, array: Any) -> Value:
        """Return the `Value` of an array made outside of the function, with its contents before any write."""
        return self.leaves[_key(array)][1]

    def written(self) -> list[tuple[Value, Value]]:
        """Return (value before, value after) for each array that the function wrote and did not make itself.

        Raises:
            RuntimeError: the memory of such an array overlaps that of another tensor that the function used.
            ValueError: such an array is read-only.
        """
        found, before, end = [], None, 0
        for array, first, buffer in sorted(self.leaves.values(), key=lambda leaf: _bounds(leaf[0])[0]):
            now, (begin, stop) = buffer.read(), _bounds(array)
            if before is not None and begin < end and (now is not first or before[1] is not before[0]):
                raise RuntimeError(
                    f"flnb.jit: the captured function writes to memory shared by {first.spec!r} and "
                    f"{before[0].spec!r}: make one of them inside the function as a view of the other, or use a copy"
                )
            if stop > end:
                before, end = (first, now), stop
            if now is not first:
                refuse_read_only(array)
                found.append((first, now))
        return found

    def refuse_kept(self) -> None:
        """Check that the function stored no recorded tensor, which later runs of the program could not update.

        Raises:
            RuntimeError: a recorded tensor is still referenced.
        """
        if not self._kept():
            return
        gc.collect()
        kept = self._kept()
        if not kept:
            return
        raise RuntimeError(
            f"flnb.jit: the captured function stores a tensor, {kept[0]!r}, in an attribute, list or closure, which "
            f"later runs would not update: return the tensor, or write it into an existing one with flnb.assign"
        )

    def _kept(self) -> list[Spec]:
        """Return the specs of recorded tensors that are still referenced."""
        known = {id(buffer) for _, _, buffer in self.leaves.values()}
        return [
            x.spec
            for x in [each() for waiting in self.waiting.values() for each in waiting]
            if x is not None and id(x) not in known
        ]

    def _known(self, buffer: Buffer, array: Any) -> Value:
        """Return a computed value with the elements of an array, and with the spec and place of ``buffer``."""
        held = detached(array, spec_of(array.shape, array.dtype, self.over.buffer))
        return Value(None, (), (), buffer.spec, buffer.place, held)

    def from_numpy(self, array: Any, out: Any = None) -> Buffer:
        """Return a buffer with the array's current elements, which become constants of the program."""
        if isinstance(array, Buffer):
            value = array.read()
        made = out or Buffer(spec_of(array.shape, array.dtype, self.buffer), self._place())
        if not isinstance(array, Buffer):
            value = self._known(made, self.over.from_numpy(np.array(array)))
            value.attributes = CONSTANT
        made.write(value)
        return made

    def to_numpy(self, buffer: Any) -> Any:
        """Raise an error, as nothing is computed during capture.

        Raises:
            RuntimeError: always.
        """
        self._refuse_read(buffer.spec, "", "a program is recorded before it has values")

    def elements_read(self, x: Tensor) -> None:
        """Note that the function reads elements of a tensor in Python while it is captured.

        The tensor was made outside of the function. The program is valid for these elements only, so the function is
        captured again if the tensor is written later.

        Raises:
            RuntimeError: the tensor is an argument, or a gradient that the function uses, or was written before.
        """
        captured = effects.get()
        if captured is None:
            return
        begin, end = _bounds(x._data)
        inputs = [*self.arguments, *[gradient for _, gradient in captured.grown], *captured.gradients_of_used()]
        given = [_bounds(each._data) for each in inputs if not self.records(each._spec.kind)]
        if any(begin < bounds[1] and bounds[0] < end for bounds in given):
            self._refuse_read(x._spec, ", an argument or a gradient", "each run would use those of the recorded call")
        for array, first, buffer in self.leaves.values():
            bounds = _bounds(array)
            if buffer.read() is not first and begin < bounds[1] and bounds[0] < end:
                self._refuse_read(x._spec, ", after writing to it", "a program is recorded before it has values")
        captured.watch(x, ["_last_write", "_data"])

    def _refuse_read(self, spec: Spec, which: str, why: str) -> None:
        """Raise an error that names the user's line where the values of a tensor of this spec are read.

        In the message, ``which`` follows the spec, and ``why`` is a clause that says why they cannot be read.
        """
        line = source_lines.lines(*source_lines.site())[0]
        raise RuntimeError(
            f"flnb.jit: {line.file}:{line.line} reads the values of {spec!r}{which}: by "
            f"float(), bool(), .item(), .numpy() or the like, or because a shape depends on them (nonzero, x[mask]), "
            f"but {why}: return the tensor and read it outside, pass a number, or compute with tensors (flnb.where)"
        )

    def recorder(self, plan: Plan, index: int) -> Callable[..., Any] | None:  # type: ignore[override]
        """Return a function that records a composite as one op; None if the ops of its body are to be recorded instead.

        ``index`` is the index, among all ops, of the composite or of its gradient.
        """
        opened = self.opens and plan.primitives and plan.primitives <= FUSED
        return None if opened else super().recorder(plan, index)

    def _put(self, buffer: Buffer, value: Value) -> None:
        node, value.context = getattr(effects.get(), "node", None), bus.threads.here.context()
        if self.context is not None:
            value.context = self.context
        elif node is None:
            frame = source_lines.outside(sys._getframe(1))
            value.site = frame.f_code, frame.f_lasti
            self._made.append(value)
            self._after.append(next_seq())
        else:
            self._place_by(node, value)
        if value.op is ITEM:
            like(value.inputs[0], value)
        super()._put(buffer, value)

    def _place_by(self, node: Node, value: Value) -> None:
        """Set the source line and scope of a backward pass's value to those of the op whose gradient it computes."""
        value.site = node[CODE], node[LASTI]
        at = bisect(self._after, node[SEQ])
        if at == len(self._made):  # the node was there before
            return
        made, contexts = self._made[at], intern.contexts
        scope, phase, *_ = contexts.items[made.context]
        made.context = contexts.id_of((scope, phase or FORWARD))
        value.context = contexts.id_of((scope, contexts.items[value.context].phase))

    def repeats(self) -> bool:
        return False

    def drawn(self, out: Buffer) -> None:
        self.random.append(out.read())

    def eval(self, *buffers: Any) -> None:
        """Do nothing: values are computed when the program runs."""

    def sync(self) -> None:
        """Wait for the work of the backend that computes."""
        self.over.sync()


def refuse_read_only(array: Any) -> None:
    """Raise a ValueError if an array to which a program writes is a read-only NumPy array."""
    if not getattr(array.flags, "writeable", True):
        raise ValueError(
            f"flnb.jit: the function writes to a tensor on the memory of a read-only array, "
            f"{spec_of(array.shape, array.dtype, 'ndarray')!r}: pass a copy, such as flnb.asarray(array)"
        )


def _key(array: Any) -> Any:
    """Return a key that is equal for arrays with the same memory, shape, strides and dtype."""
    return address_of(array), array.shape, array.strides, array.dtype


def _bounds(array: Any) -> tuple[int, int]:
    """Return the memory addresses at which an array begins and ends."""
    outline = as_strided(np.empty((), array.dtype), array.shape, array.strides)
    away = address_of(array) - address_of(outline)
    begin, end = byte_bounds(outline)
    return begin + away, end + away
