"""The common parts of the classifiers: batches, loss, accuracy on held-out images, and predictors without training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.trained.training import Training
from flnb import ops
from flnb.data import BatchDataset, ShuffleDataset, TensorDataset
from flnb.models.recipe import classification
from flnb.optim import Chain, Cosine, LinearWarmUp, Schedule

if TYPE_CHECKING:
    from flnb import nn
    from flnb.optim import Optimizer


def classifier(
    model: nn.Module, optimizer: Optimizer, train: TensorDataset, test: TensorDataset, seed: int, steps: int,
    batch: int, references: dict[str, float],
) -> Training:  # fmt: skip
    """Return the training of a classifier, with the learning rate's schedule.

    The learning rate rises for 5 % of the steps, and then falls to 0 on half a cosine.
    """
    warm = max(1, steps // 20)
    return Training(
        model=model,
        optimizer=optimizer,
        schedule=Schedule(optimizer, Chain({0: LinearWarmUp(warm), warm: Cosine(steps - warm)})),
        batches=BatchDataset(ShuffleDataset(train, seed=seed), batch, last="skip"),
        loss=classification,
        test=lambda trained: accuracy(trained, test, batch),
        steps=steps,
        every=max(5, steps // 20),
        references={"chance": chance(test)} | references,
    )


def accuracy(model: nn.Module, test: TensorDataset, batch: int) -> float:
    """Return the percentage of the images in `test` whose largest logit is that of their label."""
    right = sum(int(ops.sum(ops.argmax(model(x), axis=1) == y)) for x, y in BatchDataset(test, batch))
    return 100.0 * right / len(test)


def chance(test: TensorDataset) -> float:
    """Return the accuracy in percent of always predicting the most frequent label."""
    labels = test.tensors[1].numpy()
    return 100.0 * float(np.bincount(labels).max()) / len(labels)


def nearest_mean(train: TensorDataset, test: TensorDataset, axes: tuple[int, ...] = ()) -> float:
    """Return the accuracy in percent of predicting the label whose mean training image is nearest.

    Images (N, channels, height, width) are first averaged over `axes`; with (2, 3) only mean colours are compared.
    """
    (x, y), (held_out, labels) = (tuple(tensor.numpy() for tensor in part.tensors) for part in (train, test))
    x, held_out = (images.mean(axes).reshape(len(images), -1) for images in (x, held_out))
    means = np.stack([x[y == label].mean(0) for label in range(y.max() + 1)])
    distances = ((held_out[:, None] - means) ** 2).sum(2)
    return 100.0 * float((distances.argmin(1) == labels).mean())
