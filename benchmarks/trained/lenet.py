"""LeNet (LeCun et al., 1998) on scikit-learn's digits: at least 97.5 % of 360 held-out images, with every seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.trained.classifying import classifier, nearest_mean
from benchmarks.trained.experiment import Experiment
from flnb.data import TensorDataset, digits
from flnb.models import LeNet
from flnb.optim import Adam

if TYPE_CHECKING:
    from argparse import Namespace

    from benchmarks.trained.training import Training


def in_field(dataset: TensorDataset) -> TensorDataset:
    """Enlarge digits of 8 x 8 pixels three times and centre them in images of 32 x 32, as LeNet takes them."""
    images, labels = dataset.tensors
    large = images.numpy().repeat(3, axis=2).repeat(3, axis=3)
    return TensorDataset(np.pad(large, ((0, 0), (0, 0), (4, 4), (4, 4))), labels)


def prepare(seed: int, options: Namespace) -> Training:
    """Return the training of LeNet with 800 steps of 64 images."""
    train, test = (in_field(part) for part in digits())
    model = LeNet()
    references = {"nearest mean image": nearest_mean(train, test)}
    steps = 40 if options.quick else 800
    return classifier(model, Adam(model.parameters(), lr=3e-3), train, test, seed, steps, 64, references)


EXPERIMENT = Experiment("lenet", "LeNet on digits", "accuracy, %", goal=97.5, prepare=prepare, seeds=3)
