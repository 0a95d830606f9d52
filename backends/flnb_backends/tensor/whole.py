"""Composites and their gradients as single NumPy methods, with fewer passes over memory than op by op.

A method has its composite's name and takes the buffers of the inputs, the attributes, and ``out``: a tuple of
C-contiguous buffers to write (each may be None), or None. It returns ``(result, *kept)``; ``kept`` has the values that
are saved for the gradient. The method of the gradient, ``NAME_pull``, takes the cotangent of the result, the inputs,
the kept values, the result and the attributes; values that it does not read may be None. It returns a cotangent for
each input, None for inputs without one.

All methods are for float32 and float64. No method makes a temporary as large as a large input: inputs are processed in
blocks that fit into the cache, with the buffers of the results as scratch memory. Sums of rows are matrix products with
ones by BLAS, which take a third of the time of `np.add.reduce`. Numbers are arrays without dimensions, which ufuncs
take without a conversion.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.dtypes import are_positions
from flnb.dispatch.quiet import quiet_methods
from flnb_backends.tensor.erf import normal_distribution
from flnb_backends.tensor.normalization import Normalization
from flnb_backends.tensor.rows import Array, Out, blocks, blocks_along, number, row_maxima, row_sums, target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CUBIC, ROOT_EIGHT_OVER_PI = 0.044715, math.sqrt(8.0 / math.pi)


@quiet_methods
class Activations:
    """Methods of the NumPy backend for activation functions and their gradients."""

    def relu(self, x: Array, out: Out = None) -> tuple[Array, ...]:
        y = target(out, 0, x.shape, x.dtype)
        if x.size < 2048:
            return (np.maximum(x, number(0.0, x.dtype), out=y),)
        return (x.clip(number(0.0, x.dtype), number(math.inf, x.dtype), y),)  # a third of the time of the maximum

    def relu_pull(self, g: Array, x: None, y: Array, out: Out = None) -> tuple[Array, ...]:
        of_x = target(out, 0, y.shape, y.dtype)
        np.greater(y, number(0.0, y.dtype), out=of_x)
        return (np.multiply(of_x, g, of_x),)

    def sigmoid(self, x: Array, out: Out = None) -> tuple[Array, ...]:
        y = target(out, 0, x.shape, x.dtype)
        for a, b in blocks(0, x, y):
            _sigmoid(a, 0.5, b)
        return (y,)

    def sigmoid_pull(self, g: Array, x: None, y: Array, out: Out = None) -> tuple[Array, ...]:
        of_x = target(out, 0, y.shape, y.dtype)
        one = number(1.0, y.dtype)
        for a, b, c in blocks(0, y, g, of_x):
            np.subtract(one, a, c)
            np.multiply(c, a, c)
            np.multiply(c, b, c)
        return (of_x,)

    def swish(self, x: Array, beta: float, out: Out = None) -> tuple[Array, ...]:
        y, gate = target(out, 0, x.shape, x.dtype), target(out, 1, x.shape, x.dtype)
        for a, b, c in blocks(0, x, y, gate):
            _sigmoid(a, 0.5 * beta, c)
            np.multiply(a, c, b)
        return y, gate

    def swish_pull(self, g: Array, x: Any, gate: Array, y: Array, beta: float, out: Out = None) -> tuple[Array, ...]:
        of_x = target(out, 0, y.shape, y.dtype)
        one, factor = number(1.0, y.dtype), number(beta, y.dtype)
        for a, b, c, d in blocks(0, gate, y, g, of_x):
            np.subtract(one, a, d)
            np.multiply(d, b, d)
            if beta != 1.0:
                np.multiply(d, factor, d)
            np.add(d, a, d)
            np.multiply(d, c, d)
        return (of_x,)

    def gelu(self, x: Array, out: Out = None) -> tuple[Array, ...]:
        y, below = target(out, 0, x.shape, x.dtype), target(out, 1, x.shape, x.dtype)
        for a, b, c in blocks(0, x, y, below):
            normal_distribution(a, c, b)  # y is its scratch memory
            np.multiply(a, c, b)
        return y, below

    def gelu_pull(self, g: Array, x: Array, below: Array, y: None, out: Out = None) -> tuple[Array, ...]:
        of_x = target(out, 0, x.shape, x.dtype)
        half, scale = number(-0.5, x.dtype), number((2.0 * math.pi) ** -0.5, x.dtype)
        for a, b, c, d in blocks(0, x, below, g, of_x):
            np.square(a, d)
            np.multiply(d, half, d)
            np.exp(d, d)
            np.multiply(d, scale, d)
            np.multiply(d, a, d)
            np.add(d, b, d)
            np.multiply(d, c, d)
        return (of_x,)

    def gelu_tanh(self, x: Array, out: Out = None) -> tuple[Array, ...]:
        y, gate = target(out, 0, x.shape, x.dtype), target(out, 1, x.shape, x.dtype)
        one, cubic = number(1.0, x.dtype), number(CUBIC, x.dtype)
        for a, b, c in blocks(0, x, y, gate):
            np.square(a, b)
            np.multiply(b, cubic, b)
            np.add(b, one, b)
            np.multiply(b, a, b)
            _sigmoid(b, 0.5 * ROOT_EIGHT_OVER_PI, c)
            np.multiply(a, c, b)
        return y, gate

    def gelu_tanh_pull(self, g: Array, x: Array, gate: Array, y: None, out: Out = None) -> tuple[Array, ...]:
        """Return g * gate * (1 + x (1 - gate) z'), where gate = sigmoid(z) is the value kept by the forward method."""
        of_x = target(out, 0, x.shape, x.dtype)
        one, linear = number(1.0, x.dtype), number(ROOT_EIGHT_OVER_PI, x.dtype)
        cubic = number(3.0 * CUBIC * ROOT_EIGHT_OVER_PI, x.dtype)
        for a, b, c, d in blocks(0, x, gate, g, of_x):
            np.square(a, d)
            np.multiply(d, cubic, d)
            np.add(d, linear, d)
            np.multiply(d, a, d)
            np.multiply(d, np.subtract(one, b), d)
            np.add(d, one, d)
            np.multiply(d, b, d)
            np.multiply(d, c, d)
        return (of_x,)


def _sigmoid(x: Array, half: float, out: Array) -> None:
    """Write sigmoid(2 * half * x) to ``out``, computed as (tanh(half * x) + 1) / 2."""
    np.multiply(x, number(half, x.dtype), out)
    np.tanh(out, out)
    np.add(out, number(1.0, x.dtype), out)
    np.multiply(out, number(0.5, x.dtype), out)


def _lines(axis: int, *arrays: Array) -> tuple[Iterable[Any], Callable[[Array], Array], Callable[[Array], Array]]:
    """Return the arrays in blocks, and functions that compute maxima and sums of a block along the arrays' ``axis``."""
    if axis == arrays[0].ndim - 1:
        return blocks(1, *arrays), row_maxima, row_sums
    maxima, sums = (partial(ufunc.reduce, axis=1, keepdims=True) for ufunc in (np.maximum, np.add))
    return blocks_along(axis, *arrays), maxima, sums


def _log_softmax(x: Array, y: Array) -> None:
    """Write the logarithm of the softmax of each row of x (n, m) to y."""
    np.subtract(x, row_maxima(x), y)
    total = row_sums(np.exp(y))
    np.subtract(y, np.log(total, total), y)


@quiet_methods
class Softmax:
    """Methods of the NumPy backend for softmax, log_softmax, cross entropy and their gradients, along any axis."""

    def softmax(self, x: Array, axis: int, out: Out = None) -> tuple[Array, ...]:
        y = target(out, 0, x.shape, x.dtype)
        parts, maxima, sums = _lines(axis, x, y)
        for a, b in parts:
            np.subtract(a, maxima(a), b)
            np.exp(b, b)
            np.divide(b, sums(b), b)
        return (y,)

    def softmax_pull(self, g: Array, x: None, y: Array, axis: int, out: Out = None) -> tuple[Array, ...]:
        of_x = target(out, 0, y.shape, y.dtype)
        if axis == y.ndim - 1:
            for a, b, c in blocks(1, g, y, of_x):
                np.subtract(a, np.vecdot(a, b)[:, None], c)
                np.multiply(c, b, c)
            return (of_x,)
        for a, b, c in blocks_along(axis, g, y, of_x):
            np.multiply(a, b, c)
            np.subtract(a, np.add.reduce(c, axis=1, keepdims=True), c)
            np.multiply(c, b, c)
        return (of_x,)

    def log_softmax(self, x: Array, axis: int, out: Out = None) -> tuple[Array, ...]:
        y = target(out, 0, x.shape, x.dtype)
        if axis == x.ndim - 1:
            for a, b in blocks(1, x, y):
                _log_softmax(a, b)
            return (y,)
        for a, b in blocks_along(axis, x, y):  # which may be as large as x: no block gets a temporary
            top = np.maximum.reduce(a, axis=1, keepdims=True)
            np.exp(np.subtract(a, top, b), b)
            total = np.add.reduce(b, axis=1, keepdims=True)
            np.subtract(np.subtract(a, top, b), np.log(total, total), b)
        return (y,)

    def log_softmax_pull(self, g: Array, x: None, y: Array, axis: int, out: Out = None) -> tuple[Array, ...]:
        of_x = target(out, 0, y.shape, y.dtype)
        parts, _, sums = _lines(axis, g, y, of_x)
        for a, b, c in parts:
            np.multiply(np.exp(b, c), sums(a), c)
            np.subtract(a, c, c)
        return (of_x,)

    def cross_entropy(self, x: Array, targets: Array, reduction: str, out: Out = None) -> tuple[Array, ...]:
        n, classes = x.shape
        if not are_positions(targets, classes):  # in a program, nobody has seen these targets before
            raise IndexError(
                f"cross_entropy: labels go from {targets.min()} to {targets.max()}, but the scores have {classes} "
                f"classes: labels must be between 0 and {classes - 1}"
            )
        log_p = target(out, 1, x.shape, x.dtype)
        for a, b in blocks(1, x, log_p):
            _log_softmax(a, b)
        losses = log_p.reshape(-1).take(_places(targets, n, classes))
        if reduction == "none":
            return np.negative(losses, target(out, 0, (n,), x.dtype)), log_p
        factor = -1.0 if reduction == "sum" else -1.0 / n if n else math.nan
        y = target(out, 0, (), x.dtype)
        return np.multiply(np.add.reduce(losses), number(factor, x.dtype), y), log_p

    def cross_entropy_pull(
        self, g: Array, x: None, targets: Array, log_p: Array, y: None, reduction: str, out: Out = None
    ) -> tuple[Array | None, ...]:
        n, classes = log_p.shape
        of_x = target(out, 0, log_p.shape, log_p.dtype)
        each = g.reshape(n, 1) if reduction == "none" else g
        if reduction == "mean":
            each = np.multiply(g, number(1.0 / max(n, 1), g.dtype))
        one, first = number(1.0, log_p.dtype), 0
        for a, b in blocks(1, log_p, of_x):
            np.exp(a, b)
            rows = slice(first, first + len(a))
            places, flat = _places(targets[rows], len(a), classes), b.reshape(-1)
            flat[places] = np.subtract(flat.take(places), one)
            np.multiply(b, each[rows] if reduction == "none" else each, b)
            first += len(a)
        return of_x, None


def _places(targets: Array, n: int, classes: int) -> Array:
    """Return, for each of n targets (numbers of classes), the index of its score in flattened scores (n, classes)."""
    places: Array = np.arange(0, n * classes, classes)
    np.add(places, targets, places, casting="unsafe")  # unsigned targets, too
    return places


class Whole(Activations, Softmax, Normalization):
    """The methods of the NumPy backend for all composites that it computes in one method each."""
