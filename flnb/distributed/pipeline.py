"""Pipeline parallel training: each rank runs one stage of the model, and microbatches pass between ranks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.autograd.variable import Variable
from flnb.dispatch.communication import Pending, run, start
from flnb.dispatch.groups import current
from flnb.distributed.collectives import _contiguous
from flnb.distributed.staging import room, values, write
from flnb.ops.creation import asarray, empty

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.nn.module import Module
    from flnb.tensor import ArrayLike, Tensor

HEADER, DATA = 7003, 7004
"""The tags of messages: dtype and shape of the next array, and its elements."""
ABOUT = 256
"""The number of bytes in a message with dtype and shape."""


class Pipeline:
    """One stage of a model on each rank; a step sends microbatches forward through all stages, and gradients back.

    Huang et al., 2019, "GPipe", section 2.3: all microbatches go forward, then back in the opposite order. Gradients of
    microbatches add up to those of the whole batch. (A batch norm in a stage, however, normalises by the statistics of
    each microbatch.) While a rank computes a microbatch, the ranks before and after it compute other microbatches.

    Args:
        stage: this rank's part of the model. The stage of rank 0 receives the inputs, that of the last rank returns the
            outputs.
        microbatches: the number of equal parts into which a batch is divided.

    >>> import flnb, flnb.nn as nn
    >>> def train():
    ...     pipeline = flnb.distributed.Pipeline(nn.Linear(1, 1, bias=False), microbatches=2)
    ...     _ = flnb.assign(pipeline.stage.weight.data, 2.0 + flnb.distributed.rank())  # 2, then 3
    ...     loss = pipeline.step(flnb.ones((4, 1)), flnb.zeros((4, 1)), lambda y, t: (y - t).mean())
    ...     return loss, pipeline.stage.weight.grad.item()
    >>> flnb.distributed.run_threads(2, train)
    [(6.0, 3.0), (6.0, 2.0)]
    """

    def __init__(self, stage: Module, microbatches: int = 4) -> None:
        if microbatches < 1:
            raise ValueError(f"Pipeline: got {microbatches} microbatches, expected 1 or more")
        self.stage, self.microbatches = stage, microbatches
        self._sent: list[tuple[Pending, Any]] = []

    def step(self, inputs: ArrayLike, targets: ArrayLike, loss: Callable[[Any, Tensor], Any]) -> float:
        """Run one batch forward and backward, accumulating gradients in this stage; returns the batch's loss.

        Args:
            inputs: on rank 0 the batch; ignored on other ranks.
            targets: on the last rank a target for each row of the batch; ignored on other ranks.
            loss: a function that is called as ``loss(outputs, targets)`` on the last rank; it returns a mean over rows.

        Raises:
            ValueError: the batch cannot be divided into equal microbatches.
            CollectiveError: another rank has died, or does not make its call before the timeout.
        """
        rank, last = current().rank, current().size - 1
        begins, ends = rank == 0, rank == last
        parts = self._divided(inputs, "inputs") if begins else [None] * self.microbatches
        wanted = self._divided(targets, "targets") if ends else [None] * self.microbatches
        kept, total = [], 0.0
        for part, target in zip(parts, wanted, strict=True):
            x: Any = part if begins else Variable(self._received(rank - 1))
            y = self.stage(x)
            if ends:
                y = loss(y, target) / self.microbatches
                total += float(y.item())
            else:
                self._send(y.detach(), rank + 1)
            kept.append((x, y))
        for x, y in reversed(kept):
            y.backward(None if ends else self._received(rank + 1))
            if not begins:
                self._send(x.grad, rank - 1)
        for pending, _ in self._sent:
            pending.wait()
        self._sent.clear()
        mean = np.array([total])
        run("broadcast", mean, last)
        return float(mean[0])

    def _divided(self, batch: ArrayLike, name: str) -> list[Any]:
        batch = asarray(batch)
        if not batch.ndim or not batch.shape[0] or batch.shape[0] % self.microbatches:
            raise ValueError(
                f"Pipeline.step: {name} of shape {batch.shape} cannot be divided into {self.microbatches} "
                f"microbatches of equal size"
            )
        rows = batch.shape[0] // self.microbatches
        return [batch[begin : begin + rows] for begin in range(0, batch.shape[0], rows)]

    def _send(self, x: Any, to: int) -> None:
        """Start to send a tensor to the rank ``to``: first its dtype and shape, then its values."""
        about = np.zeros(ABOUT, np.uint8)
        text = json.dumps([x.dtype.name, x.shape]).encode()
        about[: len(text)] = np.frombuffer(text, np.uint8)
        x = _contiguous(x)
        for buffer, tag in ((about, HEADER), (values(x, message=True), DATA)):
            self._sent.append((start("send", buffer, to, tag), buffer))  # the memory stays until it was sent

    def _received(self, source: int) -> Tensor:
        about = np.zeros(ABOUT, np.uint8)
        run("recv", about, source, HEADER)
        dtype, shape = json.loads(about.tobytes().rstrip(b"\0"))
        x = empty(tuple(shape), dtype)
        memory = room(x, message=True)
        run("recv", memory, source, DATA)
        write(x, memory)
        return x
