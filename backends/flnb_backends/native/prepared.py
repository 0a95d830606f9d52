"""Primitives of oneDNN with the reorders around them, made once for arrays of given shapes and strides."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from flnb_backends.native.onednn import OneDnn, OneDnnError

Shape = tuple[int, ...]
SRC, DST, SCRATCHPAD = 1, 17, 80
"""oneDNN's numbers of a primitive's arguments: source, destination and scratch memory."""
EXEC_ARG_MD, IMPLEMENTATION = 255, 8
LINE = 64
"""Bytes of a cache line, to which the arrays in scratch memory are aligned."""


class Unsuitable(Exception):
    """Raised if oneDNN can compute an op in the requested way only by slow code."""


def contiguous(shape: Shape) -> Shape:
    """Return the strides, in elements, of a C-contiguous array."""
    return tuple(accumulate(shape[:0:-1], lambda a, b: a * max(b, 1), initial=1))[::-1]


def channels_last(shape: Shape) -> Shape:
    """Return the strides, in elements, of an array (N, C, *extents) whose channels are next to each other in memory."""
    n, c, *extents = shape
    first, *inner, last = contiguous((n, *extents, c))
    return (first, last, *inner)


def regular(shape: Shape, strides: Shape, itemsize: int = 4) -> Shape | None:
    """Convert strides from bytes to elements; returns None unless they are positive and elements do not overlap.

    The stride of an axis of extent 1 has no meaning; it is replaced by the stride in a C-contiguous array. ``itemsize``
    is the bytes of an element.
    """
    if any(n > 1 and s % itemsize for n, s in zip(shape, strides, strict=True)):
        return None
    steps = tuple(p if n == 1 else s // itemsize for n, s, p in zip(shape, strides, contiguous(shape), strict=True))
    within = 1
    for step, n in sorted(zip(steps, shape, strict=True)):
        if n > 1:
            if step < within:
                return None
            within = step * n
    return steps


def span(shape: Shape, strides: Shape) -> int:
    """Return the bytes from the start of the first to the end of the last element of a float32 array.

    Strides are in elements.
    """
    return 4 + 4 * sum((n - 1) * step for n, step in zip(shape, strides, strict=True))


class Operand(NamedTuple):
    """A tensor that a primitive reads or writes.

    Attributes:
        argument: oneDNN's number of the primitive's argument.
        shape: the tensor's shape.
        strides: the tensor's strides in elements.
        wanted: the strides, in elements, of the array on which the primitive computes; None if oneDNN chooses.
        padding: for each axis, the number of zeros to add on both sides, in a C-contiguous copy.
    """

    argument: int
    shape: Shape
    strides: Shape
    wanted: Shape | None
    padding: Shape = ()

    @property
    def inner(self) -> Shape:
        """Return the tensor's shape with its padding."""
        return tuple(n + 2 * p for n, p in zip(self.shape, self.padding or (0,) * len(self.shape), strict=True))

    def chosen(self) -> Shape | None:
        """Return the strides on which the primitive computes; None if oneDNN chooses.

        These are the strides ``wanted``, or the tensor's own strides if both differ only in axes of extent 1.
        """
        if self.padding:
            return contiguous(self.inner)
        if self.wanted is None:
            return None
        pairs = zip(self.shape, self.strides, self.wanted, strict=True)
        return self.strides if all(n == 1 or a == b for n, a, b in pairs) else self.wanted


class Call(NamedTuple):
    """A call of `dnnl_primitive_execute`: a primitive, the number of its arguments, and a C array of them.

    ``what`` describes the call in errors.
    """

    what: str
    primitive: Any
    number: int
    arguments: Any


class Stage(NamedTuple):
    """A primitive to create: a name for errors, oneDNN's descriptor (``made``), and the numbers of its arguments.

    An argument that is not an operand is stored in scratch memory. One stage writes the argument, and later stages with
    the same number read it.
    """

    what: str
    made: Any
    arguments: tuple[int, ...]


class Prepared:
    """Computes an op by oneDNN's primitives, for float32 arrays of given shapes and strides.

    If a primitive needs another layout than an array has, oneDNN's reorder copies the array before or after the
    primitive. Only one thread may use the object, because a run stores the arrays' addresses in it.

    Args:
        dnn: the oneDNN library.
        what: the op's name in errors.
        operands: the tensors that the op reads, followed by the one that it writes.
        describe: returns the stages of the computation; called with oneDNN's descriptor of each operand.

    Attributes:
        dnn: the oneDNN library.
        extents: for each operand, the bytes from the first to the end of the last element.
        what: a description of the op and its operands, for errors.
        implementation: oneDNN's name for the code that it chose, such as "brgconv:avx2".
        scratch: the bytes of scratch memory that a run needs, at any alignment.
        zeros: the offset and size, in bytes, of each padded image in scratch memory; `run` first fills it with zeros.
        calls: the calls of a run, in order: reorders of inputs, the primitives, reorders of results.
        runs: how often `run` was called.
    """

    def __init__(
        self,
        dnn: OneDnn,
        what: str,
        operands: Sequence[Operand],
        describe: Callable[..., Sequence[Stage]],
    ) -> None:
        self.dnn = dnn
        self.extents = [span(each.shape, each.strides) for each in operands]
        self._set, self._execute, self._stream = (
            dnn.lib.dnnl_memory_set_data_handle, dnn.lib.dnnl_primitive_execute, dnn.stream,
        )  # fmt: skip
        self.runs = 0
        self.what = f"{what} of {', '.join(f'float32{list(o.shape)} with strides {o.strides}' for o in operands)}"
        self.scratch = LINE
        self._memories: list[Any] = []
        self._outer = [self._memory(dnn.described(each.shape, each.strides)) for each in operands]
        self._inner: list[tuple[Any, int]] = []
        self.zeros: list[tuple[int, int]] = []
        self._moves: tuple[list[Call], list[Call]] = [], []
        try:
            stages = describe(*(dnn.described(each.inner, each.chosen()) for each in operands))
        except OneDnnError as error:
            raise OneDnnError(error.number, self.what) from None
        names = [self._implementation(stage.made) for stage in stages]
        self.implementation = names[-1]
        if any(name.startswith("ref") for name in names):
            raise Unsuitable(f"{self.what}: oneDNN has only slow code for it, its reference implementation")
        placed: dict[int, Any] = {}
        calls = []
        for stage in stages:
            for number in stage.arguments:
                if number not in placed:
                    placed[number] = self._argument(stage.made, number, operands)
            calls.append(self._call(stage.what, stage.made, [(number, placed[number]) for number in stage.arguments]))
        self.calls = (*self._moves[0], *calls, *self._moves[1])

    @property
    def memories(self) -> tuple[list[Any], list[tuple[Any, int]]]:
        """Return oneDNN's memory objects of the operands, and those in scratch memory with their offsets in bytes."""
        return self._outer, self._inner

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Compute the op on arrays at these addresses, with scratch memory at the address ``scratch``.

        Raises:
            OneDnnError: oneDNN reports a failure.
        """
        self.runs += 1
        self.place(addresses, scratch)
        for offset, size in self.zeros:
            ctypes.memset(scratch + -scratch % LINE + offset, 0, size)
        for call in self.calls:
            status = self._execute(call.primitive, self._stream, call.number, call.arguments)
            if status:
                raise OneDnnError(status, f"{call.what} in {self.what}")

    def place(self, addresses: Sequence[int], scratch: int) -> None:
        """Set the addresses of arrays and scratch memory that `calls` use until this method is called again."""
        put = self._set
        scratch += -scratch % LINE
        status = 0
        for memory, address in zip(self._outer, addresses, strict=True):
            status |= put(memory, address)
        for memory, offset in self._inner:
            status |= put(memory, scratch + offset)
        if status:
            raise OneDnnError(status, f"set addresses of {self.what}")

    def _implementation(self, made: Any) -> str:
        name = self.dnn.ffi.new("char **")
        self.dnn.check(self.dnn.lib.dnnl_primitive_desc_query(made, IMPLEMENTATION, 0, name), f"name {self.what}")
        return self.dnn.ffi.string(name[0]).decode()

    def _argument(self, made: Any, number: int, operands: Sequence[Operand]) -> Any:
        """Return the memory object for argument ``number`` of the primitive whose descriptor is ``made``.

        An operand with another layout than the primitive needs is copied to or from scratch memory, by a reorder.
        """
        dnn = self.dnn
        inner = dnn.lib.dnnl_primitive_desc_query_md(made, EXEC_ARG_MD, number)
        index = next((i for i, each in enumerate(operands) if each.argument == number), None)
        if index is None:
            return self._in_scratch(inner)
        operand = operands[index]
        outer, given = dnn.described(operand.shape, operand.strides), self._outer[index]
        if dnn.lib.dnnl_memory_desc_equal(inner, outer):
            return given
        inside = filled = self._in_scratch(inner)
        if operand.padding:
            offset = self._inner[-1][1]
            steps = contiguous(operand.inner)
            inner = dnn.described(operand.shape, steps)
            filled = self._memory(inner)
            start = sum(p * step for p, step in zip(operand.padding, steps, strict=True))
            self._inner.append((filled, offset + 4 * start))
            self.zeros.append((offset, span(operand.inner, steps)))
        result = index == len(operands) - 1
        (start, a), (end, b) = ((inner, filled), (outer, given)) if result else ((outer, given), (inner, filled))
        kind = dnn.new(
            "dnnl_primitive_desc_t", "reorder_primitive_desc_create", start, dnn.engine, end, dnn.engine,
            dnn.attributes, doing=self.what,
        )  # fmt: skip
        self._moves[result].append(self._call(f"reorder operand {index}", kind, [(SRC, a), (DST, b)]))
        return inside

    def _call(self, what: str, made: Any, arguments: list[tuple[int, Any]]) -> Call:
        """Create a primitive from its descriptor ``made``, and a call of it; ``what`` describes the call in errors.

        ``arguments`` are pairs of oneDNN's number of an argument and a memory object.
        """
        dnn = self.dnn
        pad = dnn.lib.dnnl_primitive_desc_query_md(made, EXEC_ARG_MD, SCRATCHPAD)
        if pad != dnn.ffi.NULL and dnn.lib.dnnl_memory_desc_get_size(pad):
            arguments = [*arguments, (SCRATCHPAD, self._in_scratch(pad))]
        primitive = dnn.new("dnnl_primitive_t", "primitive_create", made, doing=self.what)
        return Call(what, primitive, len(arguments), dnn.ffi.new("dnnl_exec_arg_t[]", arguments))

    def _memory(self, described: Any) -> Any:
        """Create oneDNN's memory object for a descriptor, without an address.

        A list refers to the object, so that it is not freed; C arrays have only pointers to it.
        """
        dnn = self.dnn
        made = dnn.new("dnnl_memory_t", "memory_create", described, dnn.engine, dnn.ffi.NULL, doing=self.what)
        self._memories.append(made)
        return made

    def _in_scratch(self, described: Any) -> Any:
        """Create oneDNN's memory object for a descriptor, at a new place in scratch memory."""
        made = self._memory(described)
        self._inner.append((made, self.scratch - LINE))
        size = self.dnn.lib.dnnl_memory_desc_get_size(described)
        self.scratch += size + -size % LINE
        return made
