"""Handwritten digits that need no download: the part of the UCI data set that is included in scikit-learn."""

from __future__ import annotations

import numpy as np
from flnb_telemetry.extras import require

from flnb.data.datasets import TensorDataset
from flnb.dispatch.dtypes import default_dtype


def digits(test: int = 360, seed: int = 0) -> tuple[TensorDataset, TensorDataset]:
    """Load 1,797 handwritten digits as a training set and a test set.

    A sample is an image (1, 8, 8) in the default dtype, from 0 (paper) to 1 (ink), and its label, int64. Needs
    scikit-learn, which the extra "lab" installs.

    Args:
        test: the number of samples in the test set.
        seed: the seed of the split: the same one leads to the same split on every machine.

    Raises:
        ValueError: ``test`` is not between 1 and 1,796.

    >>> import flnb
    >>> train, held_out = flnb.data.digits()
    >>> len(train), len(held_out), train[0][0].shape
    (1437, 360, (1, 8, 8))
    """
    bunch = require("sklearn.datasets", extra="lab", purpose="flnb.data.digits").load_digits()
    total = len(bunch.target)
    if not 0 < test < total:
        raise ValueError(f"flnb: digits has {total} images; test must be between 1 and {total - 1}, got {test}")
    images = (bunch.images[:, None] / 16.0).astype(default_dtype())
    labels = bunch.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(total)
    train, held_out = order[test:], order[:test]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[held_out], labels[held_out])
