"""A small model with a shared weight, an unused one and a checkpoint, trained on parts of batches."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

import flnb
from flnb import distributed, nn, optim

STEPS, ROWS, MICRO = 20, 8, 2


class Net(nn.Module):
    """Three layers, of which two share a weight; ``unused`` is never used, ``rare`` by one rank."""

    def __init__(self) -> None:
        draw = np.random.default_rng(5)
        self.first = nn.Parameter(draw.normal(size=(6, 6)) / 3)
        self.second = nn.Parameter(draw.normal(size=(6, 6)) / 3)
        self.rare = nn.Parameter(draw.normal(size=(6,)))
        self.unused = nn.Parameter(draw.normal(size=(4,)))

    def forward(self, x: Any, rare: bool = False) -> Any:
        """Logits for a batch."""
        x = flnb.tanh(x @ self.first)
        x = flnb.checkpoint(lambda x: flnb.tanh(x @ self.second) + x)(x)
        x = x @ self.first
        return x * self.rare if rare else x


def train(ranks: int, kind: str, tape: str = "linked", **options: Any) -> tuple[list[float], list[Any]]:
    """The losses of the whole batch and the final parameters, on this rank of so many or in one process (1)."""
    rank, size = distributed.rank(), distributed.size()
    draw = np.random.default_rng(7)
    data = draw.normal(size=(STEPS, 4, ROWS, 6))  # parts for up to four ranks
    net = Net()
    model = distributed.DataParallel(net, **options) if size > 1 else net
    optimizer = optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    with flnb.use_tape(tape):
        for step in range(STEPS):
            optimizer.zero_grad()
            parts = [rank] if size > 1 else range(ranks)
            total: Any = 0.0
            for part in parts:
                chunks = np.split(data[step, part], MICRO) if kind == "accumulated" else [data[step, part]]
                for i, chunk in enumerate(chunks):
                    last = i == len(chunks) - 1
                    rare = kind == "unused" and part == 1
                    if size > 1 and not last:
                        with model.no_sync():
                            loss = (model(flnb.asarray(chunk), rare=rare) ** 2).sum()
                            loss.backward()
                    else:
                        loss = (model(flnb.asarray(chunk), rare=rare) ** 2).sum()
                        loss = loss if size > 1 else loss / ranks
                        loss.backward()
                    total = total + loss.detach() * (1.0 if size > 1 else ranks)
            losses.append(float(distributed.all_reduce(total)))
            optimizer.step()
    if size > 1:
        model.close()
    return losses, [p.detach().numpy().copy() for p in net.parameters()]


def sharded_training(
    stage: int, optimizer: Any, dtype: str, kind: str = "plain", tape: str = "linked", **options: Any
) -> dict[str, Any]:
    """The module's state after ten steps by `Sharded` in a stage, or by `DataParallel` (0), on this rank."""
    net = Net()
    net.astype(dtype)
    model: Any
    if stage:
        model = distributed.Sharded(net, optimizer, stage=stage, **options)
        stepping = model.optimizer
    else:
        model = distributed.DataParallel(net, deterministic=True, **options)
        stepping = optimizer(net.parameters())
    data = np.random.default_rng(7).normal(size=(STEPS // 2, 4, ROWS, 6)).astype(dtype)
    with flnb.use_tape(tape):
        for step in data:
            stepping.zero_grad()
            mine = step[distributed.rank()]
            chunks = np.split(mine, MICRO) if kind == "accumulated" else [mine]
            for chunk in chunks:
                with model.no_sync() if chunk is not chunks[-1] else nullcontext():
                    rare = kind == "unused" and distributed.rank() == 1
                    (model(flnb.asarray(chunk), rare=rare) ** 2).sum().backward()
            stepping.step()
    state = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    model.close()
    return state
