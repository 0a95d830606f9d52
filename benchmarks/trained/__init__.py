"""Models trained for real, each with its learning curve: `python -m benchmarks trained [NAME ...] [--quick]`."""

from __future__ import annotations

import argparse
from importlib import import_module

from benchmarks.trained.summary import summarise

NAMES = ("lenet", "resnet", "vit", "char-lstm", "char-transformer")


def main(argv: list[str]) -> int:
    """Train the models named, or all; the exit status is 1 where one misses its goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks trained")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; by default all")
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI: seconds, the loss must fall")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoints in the output folder")
    parser.add_argument("--cifar", metavar="PATH", help="CIFAR-10's archive or folder for resnet and vit")
    parser.add_argument("--output", default="output/trained", help="folder of checkpoints and figures")
    options = parser.parse_args(argv)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    met = []
    for name in options.names or NAMES:
        experiment = import_module(f"benchmarks.trained.{name.replace('-', '_')}").EXPERIMENT
        met.append(experiment.run(options))
    if not options.quick:
        summarise()
    return 0 if all(met) else 1
