"""One op apart from any program: its inputs stored bit for bit, to run it again anywhere, on any backend."""

from __future__ import annotations

import copy
import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.dispatch.observe import call_of
from flnb.dispatch.plan import spec_of
from flnb.dispatch.table import OPS
from flnb.explore.layout import Kept, keep
from flnb.ops.creation import asarray
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.dispatch.table import Op
    from flnb.interface import TensorBackend

__all__ = ["OpCall", "Outcome", "call_before", "digest", "generator", "run_op", "tensor"]

Array = np.ndarray[Any, Any]
NEW = -1  # of `OpCall.out`: a buffer of its own


@dataclass(frozen=True)
class OpCall:
    """One call of a primitive.

    Attributes:
        op: its name in the table.
        inputs: the input buffers before it ran.
        attributes: what the method gets after them; sources of random numbers in the state before it ran.
        out: which input is written in place, `NEW` for a buffer of its own, None where the method makes one.
        result: shape and dtype of that buffer, where there is one.
        category: what its memory was counted as (index into `flnb.dispatch.state.CATEGORIES`).
    """

    op: str
    inputs: tuple[Kept, ...]
    attributes: tuple[Any, ...] = ()
    out: int | None = None
    result: tuple[tuple[int, ...], np.dtype[Any]] | None = None
    category: int = 0

    def on(self, backend: TensorBackend) -> Outcome:
        """Run it on a backend's method, on fresh copies of the inputs."""
        op = OPS[self.op]
        arrays = [kept.array() for kept in self.inputs]
        native = backend.shares_memory
        buffers = arrays if native else [backend.from_numpy(a) for a in arrays]
        arguments = [*buffers, *copy.deepcopy(self.attributes)]
        target = self._target(backend, buffers, native)
        if target is not None or (op.writes_out and not op.arity):
            arguments.append(target)
        method = state.bind(backend, op)
        with state.use(category=self.category), np.errstate(all="ignore"):
            t0 = time.perf_counter()
            try:
                result = method(*arguments)
            except Exception as error:
                return Outcome(error=error, seconds=time.perf_counter() - t0)
            backend.sync()
        seconds = time.perf_counter() - t0
        given = result if native else backend.to_numpy(result)
        written = -1
        for i, (kept, buffer) in enumerate(zip(self.inputs, buffers, strict=True)):
            after = buffer if native else backend.to_numpy(buffer)
            if i != self.out and not same_bits(after, kept.array()):
                written = i
        return Outcome(given, None, seconds, written)

    def _target(self, backend: TensorBackend, buffers: Sequence[Any], native: bool) -> Any:
        if self.out is None:
            return None
        if self.out != NEW:
            return buffers[self.out]
        shape, dtype = self.result or ((), np.dtype(np.float32))
        if native:
            return np.empty(shape, dtype)
        here = state.current()
        return backend.empty(spec_of(shape, dtype, backend.buffer), here.manager, here.min_block, 0, 0)[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the stored inputs."""
        return sum(len(kept.memory) for kept in self.inputs)

    def __str__(self) -> str:
        return ", ".join(map(str, self.inputs)) or "no tensors"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call: the result or the error, seconds, and the first input it wrote unasked (-1: none)."""

    value: Any = None
    error: Exception | None = None
    seconds: float = 0.0
    written: int = -1


def call_before(op: Op, arguments: tuple[Any, ...], backend: TensorBackend) -> OpCall:
    """The call that a backend's method is about to get (`flnb.dispatch.observe.Observer.before`)."""
    inputs, attributes, out = call_of(op, arguments)
    kept = tuple(keep(np.asarray(backend.to_numpy(x))) for x in inputs)
    where, result = None, None
    if out is not None:
        where = next((i for i, x in enumerate(inputs) if x is out), NEW)
        values = backend.to_numpy(out)
        result = (values.shape, values.dtype)
    return OpCall(op.name, kept, copy.deepcopy(attributes), where, result, state.current().category)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays agree in shape, dtype and every bit, NaNs and signs of zeros included.

    >>> import numpy as np
    >>> same_bits(np.array([0.0]), np.array([-0.0])), same_bits(np.array([np.nan]), np.array([np.nan]))
    (False, True)
    """
    a, b = np.asarray(a), np.asarray(b)
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


def digest(values: Any) -> str:
    """Sixteen hexadecimal digits for the bits of an array or tensor, its shape and its dtype.

    >>> import numpy as np
    >>> digest(np.zeros(2)) == digest(np.zeros(2)), digest(np.zeros(2)) == digest(-np.zeros(2))
    (True, False)
    """
    array = values._values() if isinstance(values, Tensor) else np.asarray(values)
    head = f"{array.dtype.name}{array.shape}".encode()
    return hashlib.blake2b(head + array.tobytes(), digest_size=8).hexdigest()


def tensor(array: Any) -> Tensor:
    """A tensor in the memory of a NumPy array, not copied, so that strides and alignment stay.

    A copy on a backend whose buffers are not NumPy arrays.

    >>> import numpy as np
    >>> tensor(np.ones((2, 3)).T).shape
    (3, 2)
    """
    here = state.current()
    if not here.backend.shares_memory or not array.flags.writeable:
        return asarray(array)
    return dispatch.detached(array, spec_of(array.shape, array.dtype, here.kind))


def generator(state: dict[str, Any]) -> np.random.Generator:
    """A NumPy generator in this state (of its ``bit_generator``), from which a recorded random op drew.

    >>> import numpy as np
    >>> source = np.random.default_rng(3)
    >>> same = generator(source.bit_generator.state)
    >>> source.random() == same.random()
    True
    """
    source = np.random.Generator(getattr(np.random, state["bit_generator"])())
    source.bit_generator.state = state
    return source


def run_op(name: str, *inputs: Any, attributes: tuple[Any, ...] = (), result: Any = None) -> Tensor:
    """Run one primitive of the op table on the active backend, by the table's name and attributes.

    Args:
        inputs: arrays (used as they lie in memory) or tensors.
        attributes: what the backend's method takes after its tensors.
        result: shape and dtype, for ops that make a tensor from none (full, arange, random_normal ...).

    Raises:
        KeyError: no op of that name.

    >>> import numpy as np
    >>> run_op("sum", np.ones((2, 3)), attributes=((1,), False)).tolist()
    [3.0, 3.0]
    """
    if name not in OPS:
        raise KeyError(f"run_op: no op {name!r} in the table; the ops are {', '.join(sorted(OPS))}")
    op = OPS[name]
    if result is not None:
        shape, dtype = result
        made = (*inputs, *copy.deepcopy(attributes))
        return dispatch.create(op, spec_of(tuple(shape), np.dtype(dtype), state.current().kind), made)
    tensors = tuple(x if isinstance(x, Tensor) else tensor(np.asarray(x)) for x in inputs)
    return dispatch.call(op, tensors, attributes)
