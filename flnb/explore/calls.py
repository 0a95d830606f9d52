"""A single call of an op, stored with its inputs bit for bit so that it can be run again on any backend."""

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

Array = np.ndarray[Any, Any]
NEW = -1  # a value of `OpCall.out`: the result goes into a newly allocated buffer


@dataclass(frozen=True)
class OpCall:
    """One call of a primitive op.

    Attributes:
        op: the op's name in the op table.
        inputs: the input arrays as they were before the op ran.
        attributes: the further arguments of the backend's method, after the input arrays; random generators among them
            are in the state they had before the op ran.
        out: the index of the input that is written in place, `NEW` if the result goes into a newly allocated buffer,
            or None if the backend's method allocates the result.
        result: shape and dtype of the output buffer; None where `out` is None.
        category: the memory category of the result, an index into `flnb.dispatch.state.CATEGORIES`.
    """

    op: str
    inputs: tuple[Kept, ...]
    attributes: tuple[Any, ...] = ()
    out: int | None = None
    result: tuple[tuple[int, ...], np.dtype[Any]] | None = None
    category: int = 0

    def on(self, backend: TensorBackend) -> Outcome:
        """Run the call on a backend, with fresh copies of the inputs; an exception becomes part of the outcome."""
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
        value, *after = (one if native else backend.to_numpy(one) for one in (result, *buffers))
        return Outcome(value, None, seconds, self.written(after))

    def written(self, after: Sequence[Any]) -> int:
        """Return the index of the first input that the call changed although it must not; -1 if there is none.

        ``after`` has the values of the inputs after the call.
        """
        pairs = enumerate(zip(after, self.inputs, strict=True))
        return next((i for i, (x, kept) in pairs if i != self.out and not same_bits(x, kept.array())), -1)

    def _target(self, backend: TensorBackend, buffers: Sequence[Any], native: bool) -> Any:
        """Return the buffer for the result: an input, a new buffer of the backend, or None.

        ``native`` says that the backend's buffers are NumPy arrays.
        """
        if self.out is None:
            return None
        if self.out != NEW:
            return buffers[self.out]
        shape, dtype = self.result or ((), np.dtype(np.float32))
        if native:
            return np.empty(shape, dtype)
        here = state.current()
        return backend.empty(spec_of(shape, dtype, backend.buffer), here.manager, here.min_block, 0, 0)[0]

    def __str__(self) -> str:
        return ", ".join(map(str, self.inputs)) or "no tensors"


@dataclass(frozen=True)
class Outcome:
    """The result of an op call, or the exception that it raised.

    ``seconds`` is the duration of the call. ``written`` is the index of the first input that the call changed although
    it must not; -1 if there is none.
    """

    value: Any = None
    error: Exception | None = None
    seconds: float = 0.0
    written: int = -1


def call_before(op: Op, arguments: tuple[Any, ...], backend: TensorBackend) -> OpCall:
    """Return a copy of a call that is about to run, from the op and the arguments of the backend's method."""
    inputs, attributes, out = call_of(op, arguments)
    kept = tuple(keep(np.asarray(backend.to_numpy(x))) for x in inputs)
    where, result = None, None
    if out is not None:
        where = next((i for i, x in enumerate(inputs) if x is out), NEW)
        values = backend.to_numpy(out)
        result = (values.shape, values.dtype)
    return OpCall(op.name, kept, copy.deepcopy(attributes), where, result, state.current().category)


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two arrays have the same shape, dtype and bits, including NaN payloads and signs of zeros.

    >>> import numpy as np
    >>> from flnb.explore.calls import same_bits
    >>> same_bits(np.array([0.0]), np.array([-0.0])), same_bits(np.array([np.nan]), np.array([np.nan]))
    (False, True)
    """
    a, b = np.asarray(a), np.asarray(b)
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


def digest(values: Any) -> str:
    """Hash the bits, shape and dtype of an array or tensor to sixteen hexadecimal digits.

    >>> import numpy as np
    >>> from flnb.explore import digest
    >>> digest(np.zeros(2)) == digest(np.zeros(2)), digest(np.zeros(2)) == digest(-np.zeros(2))
    (True, False)
    """
    array = values._values() if isinstance(values, Tensor) else np.asarray(values)
    head = f"{array.dtype.name}{array.shape}".encode()
    return hashlib.blake2b(head + array.tobytes(), digest_size=8).hexdigest()


def tensor(array: Any) -> Tensor:
    """Return a tensor that shares the memory of a NumPy array, so that its strides and alignment are preserved.

    The array is copied if it is read-only, or if the active backend's buffers are not NumPy arrays.

    Raises:
        TypeError: ``array`` is not a NumPy array.

    >>> import numpy as np
    >>> from flnb.explore import tensor
    >>> tensor(np.ones((2, 3)).T).shape
    (3, 2)
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"explore.tensor: expected a NumPy array, got {type(array).__name__}; use flnb.asarray")
    here = state.current()
    if not here.backend.shares_memory or not array.flags.writeable:
        return asarray(array)
    return dispatch.detached(array, spec_of(array.shape, array.dtype, here.kind))


def generator(state: dict[str, Any]) -> np.random.Generator:
    """Return a NumPy random generator in a given state, for example the state before a recorded random op.

    Args:
        state: a dictionary as ``Generator.bit_generator.state`` returns it.

    >>> import numpy as np
    >>> from flnb.explore import generator
    >>> source = np.random.default_rng(3)
    >>> same = generator(source.bit_generator.state)
    >>> source.random() == same.random()
    True
    """
    source = np.random.Generator(getattr(np.random, state["bit_generator"])())
    source.bit_generator.state = state
    return source


def op_named(function: str, name: str) -> Op:
    """Return the op with a name; if there is none, raise a KeyError that names the called ``function``."""
    if name not in OPS:
        raise KeyError(f"{function}: there is no op {name!r}; the ops are {', '.join(sorted(OPS))}")
    return OPS[name]


def run_op(name: str, *inputs: Any, attributes: tuple[Any, ...] = (), result: Any = None) -> Tensor:
    """Run one primitive op on the active backend and return its result.

    Args:
        name: the op's name in the op table, which is the name of the backend's method.
        inputs: tensors, or NumPy arrays, whose layout in memory is preserved.
        attributes: the further arguments of the backend's method, after its tensors.
        result: shape and dtype of the result, for ops without tensor inputs (full, arange, random_normal ...).

    Raises:
        KeyError: no op has that name.

    >>> import numpy as np
    >>> from flnb.explore import run_op
    >>> run_op("sum", np.ones((2, 3)), attributes=((1,), False)).tolist()
    [3.0, 3.0]
    """
    op = op_named("run_op", name)
    if result is not None:
        shape, dtype = result
        made = (*inputs, *copy.deepcopy(attributes))
        return dispatch.create(op, spec_of(tuple(shape), np.dtype(dtype), state.current().kind), made)
    tensors = tuple(x if isinstance(x, Tensor) else tensor(np.asarray(x)) for x in inputs)
    return dispatch.call(op, tensors, attributes)
