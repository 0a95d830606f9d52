"""The reference backend: every primitive by NumPy, on arrays in the memory manager's blocks."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from flnb.dispatch.dtypes import are_positions
from flnb.dispatch.memory import allocate, memory_of, refuse_arrays
from flnb.dispatch.quiet import quiet, unnamed
from flnb.interface import TensorBackend
from flnb.ops.indexing import check_range, decode
from flnb_backends.memory.host import HostDevice
from flnb_backends.memory.native import Native
from flnb_backends.native.openblas import numpys_libraries
from flnb_backends.tensor.convolution import Convolution, filled
from flnb_backends.tensor.erf import erf
from flnb_backends.tensor.half import in_single, is_half, rounded, single
from flnb_backends.tensor.linalg import LinearAlgebra
from flnb_backends.tensor.movement import Movement
from flnb_backends.tensor.pool_places import pool_places
from flnb_backends.tensor.pooling import Pooling
from flnb_backends.tensor.rows import blocks, number
from flnb_backends.tensor.updates import Updates
from flnb_backends.tensor.whole import Whole

Array = np.ndarray[Any, Any]


@unnamed
def into(values: Array, out: Array | None) -> Array:
    """Write values, cast to the dtype of ``out``, into ``out`` and return it; without ``out`` return the values."""
    if out is None:
        return values
    np.copyto(out, values, casting="unsafe")
    return out


_WHOLE = {("slice", None, None, None)}
"""The encoded index of a whole axis, `:`."""


@lru_cache(4096)
def _axis(key: tuple[Any, ...]) -> int:
    """Return the axis that is indexed by an array, if the encoded index ``key`` takes all other axes whole; else -1."""
    places = [i for i, each in enumerate(key) if each == ("index", 0)]
    return places[0] if len(places) == 1 and _WHOLE.issuperset(key[: places[0]] + key[places[0] + 1 :]) else -1


@cache
def native() -> Any:
    """Import and return the compiler of loop nests, the class `flnb_backends.native.runner.Native`."""
    from flnb_backends.native.runner import Native

    return Native


@cache
def _host_manager() -> Native:
    return Native(HostDevice())


@lru_cache(4096)
def _strides(shape: tuple[int, ...], to: tuple[int, ...], itemsize: int) -> tuple[int, ...] | None:
    """Return the strides in bytes of a C-contiguous array broadcast to the shape ``to``; None if shapes do not fit."""
    lead = len(to) - len(shape)
    if lead < 0 or min(to, default=0) < 0 or any(n not in (1, m) for n, m in zip(shape, to[lead:], strict=True)):
        return None
    steps = [itemsize * math.prod(shape[i + 1 :]) if n == to[lead + i] else 0 for i, n in enumerate(shape)]
    return (0,) * lead + tuple(steps)


def rounding(function: Any) -> Any:
    """Make the method of a rounding op, such as floor, from a ufunc of NumPy or CuPy; integers are only copied."""

    def method(self: Any, x: Array, out: Array | None = None) -> Any:
        return self.copy(x, out) if x.dtype.kind in "iu" else function(x, out)  # integers are round, and stay integers

    return method


def _reduce(function: Any) -> Any:
    def method(self: Any, x: Array, axes: tuple[int, ...], keepdims: bool, out: Array | None = None) -> Any:
        return function(x, axis=axes, keepdims=keepdims, out=out)

    return method


def _total(function: Any) -> Any:
    @unnamed
    def method(self: Any, x: Array, axes: tuple[int, ...], keepdims: bool, out: Array | None = None) -> Any:
        if x.itemsize == 2 and is_half(x):
            return rounded(function(single(x), axis=axes, keepdims=keepdims), x, out)
        return function(x, axis=axes, keepdims=keepdims, out=out)

    return method


def _position(function: Any) -> Any:
    def method(self: Any, x: Array, axes: tuple[int, ...], keepdims: bool, out: Array | None = None) -> Any:
        return function(x, axis=axes[0], keepdims=keepdims, out=out)

    return method


class NumpyBackend(Whole, Updates, Convolution, Pooling, LinearAlgebra, Movement, TensorBackend):
    """The reference backend: all primitives by NumPy on the CPU, for every NumPy dtype.

    Methods take and return `numpy.ndarray`. Derive from it and override methods; every other op, gradient, optimizer
    and loss then goes through yours:

    >>> import flnb
    >>> class Counting(flnb.backends.NumpyBackend):
    ...     additions = 0
    ...     def add(self, a, b, out=None):
    ...         self.additions += 1
    ...         return super().add(a, b, out)
    >>> with flnb.use_backend(Counting) as backend:
    ...     y = flnb.ones((3,)) + 1 + 2
    >>> backend.additions
    2
    """

    name: ClassVar[str] = "numpy"
    buffer: ClassVar[str] = "ndarray"
    reads_host: ClassVar[bool] = True
    shares_memory: ClassVar[bool] = True
    plain_buffers: ClassVar[bool] = True
    programs: ClassVar[bool] = True
    whole_dtypes: ClassVar[str] = "fd"
    scalar_results: ClassVar[bool] = True
    location = "host"

    # Buffers

    def kernels(self) -> Any:
        return native()() if find_spec("llvmlite") is not None else None

    def pooling(self, shape: tuple[int, ...], dtype: Any, kernel: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        return pool_places(shape, dtype, kernel, stride) if find_spec("llvmlite") is not None else None

    def libraries(self) -> str:
        return numpys_libraries()

    def own_manager(self) -> Any:
        return _host_manager()

    def from_numpy(self, array: Array, out: Array | None = None) -> Array:
        return into(array, out)

    def to_numpy(self, buffer: Array) -> Array:
        return buffer

    def empty(self, spec: Any, manager: Any, min_block: int, code: int = 0, category: int = 0) -> tuple[Array, int]:
        nbytes = spec.nbytes
        if nbytes < min_block or not nbytes:
            return np.empty(spec.shape, spec.dtype), 0
        if not manager.device.addressable:
            raise refuse_arrays(manager)
        owner = allocate(manager, nbytes, code, category, spec, memory_of)
        return np.ndarray(spec.shape, spec.dtype, owner), owner.block.id

    def base_of(self, buffer: Array) -> Array | None:
        return buffer.base if isinstance(buffer.base, np.ndarray) else None

    def is_contiguous(self, buffer: Array) -> bool:
        return bool(buffer.flags.c_contiguous)

    # Creation

    @unnamed
    def full(self, value: float, out: Array) -> Array:
        out.fill(value)
        return out

    @unnamed
    def arange(self, start: float, step: float, out: Array) -> Array:
        out[...] = start + step * np.arange(out.size)
        return out

    def eye(self, k: int, out: Array) -> Array:
        rows, columns = out.shape
        out[...] = np.eye(rows, columns, k)
        return out

    def empty_like(self, out: Array) -> Array:
        return out

    @unnamed
    def random_uniform(self, low: float, high: float, source: np.random.Generator, out: Array) -> Array:
        if out.dtype in (np.float32, np.float64):
            source.random(out.shape, out.dtype, out)
            if (low, high) == (0.0, 1.0):
                return out
            np.multiply(out, high - low, out)
            np.add(out, low, out)
        else:
            out[...] = source.uniform(low, high, out.shape)
        first, end = np.asarray([low, high], out.dtype)
        if first < end:  # a sum, or a number in half precision, may have been rounded to ``high``
            np.minimum(out, np.nextafter(end, first), out)
        return out

    @unnamed
    def random_mask(self, p: float, source: np.random.Generator, out: Array) -> Array:
        self.random_uniform(0.0, 1.0, source, out)
        least, scale = number(p, out.dtype), number(1.0 / (1.0 - p), out.dtype)
        for (part,) in blocks(0, out):
            np.greater_equal(part, least, part)
            np.multiply(part, scale, part)
        return out

    @unnamed
    def random_normal(self, mean: float, std: float, source: np.random.Generator, out: Array) -> Array:
        out[...] = source.normal(mean, std, out.shape)
        return out

    # Elementwise. NumPy's ufuncs take (x, out) and (a, b, out) as they are.

    negative, positive, abs, sign, conj = np.negative, np.positive, np.absolute, np.sign, np.conjugate
    exp, expm1, log, log1p, log2, log10 = np.exp, np.expm1, np.log, np.log1p, np.log2, np.log10
    sqrt, square, reciprocal = np.sqrt, np.square, np.reciprocal
    sin, cos, tan, asin, acos, atan = np.sin, np.cos, np.tan, np.arcsin, np.arccos, np.arctan
    sinh, cosh, tanh, asinh, acosh, atanh = np.sinh, np.cosh, np.tanh, np.arcsinh, np.arccosh, np.arctanh
    floor, ceil, trunc, round = rounding(np.floor), rounding(np.ceil), rounding(np.trunc), rounding(np.rint)
    isnan, isinf, isfinite, signbit = np.isnan, np.isinf, np.isfinite, np.signbit
    logical_not, bitwise_invert = np.logical_not, np.invert
    add, subtract, multiply, divide = np.add, np.subtract, np.multiply, np.divide
    floor_divide, remainder, pow = np.floor_divide, np.remainder, np.power
    atan2, hypot, logaddexp, copysign, nextafter = np.arctan2, np.hypot, np.logaddexp, np.copysign, np.nextafter
    equal, not_equal, less, less_equal = np.equal, np.not_equal, np.less, np.less_equal
    greater, greater_equal = np.greater, np.greater_equal
    logical_and, logical_or, logical_xor = np.logical_and, np.logical_or, np.logical_xor
    bitwise_and, bitwise_or, bitwise_xor = np.bitwise_and, np.bitwise_or, np.bitwise_xor
    bitwise_left_shift, bitwise_right_shift = np.left_shift, np.right_shift

    def real(self, x: Array, out: Array | None = None) -> Array:
        return self.copy(x.real, out)

    def imag(self, x: Array, out: Array | None = None) -> Array:
        return self.copy(x.imag, out)

    def maximum(self, a: Array, b: Array, out: Array | None = None) -> Array:
        return np.maximum(a, b, out=out)

    def minimum(self, a: Array, b: Array, out: Array | None = None) -> Array:
        return np.minimum(a, b, out=out)

    @quiet
    def erf(self, x: Array, out: Array | None = None) -> Array:
        return erf(x, out)

    def where(self, condition: Array, a: Array, b: Array, out: Array | None = None) -> Array:
        if out is None:
            return np.where(condition, a, b)
        np.copyto(out, b)
        np.copyto(out, a, where=condition)
        return out

    @unnamed
    def astype(self, x: Array, dtype: np.dtype[Any], out: Array | None = None) -> Array:
        return x.astype(dtype) if out is None else into(x, out)

    def copy(self, x: Array, out: Array | None = None) -> Array:
        if out is None:
            return x.copy()
        np.copyto(out, x)
        return out

    @unnamed
    def linear(self, x: Array, weight: Array, *bias_and_out: Any) -> Array:
        *bias, out = bias_and_out
        y = self.matmul(x, weight.T, out)
        return np.add(y, bias[0], y) if bias else y

    # Reductions over a tuple of axes

    sum, prod = _total(np.add.reduce), _total(np.multiply.reduce)
    max, min = _reduce(np.maximum.reduce), _reduce(np.minimum.reduce)
    any, all = _reduce(np.logical_or.reduce), _reduce(np.logical_and.reduce)
    argmax, argmin = _position(np.argmax), _position(np.argmin)

    @quiet
    @in_single
    def cumulative_sum(self, x: Array, axis: int, out: Array | None = None) -> Array:
        return np.cumsum(x, axis=axis, out=out)

    @quiet
    @in_single
    def cumulative_prod(self, x: Array, axis: int, out: Array | None = None) -> Array:
        return np.cumprod(x, axis=axis, out=out)

    # Searching and sorting

    def nonzero(self, x: Array, count: int, out: Array | None = None) -> Array:
        return np.stack(np.nonzero(x), out=out)

    def searchsorted(self, x: Array, values: Array, side: Any, out: Array | None = None) -> Array:
        return into(np.asarray(np.searchsorted(x, values, side)), out)

    def sort(self, x: Array, axis: int, descending: bool, stable: bool, out: Array | None = None) -> Array:
        y = np.sort(x, axis, kind="stable" if stable else None)
        return into(np.flip(y, axis) if descending else y, out)

    def argsort(self, x: Array, axis: int, descending: bool, stable: bool, out: Array | None = None) -> Array:
        kind: Any = "stable" if stable else None
        if not descending:
            return into(np.argsort(x, axis, kind=kind), out)
        order = np.argsort(np.flip(x, axis), axis, kind=kind)  # from the end, so that equal elements keep their order
        return into(x.shape[axis] - 1 - np.flip(order, axis), out)

    def argtopk(self, x: Array, axis: int, k: int, largest: bool, out: Array | None = None) -> Array:
        n = x.shape[axis]
        if not 0 < k < n:
            return into(self.argsort(x, axis, largest, True)[(slice(None),) * axis + (slice(k),)], out)
        first, last = (n - k, n) if largest else (0, k)
        chosen = np.take(np.argpartition(x, first if largest else last - 1, axis), np.arange(first, last), axis)
        chosen.sort(axis)  # by place, so that equal elements keep their order
        order = self.argsort(np.take_along_axis(x, chosen, axis), axis, largest, True)
        return into(np.take_along_axis(chosen, order, axis), out)

    # Movement

    reshape, permute_dims = staticmethod(np.ndarray.reshape), staticmethod(np.ndarray.transpose)
    filled = staticmethod(filled)

    def flip(self, x: Array, axes: tuple[int, ...]) -> Array:
        return np.flip(x, axes) if axes else x  # of a 0-d array, NumPy's is a number, no view

    def broadcast_to(self, x: Array, shape: tuple[int, ...]) -> Array:
        steps = _strides(x.shape, shape, x.itemsize) if x.flags.c_contiguous and x.size else None
        if steps is None:
            return np.broadcast_to(x, shape)
        view: Array = np.ndarray(shape, x.dtype, x, 0, steps)  # at a third of the time
        view.flags.writeable = False
        return view

    def gather(self, x: Array, *arguments: Any) -> Array:
        *indices, key, target = arguments
        axis = _axis(key)
        if len(indices) == 1 and indices[0].dtype.kind == "i" and axis >= 0:
            if not are_positions(indices[0], x.shape[axis]):  # nothing else checks indices in a program
                check_range(indices[0].min(), indices[0].max(), x.shape, axis)
            return np.asarray(x.take(indices[0], axis, target, "wrap"))
        return into(np.asarray(x[decode(key, tuple(indices))]), target)

    @quiet
    def scatter_add(self, g: Array, *arguments: Any) -> Array:
        *indices, shape, key, out = arguments
        if is_half(g):
            return rounded(self.scatter_add(single(g), *indices, shape, key, None), g, out)
        out = filled(0, shape, g.dtype, out)
        if not indices:  # slices: no element is met twice
            out[decode(key, ())] = g
        elif len(indices) == 1 and not _axis(key) and out.flags.c_contiguous:
            self._add_rows(out, indices[0].astype(np.int64, copy=False), g)  # a place may not fit a smaller dtype
        else:
            np.add.at(out, decode(key, tuple(indices)), g)
        return out

    def _add_rows(self, out: Array, rows: Array, g: Array) -> None:
        """Add row i of g to row ``rows[i]`` of ``out``, by flat indices, with which `np.add.at` is 4 times as fast."""
        width, places = math.prod(out.shape[1:]), rows
        if width != 1:
            places = (rows.reshape(-1, 1) % max(len(out), 1)) * width + np.arange(width)
        np.add.at(out.reshape(-1), places.reshape(-1), g.reshape(-1))
