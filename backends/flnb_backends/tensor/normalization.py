"""Layer norm and batch norm in one method each, called as `flnb_backends.tensor.whole` describes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flnb.dispatch.quiet import quiet_methods
from flnb_backends.tensor.rows import Array, Out, blocks, channel_sums, column_sums, examples, number, row_means, target


@quiet_methods
class Normalization:
    """Layer norm and batch norm with their gradients: methods of the NumPy backend."""

    def layer_norm(self, x: Array, *more: Any, out: Out = None) -> tuple[Array, ...]:
        *affine, count, eps = more
        dtype, outer = x.dtype, (*x.shape[: x.ndim - count], *(1,) * count)
        y = target(out, 0, x.shape, dtype)
        normal = target(out, 1, x.shape, dtype) if affine else y
        inverse, mean = target(out, 2, outer, dtype), target(out, 3, outer, dtype)
        width = math.prod(x.shape[x.ndim - count :])
        least, scale = number(_added(eps) * width, dtype), number(width, dtype)
        first, means, inverses = 0, mean.reshape(-1, 1), inverse.reshape(-1)
        flat = [parameter.reshape(-1) for parameter in affine]
        if not width:
            mean.fill(math.nan)
            inverse.fill(math.nan)
        for a, b, c in blocks(count, x, y, normal):
            last = first + len(a)
            np.subtract(a, row_means(a, means[first:last]), c)
            i = np.vecdot(c, c, inverses[first:last])
            np.sqrt(np.divide(scale, np.add(i, least, i), i), i)
            np.multiply(c, i[:, None], c)
            if affine:
                np.multiply(c, flat[0], b)
            if len(affine) == 2:
                np.add(b, flat[1], b)
            first = last
        return y, normal, inverse, mean

    def layer_norm_pull(self, g: Array, x: None, *more: Any, out: Out = None) -> tuple[Array, ...]:
        *affine, normal, inverse, _, _, count, _ = more
        of_x = target(out, 0, g.shape, g.dtype)
        of_affine = [target(out, i + 1, p.shape, g.dtype) for i, p in enumerate(affine)]
        inverses, first = inverse.reshape(-1, 1), 0
        if affine:
            row = affine[0].reshape(-1)
            column = np.multiply(row, number(1.0 / (row.size or 1), row.dtype)).reshape(-1, 1)
        if not g.size:
            for total in of_affine:
                total.fill(0)
        for a, b, c in blocks(count, g, normal, of_x):
            product, last = np.multiply(a, b), first + len(a)
            if affine:
                _add_columns((product, a), of_affine, first)
                along, projected = np.dot(a, column), np.dot(product, column)
                a = np.multiply(a, row, c)
            else:
                along, projected = row_means(a), row_means(product)
            np.subtract(a, along, c)
            np.subtract(c, np.multiply(b, projected, product), c)
            np.multiply(c, inverses[first:last], c)
            first = last
        return of_x, *of_affine

    def batch_norm(self, x: Array, weight: Array, bias: Array, eps: float, out: Out = None) -> tuple[Array, ...]:
        dtype, each = x.dtype, (1, x.shape[1], *(1,) * (x.ndim - 2))
        y, normal = target(out, 0, x.shape, dtype), target(out, 1, x.shape, dtype)
        inverse, mean, variance = [target(out, i, each, dtype) for i in (2, 3, 4)]
        share = number(x.shape[1] / x.size if x.size else math.nan, dtype)
        np.multiply(channel_sums(x), share, mean.reshape(-1))
        total: Any = None
        for a, b, c in examples(x, y, normal):
            part = channel_sums(np.square(np.subtract(a, mean, c), b))
            total = part if total is None else np.add(total, part, total)
        np.multiply(total, share, variance.reshape(-1))
        np.add(variance, number(_added(eps), dtype), inverse)
        np.sqrt(np.divide(number(1.0, dtype), inverse, inverse), inverse)
        factor, shift = weight.reshape(each), bias.reshape(each)
        for b, c in examples(y, normal):
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
        of_weight, of_bias = target(out, 1, weight.shape, dtype), target(out, 2, weight.shape, dtype)
        total: Any = None
        for a, b, c in examples(g, normal, of_x):
            part = channel_sums(np.multiply(a, b, c), of_weight if total is None else None)
            total = part if total is None else np.add(total, part, total)
        channel_sums(g, of_bias)
        share = number(weight.size / g.size if g.size else math.nan, dtype)
        projected, along = np.multiply(of_weight, share).reshape(each), np.multiply(of_bias, share).reshape(each)
        scale = np.multiply(inverse, weight.reshape(each))
        for a, b, c in examples(g, normal, of_x):
            np.multiply(b, projected, c)
            np.add(c, along, c)
            np.subtract(a, c, c)
            np.multiply(c, scale, c)
        return of_x, of_weight, of_bias


def _added(eps: float) -> float:
    """Return the number to add to variances: NaN if ``eps`` is -inf, else ``eps``.

    The methods here compute sqrt(1 / (variance + eps)) instead of 1 / sqrt(variance + eps). If ``eps`` is -inf, the
    former is -0 and the latter is NaN. Adding NaN to the variance makes both equal.
    """
    return math.nan if eps == -math.inf else eps


def _add_columns(parts: tuple[Array, ...], totals: list[Array], first: int) -> None:
    """Add the column sums of arrays ``parts`` (n, m) to ``totals`` (m,), or replace the totals if ``first`` is 0.

    ``first`` is the number of the first row, so 0 stands for the first block of rows.
    """
    for part, total in zip(parts, totals, strict=False):
        flat = total.reshape(-1)
        if first:
            np.add(flat, column_sums(part), flat)
        else:
            column_sums(part, flat)
