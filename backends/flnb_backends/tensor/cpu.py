"""The tensor backend ``"cpu"``: NumPy, with convolution, max pooling and matrix products by oneDNN where faster."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib.util import find_spec
from time import perf_counter_ns as clock
from typing import Any, ClassVar

import numpy as np
from flnb_telemetry import bus, intern, schema

from flnb.dispatch.quiet import unnamed
from flnb.dispatch.state import use
from flnb.ops.convolution import output
from flnb_backends.native.composites import select
from flnb_backends.native.gemm import Product
from flnb_backends.native.locating import locate
from flnb_backends.native.onednn import OneDnnError, library
from flnb_backends.native.openblas import in_one_thread
from flnb_backends.native.pools import maxima, spread
from flnb_backends.native.preparation import prepares
from flnb_backends.native.prepared import Prepared, Unsuitable, regular
from flnb_backends.native.primitives import WAYS, Laid, prepare
from flnb_backends.native.routines import Routine
from flnb_backends.native.scatter import add_rows
from flnb_backends.native.timing import time_once
from flnb_backends.tensor.choices import KEPT, Choice, Here, Shapes
from flnb_backends.tensor.convolution import Array, Extents, brief_scratch
from flnb_backends.tensor.cpu_composites import Composites
from flnb_backends.tensor.cpu_kernels import Kernels
from flnb_backends.tensor.numpy import NumpyBackend

__all__ = ["Choice", "CpuBackend", "Shapes"]

FLOAT = np.dtype(np.float32)
SMALL = 64**3
"""The number of multiplications of a matrix product below which NumPy is the fastest."""
USES = 16
"""The number of calls of a prepared primitive after which it becomes machine code, a `Routine`."""
LARGEST_COLUMNS = 1 << 26
"""If NumPy's convolution would need more than this many bytes for unrolled windows, it is not tried."""
ALIKE = 1.05
"""The ratio of two times below which they count as equal, so that each run chooses the same way, the first."""
EVERY_WAY = ("numpy", "gemm", "plain", "nhwc", "blocked", "padded")
GUESS, GUESSES = "guess", ("gemm", "nhwc", "plain", "blocked")
"""The setting ``prefer="guess"``, and the ways to compute by oneDNN of which it takes the first possible one."""
NUMPY: Any = object()
COPIED: Any = object()
"""Entries of the cache in place of a primitive: `NUMPY` if NumPy computes an op, `COPIED` to copy operands first."""


_here = Here()
_timing = threading.Lock()  # two threads that time at once would measure each other


class CpuBackend(Composites, Kernels):
    """Tensor backend for CPUs: convolutions, max pooling and matrix products of float32 by oneDNN, the rest by NumPy.

    At the first call with given shapes, the ways to compute an op (NumPy, and oneDNN on several memory layouts) are
    timed. The fastest is used for all further calls; see `choices`. Results of the ways differ in the last digits.
    Arrays whose channels are last in memory (a permuted view) are used without a copy. oneDNN does not multiply weights
    by the zeros of the padding. On the NumPy backend, such a product is NaN if the weight is NaN or infinite.

    Args:
        threads: the number of threads of oneDNN; ``OMP_NUM_THREADS`` or the number of processors by default. If oneDNN
            uses several threads, NumPy's convolutions and matrix products use one thread.
        prefer: one of `EVERY_WAY`: this way is used without timing if it is possible. "guess" uses the first of
            `GUESSES` that is possible. With either, results have the same bits in every process.

    Attributes:
        choices: for each combination of shapes computed in this process, the quickest way, and the time of each way.

    Raises:
        ImportError: cffi or oneDNN is not installed.

    >>> import flnb
    >>> with flnb.use_backend("cpu:threads=1") as backend:
    ...     flnb.conv2d(flnb.ones((1, 4, 8, 8)), flnb.ones((4, 4, 3, 3))).shape
    (1, 4, 6, 6)
    """

    name: ClassVar[str] = "cpu"
    shorthand: ClassVar[str] = "threads"
    choices: ClassVar[dict[Shapes, Choice]] = {}
    threads, prefer = 0, ""  # for a derived class whose __init__ does not call this one's

    def __init__(self, threads: int | str | None = None, prefer: str = "") -> None:
        if prefer not in ("", GUESS, *EVERY_WAY):
            raise ValueError(f"cpu: prefer must be {GUESS} or one of {', '.join(EVERY_WAY)}, got {prefer!r}")
        found = locate()  # the library itself, by cffi, is opened when it is first needed
        self.threads, self.prefer = int(threads or found.threads), prefer
        if self.threads < 1:
            raise ValueError(f"cpu: threads must be at least 1, got {self.threads}")

    def libraries(self) -> str:
        return f"oneDNN {locate()._replace(threads=self.threads or locate().threads)}; {super().libraries()}"

    def conv2d(
        self, x: Array, w: Array, stride: Extents, padding: Extents, dilation: Extents, groups: int,
        out: Array | None = None,
    ) -> Array:  # fmt: skip
        return self._computed("conv", NumpyBackend.conv2d, (x, w), (stride, padding, dilation, groups), out)

    def conv2d_input_grad(
        self, g: Array, w: Array, stride: Extents, padding: Extents, dilation: Extents, groups: int, size: Extents,
        out: Array | None = None,
    ) -> Array:  # fmt: skip
        attributes = stride, padding, dilation, groups, size
        return self._computed("conv_input_grad", NumpyBackend.conv2d_input_grad, (g, w), attributes, out)

    def conv2d_weight_grad(
        self, g: Array, x: Array, stride: Extents, padding: Extents, dilation: Extents, groups: int, kernel: Extents,
        out: Array | None = None,
    ) -> Array:  # fmt: skip
        attributes = stride, padding, dilation, groups, kernel
        return self._computed("conv_weight_grad", NumpyBackend.conv2d_weight_grad, (g, x), attributes, out)

    conv1d = conv3d = conv2d
    conv1d_input_grad = conv3d_input_grad = conv2d_input_grad
    conv1d_weight_grad = conv3d_weight_grad = conv2d_weight_grad

    def max_pool2d(self, x: Array, kernel: Extents, stride: Extents, out: Array | None = None) -> Array:
        if x.ndim == 4 and (made := maxima(x, kernel, stride, out)) is not None:
            return made
        if not _finite(x):
            return super().max_pool2d(x, kernel, stride, out)
        return self._computed("max_pool", NumpyBackend.max_pool2d, (x,), (kernel, stride), out)

    def max_pool2d_grad(self, g: Array, x: Array, kernel: Extents, stride: Extents, out: Array | None = None) -> Array:
        if x.ndim == 4 and (made := spread(g, x, kernel, stride, out)) is not None:
            return made
        if not _finite(x):
            return super().max_pool2d_grad(g, x, kernel, stride, out)
        return self._computed("max_pool_grad", NumpyBackend.max_pool2d_grad, (g, x), (kernel, stride), out)

    max_pool1d = max_pool3d = max_pool2d
    max_pool1d_grad = max_pool3d_grad = max_pool2d_grad

    @unnamed
    def matmul(self, a: Array, b: Array, out: Array | None = None) -> Array:
        if a.dtype is FLOAT and a.size * b.shape[-1] < SMALL and a.ndim == b.ndim:
            return np.matmul(a, b, out)
        if a.dtype != FLOAT or a.size * b.shape[-1] < SMALL:
            return super().matmul(a, b, out)
        if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous and (out is None or out.flags.c_contiguous):
            out = np.empty((*a.shape[:-1], b.shape[1]), FLOAT) if out is None else out
            rows = math.prod(a.shape[:-1])  # one product instead of one of each example
            self._computed("matmul", NumpyBackend.matmul, (a.reshape(rows, -1), b), (), out.reshape(rows, -1))
            return out
        return self._computed("matmul", NumpyBackend.matmul, (a, b), (), out)

    def routine(self, name: str, operands: Sequence[tuple[Any, ...]], attributes: tuple[Any, ...]) -> Routine | None:
        op = ROUTINES.get(name)
        if op is None or any(dtype != FLOAT or 0 in shape for shape, _, dtype in operands):
            return None
        laid = [(shape, steps) for shape, strides, _ in operands if (steps := regular(shape, strides)) is not None]
        if len(laid) < len(operands):
            return None
        dnn = library()
        threads = dnn.granted(self.threads or dnn.threads)
        dnn.use_threads(threads)
        known = self.choices.get(Shapes(op, tuple(laid), attributes, threads))
        ready = _prepared(op, self._wanted(known), laid, attributes) if known or self.prefer else {}
        found = next(iter(ready.values()), None)
        return Routine(found, threads) if isinstance(found, Prepared) else None

    def _wanted(self, known: Choice | None) -> Sequence[str]:
        """Return the names of the ways to try: the way that the user prefers, or the known fastest one, or else all.

        ``known`` is the choice made before for these shapes; None if there is none.
        """
        name = self.prefer or (known.way if known else "")
        return GUESSES if name == GUESS else (name,) if name else EVERY_WAY

    def where(self, condition: Array, a: Array, b: Array, out: Array | None = None) -> Array:
        if out is not None and select(condition, a, b, out):
            return out
        return super().where(condition, a, b, out)

    def _add_rows(self, out: Array, rows: Array, g: Array) -> None:
        if not add_rows(out, rows, g):
            super()._add_rows(out, rows, g)

    def _computed(
        self, op: str, by_numpy: Callable[..., Array], inputs: tuple[Array, ...], attributes: tuple[Any, ...],
        out: Array | None,
    ) -> Array:  # fmt: skip
        """Compute an op by the fastest implementation for its shapes, measured at the first call with them.

        ``by_numpy`` is the NumPy backend's method for the op.
        """
        for x in inputs:
            if (x.dtype is not FLOAT and x.dtype != FLOAT) or not x.size:
                return by_numpy(self, *inputs, *attributes, out)
        if out is None:
            out = np.empty(_result_shape(op, attributes, *[x.shape for x in inputs]), FLOAT)
        dnn = library()
        threads = dnn.granted(self.threads or dnn.threads)
        arrays = *inputs, out
        key = op, attributes, threads, self.prefer, *[x.shape for x in arrays], *[x.strides for x in arrays]
        ready = _here.find(key)
        if type(ready) is Routine:
            if ready.run(arrays, brief_scratch(ready.scratch)):
                return out
            ready = NUMPY
        dnn.use_threads(threads)
        if ready is None:
            if out.dtype != FLOAT or not _apart(arrays):
                ready = NUMPY
            else:
                ready = _here.keep(key, self._ready(by_numpy, op, arrays, attributes, threads))
        if ready is COPIED:
            np.copyto(out, self._computed(op, by_numpy, tuple(x.copy() for x in inputs), attributes, None))
        elif ready is NUMPY or not _run(ready, arrays):
            _by_numpy(threads, by_numpy, self, *inputs, *attributes, out)
        elif type(ready) is Prepared and ready.runs == USES and find_spec("llvmlite") is not None:
            _here.keep(key, _routine(ready, threads))
        return out

    def _ready(
        self, by_numpy: Callable[..., Array], op: str, arrays: tuple[Array, ...], attributes: tuple[Any, ...],
        threads: int,
    ) -> Any:  # fmt: skip
        """Return the chosen implementation of an op on these arrays.

        It is a prepared primitive, `NUMPY` for NumPy's method, or `COPIED` if the operands must be copied first.

        Args:
            by_numpy: the method of the NumPy backend.
            op: the name of the op.
            arrays: the inputs, followed by the result.
            attributes: the op's attributes.
            threads: how many threads oneDNN uses.
        """
        operands = []
        for x in arrays:
            strides = regular(x.shape, x.strides)
            if strides is None:
                return COPIED
            operands.append((x.shape, strides))
        shapes = Shapes(op, tuple(map(DESCRIBED.get(op, tuple), operands)), attributes, threads)
        known = self.choices.get(shapes)
        ready = _prepared(op, self._wanted(known), operands, attributes)
        if known or self.prefer:
            return next(iter(ready.values()), NUMPY)
        ways: dict[str, Any] = {name: partial(_run, made, arrays) for name, made in ready.items()}
        if not ways or _columns(op, arrays, attributes) <= LARGEST_COLUMNS:
            ways["numpy"] = partial(_by_numpy, threads, by_numpy, self, *arrays[:-1], *attributes, arrays[-1])
        began = clock()
        with _timing, use(min_block=sys.maxsize):  # scratch memory of what is tried is none of the program's
            seconds = time_once(ways, threads)
        least = min(seconds.values())
        best = next(way for way in (*ready, "numpy") if seconds.get(way, math.inf) <= ALIKE * least)
        self.choices[shapes] = made = Choice(best, getattr(ready.get(best), "implementation", ""), seconds)
        if bus.lanes is not None:
            told = op, made.way, made.implementation, ", ".join(sorted(seconds))
            name, way, implementation, tried = map(intern.strings.id_of, told)
            bus.emit(schema.CHOICE, began, clock(), name, way, implementation, tried, bus.threads.here.context())
        return ready.get(best, NUMPY)


@prepares
def _prepared(
    op: str, names: Sequence[str], operands: Sequence[Laid], attributes: tuple[Any, ...]
) -> dict[str, Prepared | Product]:
    """Prepare an op in each of the named ways that oneDNN supports; returns the prepared primitives by way."""
    ready: dict[str, Prepared | Product] = {}
    for name in names:
        with suppress(OneDnnError, Unsuitable):
            if name in WAYS[op]:
                ready[name] = prepare(op, name, operands, *attributes)
            elif (op, name) == ("matmul", "gemm") and len(operands[-1][0]) == 2:
                ready[name] = Product(operands)
    return ready


@prepares
def _routine(ready: Prepared, threads: int) -> Routine:
    """Return a prepared primitive as machine code that one call runs."""
    return Routine(ready, threads)


def _by_numpy(threads: int, method: Callable[..., Array], *arguments: Any) -> Array:
    """Call a method of the NumPy backend, single-threaded if oneDNN has threads that would compete."""
    return method(*arguments) if threads == 1 else in_one_thread(method, *arguments)


def _run(ready: Prepared | Product, arrays: tuple[Array, ...]) -> bool:
    """Run a prepared primitive on arrays and return True; if arrays overlap or are unaligned, only return False."""
    addresses = ready.dnn.addresses(arrays)
    *inputs, y = addresses
    *sizes, size = ready.extents
    for x, n in zip(inputs, sizes, strict=True):
        if (x | y) & 3 or (x < y + size and y < x + n):
            return False
    room = brief_scratch(ready.scratch) if ready.scratch else None
    ready.run(addresses, 0 if room is None else ready.dnn.address(room))
    return True


def _apart(arrays: tuple[Array, ...]) -> bool:
    """Return whether arrays are aligned, and the last one shares no memory with the others."""
    *inputs, y = arrays
    return all(x.flags.aligned for x in arrays) and not any(np.may_share_memory(x, y) for x in inputs)


@unnamed
def _finite(x: Array) -> bool:
    """Return whether x's sum of squares is finite; if not, x may have NaN or -inf, which oneDNN's maxima ignore."""
    if x.dtype != FLOAT:
        return False
    flat = x.ravel("K")
    return bool(np.isfinite(np.dot(flat, flat)))


def _conv_shape(x: Extents, w: Extents, stride: Extents, padding: Extents, dilation: Extents, groups: int) -> Extents:
    return (x[0], w[0], *output("conv", x[2:], w[2:], stride, padding, dilation))


def _matmul_shape(a: Extents, b: Extents) -> Extents:
    return (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


def _unpadded(kernel: Extents) -> tuple[Extents, Extents]:
    """Return a padding of zeros and a dilation of ones, with one number for each dimension of a kernel."""
    return (0,) * len(kernel), (1,) * len(kernel)


RESULTS: dict[str, Callable[..., Extents]] = {
    "conv": _conv_shape,
    "conv_input_grad": lambda g, w, *placing: (g[0], w[1] * placing[3], *placing[4]),
    "conv_weight_grad": lambda g, x, *placing: (g[1], x[1] // placing[3], *placing[4]),
    "matmul": _matmul_shape,
    "max_pool": lambda x, kernel, stride: (*x[:2], *output("max_pool", x[2:], kernel, stride, *_unpadded(kernel))),
    "max_pool_grad": lambda g, x, *windows: x,
}
"""The shape of each op's result, given the shapes of its operands and its attributes."""


@lru_cache(KEPT)
def _result_shape(op: str, attributes: tuple[Any, ...], *shapes: Extents) -> Extents:
    return RESULTS[op](*shapes, *attributes)


ROUTINES = {
    f"conv{rank}d{suffix}": f"conv{suffix}" for rank in (1, 2, 3) for suffix in ("", "_input_grad", "_weight_grad")
}
"""The names in `WAYS` of the ops that may be routines of a program."""
PLACES = {"conv": (1, 2), "conv_input_grad": (1, 0), "conv_weight_grad": (2, 0)}
"""The indices of a convolution's weight and output among the operands and the result (the last) of each op."""


def _columns(op: str, arrays: tuple[Array, ...], attributes: tuple[Any, ...]) -> int:
    """Return the bytes of the unrolled windows (im2col) that NumPy's convolution would need; 0 for other ops."""
    if op not in PLACES:
        return 0
    weight, result = (arrays[i].shape for i in PLACES[op])
    return 4 * math.prod(weight[1:]) * attributes[3] * result[0] * math.prod(result[2:])


def _size_class(operand: tuple[Extents, Extents]) -> tuple[Any, ...]:
    """Return the bit lengths of a matrix's extents, and the axis along which its elements are contiguous, if any."""
    shape, strides = operand
    return tuple(n.bit_length() for n in shape), -1 if strides[-1] == 1 else -2 if strides[-2] == 1 else None


DESCRIBED = {"matmul": _size_class}
"""For ops whose operands are not described by shape and strides in `Shapes`, the function that describes an operand."""
