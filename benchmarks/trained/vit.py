"""A small vision transformer (Dosovitskiy et al., 2021) that recognizes the picture from which a patch was cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.trained.classifying import classifier, nearest_mean
from benchmarks.trained.experiment import Experiment
from benchmarks.trained.pictures import EXTENT, image_set
from flnb.models import VisionTransformer
from flnb.optim import AdamW

if TYPE_CHECKING:
    from argparse import Namespace

    from benchmarks.trained.training import Training


def prepare(seed: int, options: Namespace) -> Training:
    """Return the training of a vision transformer of four layers (96 features), with 400 steps of 64 images.

    The model divides an image into 64 squares of 4 x 4 pixels.
    """
    train, test, classes = image_set(options)
    features, layers = (32, 1) if options.quick else (96, 4)
    model = VisionTransformer(
        image=EXTENT, patch=4, features=features, layers=layers, heads=4, feedforward=2 * features, classes=classes
    )
    optimizer = AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    references = {"nearest mean colour": nearest_mean(train, test, axes=(2, 3))}
    return classifier(model, optimizer, train, test, seed, 20 if options.quick else 400, 64, references)


EXPERIMENT = Experiment("vit", "Vision transformer on patches of pictures", "accuracy, %", goal=90.0, prepare=prepare)
