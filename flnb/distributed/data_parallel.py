"""Data parallel training: every rank has the whole model and a part of the batch; gradients are averaged over ranks.

Li et al., 2020, "PyTorch Distributed", section 3: gradients are exchanged in buckets, in the reverse order of the
parameters, while the backward pass still computes others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.quantity import bytes_of
from flnb_telemetry.withblock import with_block

from flnb.autograd.arrivals import listen, unlisten
from flnb.autograd.variable import Variable
from flnb.dispatch import crossing
from flnb.dispatch.communication import Pending, current, run, start
from flnb.dispatch.plan import spec_of
from flnb.distributed.collectives import broadcast
from flnb.nn.module import Module
from flnb.ops.creation import empty
from flnb.ops.elementwise import assign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flnb.interface.tape import Node
    from flnb.nn.module import Parameter

__all__ = ["DataParallel"]


class Bucket:
    """Gradients that are exchanged together: one flat buffer, in which each parameter has its part.

    Attributes:
        parameters: of one dtype, in the order of their parts.
        views: the parts, shaped like the parameters.
        missing: the numbers of the leaves whose gradients have not come yet in this pass.
        half: whether gradients are divided before they are summed, since the sum could overflow.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = list(parameters)
        self.sizes = [p.size for p in parameters]
        self.numbers = [p._node[2] for p in parameters]  # of their leaves
        self.views: dict[int, Any] = {}
        self.missing: set[int] = set()
        self.half = self.parameters[0].dtype.itemsize == 2
        self.flat: Any = None
        self.pending: Pending | None = None

    def begin(self) -> None:
        """Make the buffer new for a pass: gradients of the pass before may still be in use."""
        self.flat = empty((sum(self.sizes),), self.parameters[0].dtype)
        ends = np.cumsum(self.sizes)
        self.views = {
            number: self.flat._data[end - size : end].reshape(p.shape)
            for number, p, size, end in zip(self.numbers, self.parameters, self.sizes, ends, strict=True)
        }
        self.missing = set(self.views)
        self.pending = None


class DataParallel(Module):
    """A module whose gradients are averaged over all ranks in every backward pass.

    Every rank wraps the same module, calls it on its own part of the batch, and takes the same number of steps. At the
    start all ranks get the parameters and buffers of rank 0. A parameter that this rank did not use counts as zero; one
    that no rank used keeps no gradient. Every rank's backward must reach at least one of the parameters.

    Args:
        module: the module to train.
        bucket: how many bytes of gradients are exchanged at once, such as ``"25MiB"``; None: each one alone.
        deterministic: build the sum of a reduce-scatter and an all-gather, as `Sharded` does, so that both give the
            same bits.

    >>> import flnb, flnb.nn as nn
    >>> def train():
    ...     net = flnb.distributed.DataParallel(nn.Linear(2, 1, bias=False))
    ...     x = flnb.ones((1, 2)) * (flnb.distributed.rank() + 1.0)
    ...     net(x).sum().backward()
    ...     return net.module.weight.grad.tolist()
    >>> flnb.distributed.run_threads(2, train)
    [[[1.5, 1.5]], [[1.5, 1.5]]]

    Raises:
        CollectiveError: in backward, as `flnb.distributed.all_reduce`.
    """

    def __init__(self, module: Module, bucket: int | str | None = "25MiB", deterministic: bool = False) -> None:
        self.module, self.deterministic = module, deterministic
        self._exchange = True
        self._most = 0 if bucket is None else bytes_of(bucket, "DataParallel(bucket=...)")
        for tensor in [*module.parameters(), *(b for _, b in module.named_buffers())]:
            plain = tensor.data if isinstance(tensor, Variable) else tensor
            assign(plain, broadcast(plain))
        self._buckets = self._divided()
        self.leaves = {number for bucket in self._buckets for number in bucket.numbers}
        self._used: dict[int, int] = {}
        self._next = 0
        if current().size > 1:
            listen(self)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the module."""
        return self.module(*inputs, **options)

    def close(self) -> None:
        """Exchange gradients no more."""
        unlisten(self)

    @with_block
    def no_sync(self) -> Iterator[None]:
        """Add gradients up on each rank inside the block, without an exchange; the first pass after it exchanges all.

        >>> import flnb, flnb.nn as nn
        >>> net = flnb.distributed.DataParallel(nn.Linear(2, 1))
        >>> with net.no_sync():
        ...     net(flnb.ones((1, 2))).sum().backward()
        >>> net(flnb.ones((1, 2))).sum().backward()
        >>> net.module.weight.grad.tolist()
        [[2.0, 2.0]]
        """
        before, self._exchange = self._exchange, False
        try:
            yield
        finally:
            self._exchange = before

    def _divided(self) -> list[Bucket]:
        """The parameters in buckets, the last ones first, as their gradients come."""
        groups: list[list[Parameter]] = []
        for parameter in reversed([p for p in self.module.parameters() if p.requires_grad]):
            group = groups[-1] if groups else None
            full = group is None or sum(p.nbytes for p in group) + parameter.nbytes > self._most
            if group is None or full or group[0].dtype != parameter.dtype:
                groups.append([parameter])
            else:
                group.append(parameter)
        return [Bucket(group) for group in groups]

    # What a backward pass tells

    def began(self) -> None:
        """Empty the buckets."""
        if self._exchange:
            self._used = dict.fromkeys(self.leaves, 0)
            self._next = 0
            for bucket in self._buckets:
                bucket.begin()

    def arrived(self, leaf: Node, gradient: Any) -> None:
        """Put a gradient into its bucket, and exchange the buckets that are full."""
        if not self._exchange:
            return
        self._put(leaf, gradient._data)
        self._used[leaf[2]] = 1
        self._start_full()

    def _put(self, leaf: Node, gradient: Any) -> None:
        """Write a gradient, with what was added up before, into its part of a bucket."""
        bucket = next(b for b in self._buckets if leaf[2] in b.views)
        view, old = bucket.views[leaf[2]], leaf[3]
        if old is not None:
            np.add(old._data, gradient, out=view)
        else:
            np.copyto(view, gradient)
        if bucket.half:
            np.divide(view, current().size, out=view)
        bucket.missing.discard(leaf[2])

    def _start_full(self) -> None:
        """Start the exchange of full buckets, in the same order on all ranks."""
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            bucket = self._buckets[self._next]
            if not self.deterministic:
                bucket.pending = start("all_reduce", bucket.flat._data, "sum", bucket=self._next)
            self._next += 1

    def ended(self) -> None:
        """Exchange what is left, and give every parameter the average."""
        if not self._exchange:
            return
        for bucket in self._buckets:
            for number, parameter in zip(bucket.numbers, bucket.parameters, strict=True):
                if number in bucket.missing:
                    old = parameter.grad
                    self._used[number] = int(old is not None)
                    view = bucket.views[number]
                    np.copyto(view, 0 if old is None else old._data)
                    if bucket.half:
                        np.divide(view, current().size, out=view)
            bucket.missing.clear()
        self._start_full()
        order = [number for bucket in self._buckets for number in bucket.numbers]
        used = np.array([self._used[number] for number in order], np.uint8)
        run("all_reduce", used, "max")
        known, size = dict(zip(order, used.tolist(), strict=True)), current().size
        for at, bucket in enumerate(self._buckets):
            if bucket.pending is not None:
                bucket.pending.wait()
            else:
                _sum_in_parts(bucket.flat._data, size, at)
            if not bucket.half:
                np.divide(bucket.flat._data, size, out=bucket.flat._data)
            for number, parameter in zip(bucket.numbers, bucket.parameters, strict=True):
                gradient = crossing.detached(bucket.views[number], spec_of(parameter.shape, parameter.dtype))
                gradient._root = bucket.flat
                if parameter.requires_grad:
                    parameter.grad = gradient if known[number] else None


def _sum_in_parts(flat: Any, size: int, bucket: int) -> None:
    """Sum a buffer over ranks in place: every rank sums one part, then all parts are gathered."""
    part = -(-flat.size // size)
    padded = np.zeros(part * size, flat.dtype)
    padded[: flat.size] = flat
    mine = np.empty(part, flat.dtype)
    run("reduce_scatter", padded, mine, "sum", bucket=bucket)
    run("all_gather", mine, padded, bucket=bucket)
    np.copyto(flat, padded[: flat.size])
