"""Models trained for real, each with its learning curve: `python -m benchmarks trained [NAME ...] [--quick]`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from benchmarks.trained.summary import summarise

if TYPE_CHECKING:
    from benchmarks.trained.experiment import Experiment

NAMES = ("lenet", "resnet", "vit", "char-lstm", "char-transformer")
ON_IMAGES = ("resnet", "vit")
CIFAR_GOAL = 40.0
"""The goal on CIFAR-10 after the same number of steps: an accuracy in percent, four times that of guessing."""


def on_cifar(experiment: Experiment) -> Experiment:
    """Return a copy of an experiment that uses CIFAR-10's images and is named accordingly."""
    title = experiment.title.replace("patches of pictures", "CIFAR-10")
    return replace(experiment, name=f"{experiment.name}-cifar10", title=title, goal=CIFAR_GOAL)


def main(argv: list[str]) -> int:
    """Train the models named in ``argv``, or all; returns the exit status, which is 1 if a model misses its goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks trained")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; by default all")
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI: seconds, the loss must fall")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoints in the output folder")
    parser.add_argument("--cifar", metavar="PATH", help="CIFAR-10's archive or folder for resnet and vit")
    parser.add_argument("--output", default="output/trained", help="folder of checkpoints and figures")
    options = parser.parse_args(argv)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    names = options.names or (ON_IMAGES if options.cifar else NAMES)
    if options.cifar and not set(names) <= set(ON_IMAGES):
        parser.error(f"--cifar is for {' and '.join(ON_IMAGES)}, got {', '.join(names)}")
    met = []
    for name in names:
        experiment = import_module(f"benchmarks.trained.{name.replace('-', '_')}").EXPERIMENT
        met.append((on_cifar(experiment) if options.cifar else experiment).run(options))
    if not options.quick:
        summarise()
    return 0 if all(met) else 1
