"""An experiment: a model to be trained, and the figure that it must reach; runs, judges and stores the training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flnb
from benchmarks.report import write
from benchmarks.trained.figure import learning_curve

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from benchmarks.trained.training import Training


@dataclass(frozen=True)
class Experiment:
    """A model to be trained with several seeds, each of which must reach the goal.

    Attributes:
        prepare: ``prepare(seed, options)`` returns the training with one seed.
        goal: the figure on held-out data that every seed must reach.
        higher: whether a higher figure is better.
    """

    name: str
    title: str
    figure: str
    goal: float
    prepare: Callable[[int, Namespace], Training]
    higher: bool = True
    seeds: int = 1

    def run(self, options: Namespace) -> bool:
        """Train the model with each seed, print and store the results; returns whether every seed reached the goal.

        In a quick run, the loss must only fall.
        """
        folder = Path(options.output)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"\n{self.title}", flush=True)
        result: dict[str, Any] = {"title": self.title, "figure": self.figure, "goal": self.goal, "seeds": []}
        for seed in range(1 if options.quick else self.seeds):
            flnb.manual_seed(seed)
            training = self.prepare(seed, options)
            checkpoint = folder / f"{self.name}-{'quick' if options.quick else seed}.checkpoint"
            curve = training.run(checkpoint, resume=options.resume and checkpoint.exists(), tell=tell)
            result["parameters"] = sum(parameter.size for parameter in training.model.parameters())
            result["references"] = training.references
            result["seeds"].append({"seed": seed, "curve": curve})
            if training.sample is not None:
                result["sample"] = training.sample(training.model)
                print(result["sample"])
        result["worst"], result["met"] = self._worst(result["seeds"]), self._met(result["seeds"], options.quick)
        print(f"{self.figure}: {result['worst']:.2f}, goal {self.goal:g}; {result['references']}")
        write(f"trained-{self.name}", result, {"quick": options.quick, "resume": options.resume})
        learning_curve(result).write_html(folder / f"{self.name}.html")
        return bool(result["met"])

    def _worst(self, seeds: list[dict[str, Any]]) -> float:
        figures = [each["curve"][-1]["test"] for each in seeds]
        return min(figures) if self.higher else max(figures)

    def _met(self, seeds: list[dict[str, Any]], quick: bool) -> bool:
        if quick:
            return all(each["curve"][-1]["loss"] < each["curve"][0]["loss"] for each in seeds)
        worst = self._worst(seeds)
        return worst >= self.goal if self.higher else worst <= self.goal


def tell(point: dict[str, float]) -> None:
    """Print a point of the learning curve."""
    print("  ".join(f"{name} {value:<8.4g}" for name, value in point.items()), flush=True)
