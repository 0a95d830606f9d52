"""Batch normalization with statistics over the batches of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch import state
from flnb.dispatch.groups import current
from flnb.distributed.collectives import all_gather, all_reduce, communicating
from flnb.nn.norm import BatchNorm
from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.creation import full, zeros
from flnb.ops.movement import concat, reshape

if TYPE_CHECKING:
    from flnb.nn.module import Module


class SyncBatchNorm(BatchNorm):
    """`flnb.nn.BatchNorm` with mean and variance over the batches of all ranks, in forward and backward.

    In training mode all ranks must call the module. Their batches may have different numbers of rows, also none. Inputs
    in half precision are computed in float32. ``SyncBatchNorm.convert(net)`` converts every `BatchNorm` in a module.

    Raises:
        ValueError: x has another number of channels, or the ranks have fewer than two values per channel together.
        CollectiveError: as `flnb.distributed.all_reduce`.

    >>> import flnb
    >>> def normalise():
    ...     x = flnb.asarray([[1.0]]) + 2.0 * flnb.distributed.rank()
    ...     return round(flnb.distributed.SyncBatchNorm(1)(x).item(), 3)
    >>> flnb.distributed.run_threads(2, normalise)
    [-1.0, 1.0]
    """

    @staticmethod
    def convert(module: Module) -> Module:
        """Convert every `BatchNorm` of a module to `SyncBatchNorm`, in place; returns the module."""
        for _, part in module.named_modules():
            if type(part) is BatchNorm:
                part.__class__ = SyncBatchNorm
        return module

    def forward(self, x: Any) -> Any:
        if not self.training or current().size == 1:
            return super().forward(x)
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise ValueError(f"SyncBatchNorm: expected x (N, {self.num_features}, ...), got {x.shape}")
        wide = e.astype(x, np.float32) if x.dtype.itemsize == 2 else x
        found = _batch_statistics(wide)
        shape = (1, self.num_features, *(1,) * (x.ndim - 2))
        mean, variance = found[0], found[1]
        scale = self.weight / e.sqrt(variance + self.eps)
        y = (wide - reshape(mean, shape)) * reshape(scale, shape) + reshape(self.bias, shape)
        with state.use(grad=False):
            count = float(found[2, 0])
            if count < 2:
                raise ValueError(f"SyncBatchNorm: training needs more than one value per channel, got shape {x.shape}")
            for running, batch, share in (
                (self.running_mean, mean, self.momentum),
                (self.running_var, variance, self.momentum * count / (count - 1)),
            ):
                e.multiply(running, 1.0 - self.momentum, out=running)
                e.add(running, e.astype(batch, running.dtype) * share, out=running)
        return e.astype(y, x.dtype, copy=False)


@communicating
def _batch_statistics(x: Any) -> Any:
    """Return a tensor (3, C): for each channel, mean and variance over all ranks, and the number of values averaged."""
    axes, channels = (0, *range(2, x.ndim)), x.shape[1]
    count = x.size // channels
    if count:
        mean = r.mean(x, axes)
        centred = x - reshape(mean, (1, channels, *(1,) * (x.ndim - 2)))
        mine = [mean, r.sum(e.square(centred), axes)]
    else:
        mine = [zeros((channels,), x.dtype)] * 2
    rows = [reshape(row, (1, channels)) for row in (*mine, full((channels,), count, x.dtype))]
    everyone = all_gather(concat(rows))  # (ranks, 3, C)
    means, squares, counts = everyone[:, 0], everyone[:, 1], everyone[:, 2]
    total = r.sum(counts, 0)
    mean = r.sum(means * counts, 0) / total
    variance = (r.sum(squares, 0) + r.sum(e.square(means - mean) * counts, 0)) / total  # Chan et al., 1983, formula 2.1
    return concat([reshape(row, (1, channels)) for row in (mean, variance, total)])


@_batch_statistics.def_vjp
def _(g: Any, y: Any, x: Any) -> Any:
    g = all_reduce(g) / y[2]
    shape = (1, x.shape[1], *(1,) * (x.ndim - 2))
    return reshape(g[0], shape) + (x - reshape(y[0], shape)) * reshape(2.0 * g[1], shape)
