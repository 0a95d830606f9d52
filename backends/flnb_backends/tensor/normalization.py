"""Layer norm and batch norm whole; `flnb_backends.tensor.whole` says how their methods are called."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from flnb_backends.tensor.rows import PIECE, Array, Out, blocks, channel_sums, column_sums, number, row_sums, target

__all__ = ["Normalization"]


class Normalization:
    """Normalised values by the statistics of rows (layer norm) and of channels (batch norm)."""

    def layer_norm(self, x: Array, *more: Any, out: Out = None) -> tuple[Array, ...]:
        *affine, count, eps = more
        dtype, outer = x.dtype, (*x.shape[: x.ndim - count], *(1,) * count)
        y = target(out, 0, x.shape, dtype)
        normal = target(out, 1, x.shape, dtype) if affine else y
        inverse, mean = target(out, 2, outer, dtype), target(out, 3, outer, dtype)
        width = math.prod(x.shape[x.ndim - count :])
        share, least, scale = number(1.0 / (width or 1), dtype), number(eps * width, dtype), number(width, dtype)
        first, means, inverses = 0, mean.reshape(-1, 1), inverse.reshape(-1)
        flat = [parameter.reshape(-1) for parameter in affine]
        if not width:
            mean.fill(math.nan)
            inverse.fill(math.nan)
        for a, b, c in blocks(count, x, y, normal):
            rows = slice(first, first + len(a))
            m = row_sums(a, means[rows])
            np.multiply(m, share, m)
            np.subtract(a, m, c)
            i = np.vecdot(c, c, inverses[rows])
            np.add(i, least, i)
            np.divide(scale, i, i)
            np.sqrt(i, i)
            np.multiply(c, i[:, None], c)
            if affine:
                np.multiply(c, flat[0], b)
            if len(affine) == 2:
                np.add(b, flat[1], b)
            first += len(a)
        return y, normal, inverse, mean

    def layer_norm_pull(self, g: Array, x: None, *more: Any, out: Out = None) -> tuple[Array, ...]:
        *affine, normal, inverse, _, _, count, _ = more
        dtype, width = g.dtype, math.prod(g.shape[g.ndim - count :])
        of_x = target(out, 0, g.shape, dtype)
        of_affine = [target(out, i + 1, p.shape, dtype) for i, p in enumerate(affine)]
        sums = [total.reshape(-1) for total in of_affine]
        share, inverses, first = number(1.0 / (width or 1), dtype), inverse.reshape(-1, 1), 0
        row, column = [affine[0].reshape(shape) for shape in (-1, (-1, 1))] if affine else [None, None]
        for total in sums:
            total.fill(0)
        for a, b, c in blocks(count, g, normal, of_x):
            product = np.multiply(a, b)
            if affine:
                along, projected = np.dot(a, column), np.dot(product, column)
                for total, part in zip(sums, (product, a), strict=False):
                    np.add(total, column_sums(part), total)
                np.multiply(a, row, c)
                a = c
            else:
                along, projected = row_sums(a), row_sums(product)
            np.multiply(along, share, along)
            np.multiply(projected, share, projected)
            np.subtract(a, along, c)
            np.subtract(c, np.multiply(b, projected, product), c)
            np.multiply(c, inverses[first : first + len(b)], c)
            first += len(b)
        return of_x, *of_affine

    def batch_norm(self, x: Array, weight: Array, bias: Array, eps: float, out: Out = None) -> tuple[Array, ...]:
        dtype, each = x.dtype, (1, x.shape[1], *(1,) * (x.ndim - 2))
        y, normal = (target(out, i, x.shape, dtype) for i in (0, 1))
        inverse, mean, variance = (target(out, i, each, dtype) for i in (2, 3, 4))
        share = number(x.shape[1] / x.size if x.size else math.nan, dtype)
        np.multiply(channel_sums(x), share, mean.reshape(-1))
        total: Any = 0.0
        for a, b, c in _examples(x, y, normal):
            np.subtract(a, mean, c)
            total = total + channel_sums(np.square(c, b))
        np.multiply(total, share, variance.reshape(-1))
        np.add(variance, number(eps, dtype), inverse)
        np.sqrt(np.divide(number(1.0, dtype), inverse, inverse), inverse)
        factor, shift = weight.reshape(each), bias.reshape(each)
        for b, c in _examples(y, normal):
            np.multiply(c, inverse, c)
            np.multiply(c, factor, b)
            np.add(b, shift, b)
        return y, normal, inverse, mean, variance

    def batch_norm_pull(
        self, g: Array, x: None, weight: Array, bias: Array, normal: Array, inverse: Array, mean: Any, variance: Any,
        y: None, eps: float, out: Out = None,
    ) -> tuple[Array, ...]:  # fmt: skip
        dtype, each = g.dtype, inverse.shape
        of_x = target(out, 0, g.shape, dtype)
        of_weight, of_bias = (target(out, i, weight.shape, dtype) for i in (1, 2))
        total: Any = 0.0
        for a, b, c in _examples(g, normal, of_x):
            total = total + channel_sums(np.multiply(a, b, c))
        np.copyto(of_weight, total)
        np.copyto(of_bias, channel_sums(g))
        share = number(weight.size / g.size if g.size else math.nan, dtype)
        projected, along = (np.multiply(part, share).reshape(each) for part in (of_weight, of_bias))
        scale = np.multiply(inverse, weight.reshape(each))
        for a, b, c in _examples(g, normal, of_x):
            np.multiply(b, projected, c)
            np.add(c, along, c)
            np.subtract(a, c, c)
            np.multiply(c, scale, c)
        return of_x, of_weight, of_bias


def _examples(*arrays: Array) -> Iterable[Any]:
    """Arrays (N, ...) as blocks of examples."""
    first = arrays[0]
    if first.nbytes <= PIECE:
        return (arrays,)
    step = max(1, PIECE * len(first) // first.nbytes)
    return ([a[i : i + step] for a in arrays] for i in range(0, len(first), step))
