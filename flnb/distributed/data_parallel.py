"""Data parallel training: every rank has the whole model and a part of the batch; gradients are averaged.

Li et al., 2020, "PyTorch Distributed", section 3: gradients are exchanged in buckets, in the reverse order of the
parameters, while the backward pass still computes others.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.quantity import bytes_of
from flnb_telemetry.withblock import with_block

from flnb.autograd.arrivals import listen, unlisten
from flnb.autograd.variable import plain
from flnb.dispatch import crossing
from flnb.dispatch.communication import run, start
from flnb.dispatch.groups import current
from flnb.dispatch.plan import spec_of
from flnb.distributed.buckets import joined, read_rows
from flnb.distributed.collectives import broadcast
from flnb.distributed.staging import compute, local, reads_host, room, values, write
from flnb.nn.module import Module
from flnb.ops.creation import empty
from flnb.ops.elementwise import assign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from flnb.distributed.buckets import Bucket
    from flnb.interface.tape import Node
    from flnb.nn.module import Parameter
    from flnb.tensor import Tensor


class Exchanging(Module):
    """Base of `DataParallel` and `Sharded`: sums gradients over ranks during every backward pass.

    `state_dict` returns the state of the module alone, so a checkpoint can also be loaded into the module without this
    wrapper, and a checkpoint of the module into the wrapper.

    Args:
        module: the module to train.
        bucket: the number of bytes of gradients that are exchanged in one call; None exchanges each gradient alone.
        parts: 1 to sum all gradients on every rank, or the number of ranks, so that each rank sums a part of them.
    """

    takes = False
    """Whether gradients stay in buckets, so that the backward pass does not store them in the parameters."""

    def __init__(self, module: Module, bucket: int | str | None, parts: int) -> None:
        self.module = module
        self._exchange, self._uneven, self._overlaps = True, False, True
        name = type(self).__name__
        for path, part in module.named_modules():
            if getattr(part, "_differs", False):
                raise TypeError(
                    f"{name}: {path or 'the module'}, {type(part).__name__}, has different parameters on each rank, "
                    f"which {name} would make equal; do not wrap this module in {name}"
                )
        self._most, self._parts = 0 if bucket is None else bytes_of(bucket, f"{name}(bucket=...)"), parts
        for tensor in [*module.parameters(), *(b for _, b in module.named_buffers())]:
            assign(plain(tensor), broadcast(plain(tensor)))
        self._members = list(module.named_parameters())
        self._join()
        self._made_on = self._present = current().size
        self._first = 0
        if self._made_on > 1:
            listen(self)

    def _join(self) -> None:
        """Make the buckets: group the parameters that require gradients."""
        self._buckets = joined(self._members, self._most, self._parts)
        self._bucket_of = {number: bucket for bucket in self._buckets for number in bucket.numbers}
        self.leaves = set(self._bucket_of)
        self._next = 0

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the wrapped module."""
        if self._made_on == 1 and current().size > 1:
            raise self._other_ranks()  # its gradients would stay this rank's own
        changed = self._changed()
        if changed is not None:
            self._adapt(changed)
        return self.module(*inputs, **options)

    def _other_ranks(self) -> RuntimeError:
        return RuntimeError(
            f"this {type(self).__name__} was made on {self._made_on} ranks and is used on {current().size}; make it "
            f"after flnb.distributed.init(), and run backward with the same communicator"
        )

    def _changed(self) -> Parameter | None:
        """Return a parameter for which the buckets must be made again; None if there is none.

        It is a parameter whose dtype has changed, or that has begun to require a gradient, since the buckets were made.
        """
        of = self._bucket_of
        for _, p in self._members:
            if p._node is not None:
                bucket = of.get(p._node[2])
                if bucket is None or bucket.dtype != p._spec.dtype:
                    return p
        return None

    def _adapt(self, changed: Parameter) -> None:
        """Rebuild the buckets after the parameter ``changed`` got a new dtype or began to need a gradient."""
        self._join()

    def close(self) -> None:
        """Stop exchanging gradients."""
        unlisten(self)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the wrapped module's state."""
        return self.module.state_dict()

    def mismatches(self, state: Mapping[str, Any]) -> list[str]:
        """Return the reasons why `load_state_dict(state)` would fail, one line each; none if it would succeed."""
        return self.module.mismatches(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state into the wrapped module; every rank must load the same state."""
        self.module.load_state_dict(state)

    @with_block
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on each rank inside the block, without an exchange.

        The first backward pass after the block exchanges the accumulated gradients.

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

    @with_block
    def uneven(self, update: Callable[[], object]) -> Iterator[None]:
        """Allow ranks to have different numbers of batches, in a block around the loop over this rank's batches.

        A rank whose loop has ended takes part in the backward passes of the others, with zeros, until all loops have
        ended; gradients are averaged over the ranks whose loops still run. The rank updates its parameters, too, so
        that they stay the same on all ranks. Modules whose calls communicate, such as `SyncBatchNorm`, cannot be used.

        Args:
            update: the function that the loop calls after a backward pass, such as ``optimizer.step``. On ranks whose
                loops have ended, it is called after each pass in which gradients are exchanged.

        >>> import flnb, flnb.nn as nn
        >>> def train():
        ...     net = flnb.distributed.DataParallel(nn.Linear(1, 1, bias=False))
        ...     optimizer = flnb.optim.SGD(net.parameters(), lr=0.1)
        ...     _ = flnb.assign(net.module.weight.data, 0.0)
        ...     with net.uneven(optimizer.step):
        ...         for x in [1.0, 2.0, 3.0][flnb.distributed.rank():]:  # three batches, and two
        ...             optimizer.zero_grad()
        ...             net(flnb.asarray([[x]])).sum().backward()
        ...             optimizer.step()
        ...     return round(net.module.weight.item(), 4)
        >>> flnb.distributed.run_threads(2, train)  # -0.1 * (1 + 2) / 2 - 0.1 * (2 + 3) / 2 - 0.1 * 3
        [-0.7, -0.7]
        """
        self._uneven = True
        try:
            yield
            while self._count(0):
                self.zero_grad()
                self._begin_buckets()
                self.ended()
                update()
        finally:
            self._uneven, self._present, self._first = False, current().size, 0

    def _count(self, here: int) -> int:
        """Return the number of ranks that are in a backward pass; ``here`` is 1 if this rank is in one, else 0."""
        there = np.empty(current().size, np.int64)
        run("all_gather", np.array([here]), there)
        self._present, self._first = int(there.sum()), int(there.argmax())
        return self._present

    # What a backward pass tells

    def began(self, first: bool) -> None:
        """Prepare for a backward pass: reset the buckets.

        If a pass goes through several models, only one of them, for which ``first`` is true, exchanges buckets during
        the pass. The other models exchange their buckets at the end of the pass, because buckets could become full in
        another order on a rank that does not use all parameters.
        """
        if current().size != self._made_on:
            raise self._other_ranks()
        self._overlaps = first
        if self._exchange:
            if self._uneven:
                self._count(1)
            self._begin_buckets()

    def _begin_buckets(self) -> None:
        """Reset all buckets for a new pass."""
        self._next = 0
        for bucket in self._buckets:
            bucket.begin()

    def arrived(self, leaf: Node, gradient: Any) -> bool:
        """Copy the gradient of a leaf to its bucket, and start exchanging full buckets.

        Returns `takes`: whether the pass must not store the gradient in ``.grad``.
        """
        if not self._exchange:
            return False
        number, old = leaf[2], leaf[3]
        bucket = self._bucket_of[number]
        bucket.write(number, values(gradient), None if old is None else values(old), self._present)
        bucket.used.add(number)
        if self._overlaps:
            self._start_full()
        return self.takes

    def _start_full(self) -> None:
        """Start the exchange of full buckets, in the same order on all ranks."""
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            bucket = self._buckets[self._next]
            if bucket.parts == 1:
                bucket.pending = start("all_reduce", bucket.flat._data, "sum", bucket=self._next, holds=bucket.holds)
            else:
                if self.takes and self._next > 1:
                    self._receive(self._buckets[self._next - 2])  # its buffer is free then
                bucket.mine = bucket.part()
                buffers = bucket.flat._data, bucket.mine._data
                bucket.pending = start("reduce_scatter", *buffers, "sum", bucket=self._next, holds=bucket.holds)
            self._next += 1

    def _receive(self, bucket: Bucket) -> None:
        """Wait for the exchange of a bucket, and divide its sums by the number of ranks in this pass."""
        if bucket.pending is None:
            return
        bucket.pending.wait()
        bucket.pending = None
        if bucket.parts > 1:
            bucket.flat = None
        received = (bucket.flat if bucket.parts == 1 else bucket.mine)._data
        if not bucket.half:
            compute("divide", received, self._present, out=received)

    def ended(self) -> None:
        """Exchange the remaining buckets, and set the averaged gradient of every parameter used on some rank."""
        if not self._exchange:
            return
        for bucket in self._buckets:
            for number, parameter in zip(bucket.numbers, bucket.parameters, strict=True):
                if number in bucket.missing:
                    old = parameter.grad
                    bucket.write(number, None, None if old is None else values(old), self._present)
                    if old is not None:
                        bucket.used.add(number)
            self._start_full()
        order = [number for bucket in self._buckets for number in bucket.numbers]
        used = np.array([number in self._bucket_of[number].used for number in order], np.uint8)
        flags = start("all_reduce", used, "max")
        for bucket in self._buckets:  # so that a wait is for the bucket that is late, and recordings can say so
            self._receive(bucket)
        flags.wait()
        known = {number for number, flag in zip(order, used.tolist(), strict=True) if flag}
        for bucket in self._buckets:
            self._deliver(bucket, known)
            bucket.flat = bucket.mine = None
        self._share_buffers()

    def _share_buffers(self) -> None:
        """Copy the module's buffers from the first rank in the backward pass to all other ranks, one call per dtype."""
        of: dict[Any, list[Tensor]] = {}
        for _, buffer in self.module.named_buffers():
            of.setdefault(buffer.dtype, []).append(buffer)
        for buffers in of.values():
            ends = [0, *accumulate(buffer.size for buffer in buffers)]
            flat = local((ends[-1],), buffers[0].dtype)._data
            parts = [flat[slice(*place)] for place in pairwise(ends)]
            for buffer, part in zip(buffers, parts, strict=True):
                compute("copy", values(buffer).reshape(-1), out=part)
            run("broadcast", flat, self._first)
            for buffer, part in zip(buffers, parts, strict=True):
                write(buffer, part.reshape(buffer.shape))
                crossing.mark_written(buffer)

    def _deliver(self, bucket: Bucket, known: set[int]) -> None:
        """Set the gradients of those parameters of a bucket that some rank has used; ``known`` has their numbers."""
        root = rows = bucket.flat
        if bucket.parts > 1:
            rows = local((bucket.parts, bucket.mine.size), bucket.dtype)
            run("all_gather", bucket.mine._data, rows._data, bucket=bucket.index, holds=bucket.holds)
        for number, place, parameter in zip(bucket.numbers, bucket.places, bucket.parameters, strict=True):
            if not parameter.requires_grad:
                continue
            part = rows._data[:, slice(*place)]
            if bucket.parts == 1 and reads_host():
                gradient = crossing.detached(part.reshape(parameter.shape), spec_of(parameter.shape, parameter.dtype))
                gradient._root = root
            else:
                gradient = empty(parameter.shape, parameter.dtype)
                memory = room(gradient)
                read_rows(part, memory)
                write(gradient, memory)
            parameter.grad = gradient if number in known else None


class DataParallel(Exchanging):
    """Wraps a module so that its gradients are averaged over all ranks in every backward pass.

    Every rank wraps the same module, calls it on its own part of the batch, and takes the same number of steps. At the
    start all ranks get the parameters and buffers of rank 0, and after every pass the buffers of rank 0. If a rank does
    not use a parameter, its gradient on that rank counts as zero; a parameter that no rank used gets no gradient. If a
    rank's backward pass uses none of the parameters, the other ranks wait for this rank and raise an error at their
    timeout. Inside `no_sync`, gradients of several passes are added without an exchange. Ranks with different numbers
    of batches train inside `uneven`.

    Args:
        module: the module to train.
        bucket: the number of bytes of gradients that are exchanged in one call, such as ``"25MiB"``; None exchanges
            each gradient alone.
        deterministic: sum by a reduce-scatter and an all-gather, as `Sharded` does, so that the results of both have
            the same bits.

    >>> import flnb, flnb.nn as nn
    >>> def train():
    ...     net = flnb.distributed.DataParallel(nn.Linear(2, 1, bias=False))
    ...     x = flnb.ones((1, 2)) * (flnb.distributed.rank() + 1.0)
    ...     net(x).sum().backward()
    ...     return net.module.weight.grad.tolist()
    >>> flnb.distributed.run_threads(2, train)
    [[[1.5, 1.5]], [[1.5, 1.5]]]

    Raises:
        CollectiveError: in backward, for the reasons of `flnb.distributed.all_reduce`.
    """

    def __init__(self, module: Module, bucket: int | str | None = "25MiB", deterministic: bool = False) -> None:
        super().__init__(module, bucket, current().size if deterministic else 1)
