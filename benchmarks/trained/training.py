"""The training loop of every script here: steps, tests at equal distances, a curve, and a checkpoint to resume from."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flnb import nn, no_grad
from flnb.meters import AverageMeter
from flnb.optim import clip_grad_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from flnb.data import Dataset
    from flnb.optim import Optimizer, Schedule

    Point = dict[str, float]


@dataclass
class Training:
    """The training of a model on some data; `run` runs it.

    Attributes:
        loss: ``loss(model, *batch)`` returns a scalar Variable.
        test: ``test(model)`` returns the figure on held-out data; the model is in eval mode, without gradients.
        every: the number of steps between two points of the curve, each with a test and a checkpoint.
        clip: the limit of the gradients' norm.
        references: figures of simple predictors on the same held-out data, by name.
        sample: ``sample(model)`` returns a text that the model wrote, if it writes any.
    """

    model: nn.Module
    optimizer: Optimizer
    schedule: Schedule
    batches: Dataset
    loss: Callable[..., Any]
    test: Callable[[nn.Module], float]
    steps: int
    every: int
    clip: float = float("inf")
    references: dict[str, float] = field(default_factory=dict)
    sample: Callable[[nn.Module], str] | None = None
    curve: list[Point] = field(default_factory=list)

    def run(
        self, checkpoint: Path | None = None, resume: bool = False, tell: Callable[[Point], object] | None = None
    ) -> list[Point]:
        """Train up to `steps`; returns the curve: step, seconds, mean loss since the last point, held-out figure.

        Seconds are processor time of training steps only. `tell` is called with each point when it is made. With
        `resume`, the checkpoint is loaded first, so that an interrupted run yields the same curve as an uninterrupted
        one, except for the seconds.
        """
        if resume and checkpoint is not None:
            self.curve = nn.load_checkpoint(checkpoint, **self._parts())["curve"]
        batches, losses = self._endless(), AverageMeter()
        seconds, start = self.curve[-1]["seconds"] if self.curve else 0.0, time.process_time()
        while self.optimizer.steps < self.steps:
            losses.add(self._step(next(batches)))
            if self.optimizer.steps % self.every == 0 or self.optimizer.steps == self.steps:
                seconds += time.process_time() - start
                point = {"step": self.optimizer.steps, "seconds": seconds, "loss": losses.value}
                self.curve.append(point | {"test": self._tested()})
                if tell is not None:
                    tell(self.curve[-1])
                if checkpoint is not None:
                    nn.save_checkpoint(checkpoint, **self._parts(), curve=self.curve)
                losses.reset()
                start = time.process_time()
        return self.curve

    def _step(self, batch: tuple[Any, ...]) -> Any:
        loss = self.loss(self.model, *batch)
        self.optimizer.zero_grad()
        loss.backward()
        clip_grad_norm(self.model.parameters(), self.clip, error_if_nonfinite=True)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def _endless(self) -> Iterator[tuple[Any, ...]]:
        while True:
            yield from self.batches

    def _tested(self) -> float:
        self.model.eval()
        with no_grad():
            figure = self.test(self.model)
        self.model.train()
        return figure

    def _parts(self) -> dict[str, Any]:
        return {
            "model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, "batches": self.batches,
        }  # fmt: skip
