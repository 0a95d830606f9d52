"""Real handwritten digits that need no download: scikit-learn's bundled copy of the UCI set."""

from __future__ import annotations

import numpy as np
from flnb_telemetry.extras import require

from flnb.data.datasets import TensorDataset
from flnb.dispatch.dtypes import default_dtype


def digits(test: int = 360, seed: int = 0) -> tuple[TensorDataset, TensorDataset]:
    """Load the 1,797 digits as (training set, test set), split by `seed`: the same split everywhere and always.

    Images are (N, 1, 8, 8) in the default dtype from 0 (paper) to 1 (ink), labels (N,) int64. Needs the extra "lab".

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
