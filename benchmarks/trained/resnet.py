"""A small ResNet (He et al., 2016) that recognizes the picture from which a patch was cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.trained.classifying import classifier, nearest_mean
from benchmarks.trained.experiment import Experiment
from benchmarks.trained.pictures import image_set
from flnb.models import ResNet
from flnb.optim import AdamW

if TYPE_CHECKING:
    from argparse import Namespace

    from benchmarks.trained.training import Training


def prepare(seed: int, options: Namespace) -> Training:
    """Return the training of a ResNet of three stages (one block each, 32 to 128 channels), 600 steps of 64 patches."""
    train, test, classes = image_set(options)
    model = ResNet((1, 1, 1), width=8 if options.quick else 32, classes=classes)
    optimizer = AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    references = {"nearest mean colour": nearest_mean(train, test, axes=(2, 3))}
    return classifier(model, optimizer, train, test, seed, 20 if options.quick else 600, 64, references)


EXPERIMENT = Experiment("resnet", "ResNet on patches of pictures", "accuracy, %", goal=90.0, prepare=prepare)
