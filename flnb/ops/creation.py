"""Functions that make tensors from values, or from a shape."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from numbers import Number
from typing import Any

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.dispatch.arguments import check_device
from flnb.dispatch.brief import brief
from flnb.dispatch.dtypes import common_dtype, complex_dtype, default_dtype, dtype_of
from flnb.dispatch.plan import spec_of
from flnb.dispatch.quiet import quiet
from flnb.dispatch.table import Op
from flnb.tensor import ArrayLike, DTypeLike, Tensor


def _no_rule(op: Op, *_: Any) -> Any:
    """Shape rule of creation ops: raises an error, since only the caller knows the shape of a new tensor."""
    raise TypeError(f"{op.name}: takes no tensors")


_from_numpy, _full, _arange, _eye, _empty_like = (
    Op(name, "memory", _no_rule) for name in ("from_numpy", "full", "arange", "eye", "empty_like")
)


def _shape(shape: Any) -> tuple[int, ...]:
    """Convert a shape, one int or several, to a tuple of ints >= 0."""
    extents = tuple(operator.index(n) for n in shape) if isinstance(shape, (tuple, list)) else (operator.index(shape),)
    if any(n < 0 for n in extents):
        raise ValueError(f"expected a shape with extents >= 0, got {extents}")
    return extents


def refuse_complex(op: str, dtype: Any, target: Any) -> None:
    """Raise a TypeError, which names ``op``, if a cast from ``dtype`` to ``target`` makes complex numbers real."""
    if target is not None and getattr(dtype, "kind", "") == "c" and target.kind not in "cb":
        raise TypeError(f"{op}: {dtype.name} to {target.name} loses the imaginary part; use flnb.real or flnb.abs")


def _spec(shape: Any, dtype: Any, device: Any = None) -> Any:
    """Return the spec (shape, dtype and kind of buffer) of a tensor to create, after checks of the arguments."""
    if isinstance(dtype, int):
        raise TypeError(
            f"expected a dtype after the shape, got {dtype}; a shape is one tuple: zeros(({brief(shape)}, {dtype}))"
        )
    check_device(device)
    return spec_of(_shape(shape), dtype_of(dtype) if dtype is not None else default_dtype(), state.current().kind)


def asarray(obj: ArrayLike, dtype: DTypeLike = None, copy: bool | None = None, device: str | None = None) -> Tensor:
    """Make a tensor from a number, nested lists, a NumPy array, or anything NumPy converts; values are copied.

    Python floats get the default dtype (float32), complex numbers the complex dtype of the same precision, ints int64.
    NumPy arrays keep their dtype. A Tensor is returned as it is unless ``dtype`` or ``copy`` require a new one. Lists
    of Tensors are stacked, in their common dtype; gradients flow to those that require them.

    >>> import flnb
    >>> flnb.asarray([1, 2]).dtype, flnb.asarray([1.0, 2.0]).dtype
    (dtype('int64'), dtype('float32'))

    Raises:
        TypeError: the values are no numbers.
        ValueError: ``copy`` is False, but a copy is needed.
    """
    if isinstance(obj, Tensor) and dtype is None and copy is None and device is None:
        return obj
    check_device(device)
    if isinstance(obj, Tensor):
        if dtype is None or obj.dtype == dtype_of(dtype):
            return obj.copy() if copy else obj
        if copy is False:
            raise ValueError(f"asarray: {obj._spec!r} cannot become {dtype_of(dtype).name} without a copy; omit copy")
        return obj.astype(dtype)
    if copy is False:
        raise ValueError(
            "asarray: copy=False needs a Tensor, since other values are copied to memory of the active memory manager; "
            f"got {type(obj).__name__}; flnb.from_dlpack(array) shares memory"
        )
    dtype = None if dtype is None else dtype_of(dtype)
    if isinstance(obj, (list, tuple)) and _holds_tensors(obj):
        return _joined(obj, _common(obj) if dtype is None else dtype)
    array = _array_of(obj, dtype)
    here = state.current()
    made = dispatch.create(_from_numpy, spec_of(array.shape, array.dtype, here.kind), (array,), state.INPUT)
    if array.dtype.kind in "iu" and array.size and not here.backend.reads_host:
        made._limits = int(array.min()), int(array.max())
    return made


def of_buffer(buffer: Any, dtype: np.dtype[Any]) -> Tensor:
    """Make a tensor by copying a buffer in another device's memory; ``dtype`` is the dtype of the result."""
    spec = spec_of(buffer.shape, dtype, state.current().kind)
    return dispatch.create(_from_numpy, spec, (buffer,), state.INPUT)


Tensor._of_buffer = staticmethod(of_buffer)


@quiet
def _array_of(values: Any, dtype: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    """Convert values other than Tensors to a NumPy array; without ``dtype``, the dtype is chosen as by `asarray`."""
    refuse_complex("asarray", getattr(values, "dtype", dtype), dtype)
    try:
        array = np.asarray(values, dtype=dtype)
    except (ValueError, TypeError) as error:
        raise type(error)(f"asarray: {error}; expected numbers in nested lists of equal lengths") from None
    if array.dtype.kind not in "biufc" and array.dtype.name != "bfloat16":
        raise TypeError(f"asarray: expected numbers, got {type(values).__name__} of dtype {array.dtype}")
    if dtype is None and not hasattr(values, "dtype") and array.dtype.kind in "fc":
        array = array.astype(default_dtype() if array.dtype.kind == "f" else complex_dtype())
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _holds_tensors(values: Sequence[Any]) -> bool:
    """Return whether nested lists contain a Tensor; looks at the elements' types only, as the lists may be long."""
    kinds = set(map(type, values))
    if any(issubclass(kind, (list, tuple)) for kind in kinds):
        return any(_holds_tensors(v) if isinstance(v, (list, tuple)) else isinstance(v, Tensor) for v in values)
    return any(issubclass(kind, Tensor) for kind in kinds)


def _elements(values: Sequence[Any]) -> Iterator[Any]:
    """Iterate over the elements of nested lists."""
    for v in values:
        yield from _elements(v) if isinstance(v, (list, tuple)) else (v,)


def _common(values: Sequence[Any]) -> np.dtype[Any]:
    """Return the common dtype of nested lists with tensors; a float among integer tensors leads to a floating dtype."""
    elements = list(_elements(values))
    strong = [v.dtype for v in elements if isinstance(v, (Tensor, np.ndarray))]
    scalars = (v for v in elements if not isinstance(v, (Tensor, np.ndarray)))
    weak = {type(v.item() if isinstance(v, np.generic) else v) for v in scalars}
    for kind in weak - {bool, int, float, complex}:
        raise TypeError(f"asarray: expected numbers and tensors in nested lists, got {kind.__name__} among them")
    return common_dtype(strong, tuple(weak))


def _joined(values: Sequence[Any], dtype: np.dtype[Any]) -> Tensor:
    """Stack nested lists of tensors and numbers into one tensor; the ops are recorded if a tensor requires grad."""
    tensors = [v for v in _elements(values) if isinstance(v, Tensor)]
    recorded = state.current().grad and any(x._node is not None for x in tensors)
    if not recorded and all(x._can_be_read() for x in tensors):
        return asarray(np.asarray(_read(values)), dtype)
    from flnb.ops.movement import stack

    return stack([_joined(v, dtype) if isinstance(v, (list, tuple)) else asarray(v, dtype) for v in values])


def _read(values: Any) -> Any:
    """Replace the tensors in nested lists by NumPy arrays of their values."""
    if isinstance(values, (list, tuple)):
        return list(map(_read, values))
    return values._values() if isinstance(values, Tensor) else values


def from_dlpack(x: ArrayLike, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """Make a tensor that shares the memory of another library's array (any object with ``__dlpack__``).

    Writing to the tensor then writes to the array and vice versa, and the memory belongs to no memory manager. With
    ``copy=True`` the values are copied instead.

    >>> import flnb, numpy as np
    >>> source = np.zeros(3, np.float32)
    >>> shared = flnb.from_dlpack(source)
    >>> source[0] = 5.0
    >>> shared.tolist()
    [5.0, 0.0, 0.0]

    Raises:
        TypeError: x has no ``__dlpack__``, or a dtype or device that NumPy does not have.
    """
    check_device(device)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: expected an array with __dlpack__, got {type(x).__name__}; use flnb.asarray")
    array = np.from_dlpack(x)
    if copy:
        return asarray(array)
    if isinstance(x, np.ndarray):  # for which NumPy before 2.1 returns a read-only view
        array = x
    here = state.current()
    if not here.backend.shares_memory:
        raise TypeError(f"from_dlpack: backend {here.backend.name!r} cannot share host memory; give copy=True")
    return dispatch.detached(array, spec_of(array.shape, array.dtype, here.kind))


def full(
    shape: int | Sequence[int], fill_value: complex | Tensor, dtype: DTypeLike = None, device: str | None = None
) -> Tensor:
    """Make a tensor of a shape, filled with one value: a number or a Tensor of one element.

    Without ``dtype`` the dtype is bool, int64, or the default floating or complex dtype, depending on the type of the
    number; for a Tensor it is that Tensor's dtype. Gradients flow to a ``fill_value`` that is a Tensor.

    Raises:
        ValueError: an extent is negative.

    >>> import flnb
    >>> flnb.full((2,), 7)
    Tensor([7, 7], int64[2], numpy)
    """
    if isinstance(fill_value, Tensor):
        from flnb.ops.elementwise import copy
        from flnb.ops.movement import broadcast_to

        check_device(device)
        return copy(broadcast_to(single(asarray(fill_value, dtype), "full"), _shape(shape)))
    if dtype is None and isinstance(fill_value, (bool, int, complex)):
        dtype = np.bool_ if fill_value is True or fill_value is False else np.int64
        dtype = complex_dtype() if isinstance(fill_value, complex) else dtype
    return dispatch.create(_full, _spec(shape, dtype, device), (fill_value,))


def single(value: Tensor, op: str) -> Any:
    """Return a tensor of one element as a 0-d tensor; for other tensors raise an error that names ``op``."""
    from flnb.ops.movement import reshape

    if value.size != 1:
        raise ValueError(f"{op}: expected one number or a tensor with one element to fill with, got {value._spec!r}")
    return reshape(value, ())


def zeros(shape: int | Sequence[int], dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """Make a tensor of zeros, of `flnb.default_dtype()` (float32) unless another dtype is given.

    Raises:
        ValueError: an extent is negative.

    >>> import flnb
    >>> flnb.zeros((2, 2)).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    return dispatch.create(_full, _spec(shape, dtype, device), (0,))


def ones(shape: int | Sequence[int], dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """Make a tensor of ones, of `flnb.default_dtype()` (float32) unless another dtype is given.

    Raises:
        ValueError: an extent is negative.

    >>> import flnb
    >>> flnb.ones(3, dtype=flnb.int64)
    Tensor([1, 1, 1], int64[3], numpy)
    """
    return dispatch.create(_full, _spec(shape, dtype, device), (1,))


def empty(shape: int | Sequence[int], dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """Make a tensor of arbitrary values, of `flnb.default_dtype()` (float32) unless another dtype is given.

    Raises:
        ValueError: an extent is negative.

    >>> import flnb
    >>> flnb.empty((2, 3)).shape
    (2, 3)
    """
    return dispatch.create(_empty_like, _spec(shape, dtype, device), ())


def _like(x: Any, dtype: Any) -> tuple[Any, Any]:
    """Return the shape of x and ``dtype``, or the dtype of x if that is None."""
    x = x if isinstance(x, (Tensor, np.ndarray)) else asarray(x)
    return x.shape, x.dtype if dtype is None else dtype


def full_like(x: ArrayLike, /, fill_value: complex, dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """Make a tensor filled with one value, of the shape of ``x``, and of its dtype unless another is given.

    Raises:
        TypeError: the values of ``x`` are no numbers, or ``dtype`` is not a dtype.

    >>> import flnb
    >>> flnb.full_like(flnb.asarray([1.5, 2.5]), 7)
    Tensor([7., 7.], float32[2], numpy)
    """
    shape, dtype = _like(x, dtype)
    return full(shape, fill_value, dtype, device)


def zeros_like(x: ArrayLike, /, dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """Make a tensor of zeros, of the shape of ``x``, and of its dtype unless another is given.

    Raises:
        TypeError: the values of ``x`` are no numbers, or ``dtype`` is not a dtype.

    >>> import flnb
    >>> flnb.zeros_like(flnb.asarray([1, 2]))
    Tensor([0, 0], int64[2], numpy)
    """
    return zeros(*_like(x, dtype), device)


def ones_like(x: ArrayLike, /, dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """Make a tensor of ones, of the shape of ``x``, and of its dtype unless another is given.

    Raises:
        TypeError: the values of ``x`` are no numbers, or ``dtype`` is not a dtype.

    >>> import flnb
    >>> flnb.ones_like(flnb.asarray([1, 2]))
    Tensor([1, 1], int64[2], numpy)
    """
    return ones(*_like(x, dtype), device)


def empty_like(x: ArrayLike, /, dtype: DTypeLike = None, device: str | None = None) -> Tensor:
    """Make a tensor of arbitrary values, of the shape of ``x``, and of its dtype unless another is given.

    Raises:
        TypeError: the values of ``x`` are no numbers, or ``dtype`` is not a dtype.

    >>> import flnb
    >>> flnb.empty_like(flnb.asarray([[1, 2]])).shape
    (1, 2)
    """
    return empty(*_like(x, dtype), device)


def arange(
    start: float, /, stop: float | None = None, step: float = 1, dtype: DTypeLike = None, device: str | None = None
) -> Tensor:
    """Evenly spaced values from ``start`` up to, but without, ``stop``; ``arange(stop)`` starts at 0.

    Unless ``dtype`` is given, they are int64 if all arguments are ints, otherwise of `flnb.default_dtype()`.

    Raises:
        ValueError: ``step`` is 0.

    >>> import flnb
    >>> flnb.arange(3), flnb.arange(0.0, 1.0, 0.5)
    (Tensor([0, 1, 2], int64[3], numpy), Tensor([0. , 0.5], float32[2], numpy))
    """
    _check_numbers("arange", start, 0 if stop is None else stop, step)
    if step == 0:
        raise ValueError("arange: step must not be 0")
    first, last = (0, start) if stop is None else (start, stop)
    whole = all(isinstance(v, int) for v in (first, last, step))
    if dtype is None and whole:
        dtype = np.int64
    count = -((first - last) // step) if whole else np.ceil((last - first) / step)
    return dispatch.create(_arange, _spec((max(0, int(count)),), dtype, device), (first, step))


def _check_numbers(op: str, *values: Any) -> None:
    """Raise a TypeError, which names ``op``, if one of the values is a tensor or no number."""
    for value in values:
        if not isinstance(value, (int, float, Number, np.generic, np.ndarray)):
            raise TypeError(f"{op}: expected numbers, got {brief(value)}; a tensor's number is tensor.item()")


_linspace = quiet(np.linspace)


def linspace(
    start: complex, stop: complex, /, num: int, dtype: DTypeLike = None, device: str | None = None,
    endpoint: bool = True,
) -> Tensor:  # fmt: skip
    """Make ``num`` evenly spaced values from ``start`` to ``stop``, which is left out with ``endpoint=False``.

    Raises:
        ValueError: ``num`` is negative.

    >>> import flnb
    >>> flnb.linspace(0, 1, 5)
    Tensor([0.  , 0.25, 0.5 , 0.75, 1.  ], float32[5], numpy)
    """
    _check_numbers("linspace", start, stop)
    if num < 0:
        raise ValueError(f"linspace: num must be 0 or more, got {num}")
    if dtype is None:
        dtype = complex_dtype() if complex in (type(start), type(stop)) else default_dtype()
    return asarray(_linspace(start, stop, num, endpoint=endpoint), dtype, device=device)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DTypeLike = None, device: str | None = None
) -> Tensor:
    """Make a matrix (n_rows, n_cols) with ones on the ``k``-th diagonal and zeros elsewhere.

    Diagonal 0 is the main one, 1 the one above it. The matrix is square unless ``n_cols`` is given.

    Raises:
        ValueError: an extent is negative.

    >>> import flnb
    >>> flnb.eye(2, 3, k=1).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    shape = (n_rows, n_rows if n_cols is None else n_cols)
    return dispatch.create(_eye, _spec(shape, dtype, device), (operator.index(k),))
