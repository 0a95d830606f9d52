"""The meta backend: computes shapes, dtypes and memory, but no values, so that models of any size can be dry-run.

Its primitives are not written one by one: the op table has a shape rule for every op, and the shape and dtype of a
result are computed before a backend's method is called. Views also need strides. NumPy computes the strides, on an
array that has the shape and the strides of the tensor; the array's elements are never read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

from flnb.dispatch.memory import Owner, allocate, owner_of
from flnb.dispatch.plan import Spec, spec_of
from flnb.dispatch.table import OPS, Op
from flnb.interface import TensorBackend
from flnb_backends.tensor.numpy import NumpyBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.interface.memory import Block

META = "meta"
_numpy = NumpyBackend()


class Buffer:
    """A meta tensor's buffer: the spec, the strides, and the owner of the memory block that the elements would occupy.

    Attributes:
        strides: the strides in bytes; None if the elements are in row-major order without gaps.
        owner: the owner of the memory block, which all views share; None if the buffer is too small for a block.
        base: the buffer of which this buffer is a view; None if it is not a view.
    """

    __slots__ = ("base", "owner", "spec", "strides")

    def __init__(
        self, spec: Spec, owner: Owner | None = None, strides: tuple[int, ...] | None = None, base: Buffer | None = None
    ) -> None:
        self.spec, self.owner, self.strides, self.base = spec, owner, strides, base

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.spec.dtype

    @property
    def block(self) -> Block | None:
        """Return the memory block allocated for this buffer; None if there is none."""
        return None if self.owner is None else self.owner.block

    def outline(self) -> np.ndarray[Any, Any]:
        """Return a NumPy array with the buffer's shape and strides but one element of memory, to compute views."""
        return as_strided(np.empty((), self.dtype), self.shape, self.strides)

    def __repr__(self) -> str:
        return f"<{self.spec.kind} buffer {self.spec!r}>"


class MetaBackend(TensorBackend):
    """A backend that computes no values: every op returns a tensor with the right shape and dtype but no elements.

    Memory is allocated as on any backend, from the active manager. A manager on a `flnb.memory.SimulatedDevice` has
    memory for models of any size (`flnb.memory.dry_run`). Reading a value raises a TypeError.

    >>> import flnb
    >>> with flnb.use_backend("meta"), flnb.use_memory_manager(flnb.memory.Caching(flnb.memory.SimulatedDevice())):
    ...     x = flnb.ones((1 << 20, 4096)) @ flnb.ones((4096, 1024))
    ...     x, flnb.memory.stats()["allocated"] >> 30
    (Tensor(float32[1048576,1024], meta), 4)
    """

    name: ClassVar[str] = META
    buffer: ClassVar[str] = META
    has_values: ClassVar[bool] = False
    plain_buffers: ClassVar[bool] = True
    whole_dtypes: ClassVar[str] = "fd"

    def __getattr__(self, name: str) -> Callable[..., Buffer]:
        """Make the method of a primitive from its shape rule in the op table."""
        op = OPS.get(name.removesuffix("_pull"))
        if op is None or (op.body is not None and not hasattr(_numpy, name)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if op.body is not None:
            return lambda *_, out: out  # a composite, or its gradient
        return self.computed(op) if op.writes_out else self.view(op)

    def computed(self, op: Op) -> Callable[..., Buffer]:
        """Make the method of an op that computes elements: it returns the output buffer and writes nothing."""
        return lambda *arguments: target(op, arguments) or Buffer(inferred(op, arguments))

    def view(self, op: Op) -> Callable[..., Buffer]:
        """Make the method of an op that returns a view."""
        return lambda x, *attributes: Buffer(*layout(op, x, attributes), x)

    def copy_each(self, *_: Any) -> None:
        """Do nothing, in place of the NumPy backend's methods that update several buffers without allocating memory."""

    sgd_update = adam_update = move_averages = copy_each

    def from_numpy(self, array: Any, out: Any = None) -> Buffer:
        """Return a buffer of the array's shape and dtype."""
        return Buffer(spec_of(array.shape, array.dtype, META)) if out is None else out

    def to_numpy(self, buffer: Any) -> Any:
        """Raise an error, as there are no values.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"backend {self.name!r} stores shapes and dtypes but no values, and the values of {buffer.spec!r} were "
            f"read: by float(), bool(), .item(), .numpy() or the like, or because a shape depends on them "
            f"(nonzero, x[mask]). Leave this out of a dry run, or compute with values: flnb.use_backend('numpy')"
        )

    def empty(self, spec: Spec, manager: Any, min_block: int, code: int = 0, category: int = 0) -> tuple[Buffer, int]:
        """Return a buffer and its block's id; a block is allocated wherever the NumPy backend would allocate one."""
        if spec.nbytes < manager.min_block or not spec.nbytes:
            return Buffer(spec), 0
        owner = allocate(manager, spec.nbytes, code, category, spec, owner_of)
        return Buffer(spec, owner), owner.block.id

    def base_of(self, buffer: Buffer) -> Buffer | None:
        return buffer.base

    def is_contiguous(self, buffer: Buffer) -> bool:
        return buffer.strides is None


def target(op: Op, arguments: tuple[Any, ...]) -> Any:
    """Return the output buffer given in the arguments of a method call; None if there is none."""
    return arguments[-1] if len(arguments) > op.arity else None


def inferred(op: Op, arguments: tuple[Any, ...]) -> Spec:
    """Return the spec of an op's result, which the op's shape rule computes."""
    inputs = tuple([x.spec for x in arguments[: op.arity or -1] if isinstance(x, Buffer)])
    shape, dtype = op.infer(op, inputs, () if op.arity else arguments[len(inputs) : -1])
    return spec_of(shape, np.dtype(dtype), inputs[0].kind)


def layout(op: Op, x: Buffer, attributes: tuple[Any, ...]) -> tuple[Spec, Owner | None, tuple[int, ...] | None]:
    """Return the spec, owner and strides of the view that the op ``op`` makes of buffer x, computed by NumPy."""
    seen = getattr(_numpy, op.name)(x.outline(), *attributes)
    strides = None if seen.flags.c_contiguous else seen.strides
    return spec_of(seen.shape, seen.dtype, x.spec.kind), x.owner, strides
