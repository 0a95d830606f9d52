"""Layer norm and batch norm on a CUDA device by kernels; `flnb_backends.tensor.whole` describes the methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_backends.tensor.cuda.reductions import Reductions
from flnb_backends.tensor.cuda.rows import Rows, accumulator, kernel_types

if TYPE_CHECKING:
    from flnb_backends.tensor.cuda.base import Buffer, Out


class Normalization(Reductions):
    """Layer norm and batch norm with their gradients: methods of the cuda backend."""

    def layer_norm(self, x: Buffer, *more: Any, out: Out = None) -> tuple[Buffer, ...]:
        *affine, count, eps = more
        x, first = self.contiguous(x), x.ndim - count
        outer = (*x.shape[:first], *(1,) * count)
        y = self.target(out, 0, x.shape, x.dtype)
        normal = self.target(out, 1, x.shape, x.dtype) if affine else y
        inverse, mean = (self.target(out, i, outer, x.dtype) for i in (2, 3))
        weight, bias = [*map(self.contiguous, affine), 0, 0][:2]
        given = x, weight, bias, y, normal if affine else 0, inverse, mean, accumulator(x.dtype).type(eps)
        self._launch_norm("layer_norm", x, Rows.along(x.shape, first, count), *given)
        return y, normal, inverse, mean

    def layer_norm_pull(self, g: Buffer, x: None, *more: Any, out: Out = None) -> tuple[Buffer, ...]:
        *affine, normal, inverse, _, _, count, _ = more
        first = g.ndim - count
        of_x = self.target(out, 0, g.shape, g.dtype)
        g, normal, inverse, *affine = map(self.contiguous, (g, normal, inverse, *affine))
        weight = affine[0] if affine else 0
        self._launch_norm("layer_norm_pull", g, Rows.along(g.shape, first, count), g, weight, normal, inverse, of_x)
        of_affine = [self.target(out, i + 1, p.shape, g.dtype) for i, p in enumerate(affine)]
        self._sums_of_products(g, normal, tuple(range(first)), of_affine)
        return of_x, *of_affine

    def batch_norm(self, x: Buffer, weight: Buffer, bias: Buffer, eps: float, out: Out = None) -> tuple[Buffer, ...]:
        x, number, channels = self.contiguous(x), accumulator(x.dtype).type, x.shape[1]
        y, normal = (self.target(out, i, x.shape, x.dtype) for i in (0, 1))
        each = 1, channels, *(1,) * (x.ndim - 2)
        inverse, mean, variance = (self.target(out, i, each, x.dtype) for i in (2, 3, 4))
        share, axes, extents = number(channels / x.size), (0, *range(2, x.ndim)), _extents(x)
        self.sum_of(
            x.shape, axes, mean, lambda rows, to: self._launch_norm("shares", x, rows, x, to, share, R=to.dtype)
        )

        def squares(rows: Rows, to: Buffer) -> None:
            self._launch_norm("squares", x, rows, x, mean, to, share, *extents, R=to.dtype)

        self.sum_of(x.shape, axes, variance, squares)
        given = self.contiguous(weight), self.contiguous(bias), mean, variance, y, normal, inverse, number(eps)
        self._launch_norm("batch_norm", x, _rows_of_channels(x), x, *given, *extents)
        return y, normal, inverse, mean, variance

    def batch_norm_pull(
        self, g: Buffer, x: None, weight: Buffer, bias: Buffer, normal: Buffer, inverse: Buffer, mean: Any,
        variance: Any, y: None, eps: float, out: Out = None,
    ) -> tuple[Buffer, ...]:  # fmt: skip
        g, normal, inverse, weight = map(self.contiguous, (g, normal, inverse, weight))
        of_x = self.target(out, 0, g.shape, g.dtype)
        of_weight, of_bias = (self.target(out, i, weight.shape, g.dtype) for i in (1, 2))
        self._sums_of_products(g, normal, (0, *range(2, g.ndim)), [of_weight, of_bias])
        share = accumulator(g.dtype).type(weight.size / g.size)
        given = g, weight, normal, inverse, of_weight, of_bias, of_x, share, *_extents(g)
        self._launch_norm("batch_norm_pull", g, _rows_of_channels(g), *given)
        return of_x, of_weight, of_bias

    def _launch_norm(self, name: str, x: Buffer, rows: Rows, *arguments: Any, R: Any = None) -> None:
        self.launch_rows("normalization", name, kernel_types(x.dtype, R=R or x.dtype), rows, *arguments)

    def _sums_of_products(self, g: Buffer, normal: Buffer, axes: tuple[int, ...], results: list[Buffer]) -> None:
        """Write the gradients of a weight and a bias to ``results``: sums over axes of g times ``normal``, and of g."""

        def products(rows: Rows, to: Buffer) -> None:
            self._launch_norm("products", g, rows, g, normal, to, R=to.dtype)

        if results:
            self.sum_of(g.shape, axes, results[0], products)
        if len(results) == 2:
            self.sum(g, axes, False, results[1])


def _extents(x: Buffer) -> tuple[int, int]:
    """Return the number of channels of an array (N, C, ...), and the number of positions in a channel."""
    return x.shape[1], x.size // (x.shape[0] * x.shape[1])


def _rows_of_channels(x: Buffer) -> Rows:
    """Return the rows of an array (N, C, ...) such that each row has elements of a single channel."""
    channels, positions = _extents(x)
    rows = Rows(1, x.shape[0], channels) if positions == 1 else Rows(x.shape[0] * channels, positions, 1)
    return rows.cut()
