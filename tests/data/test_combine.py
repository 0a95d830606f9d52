"""Datasets side by side, one after the other, and through functions."""

import numpy as np
import pytest

from flnb.data import ConcatDataset, MergeDataset, ShuffleDataset, TensorDataset, TransformDataset


def numbers(count: int) -> TensorDataset:
    return TensorDataset(np.arange(count))


def test_merge_joins_the_entries():
    merged = MergeDataset(numbers(3), TensorDataset(np.arange(3) * 10, np.ones((3, 2))))
    x, y, z = merged[-1]
    assert (int(x), int(y), z.shape) == (2, 20, (2,))
    x, y, z = merged.take(np.asarray([2, 0]))
    assert (x.tolist(), y.tolist(), z.shape) == ([2, 0], [20, 0], (2, 2))


def test_datasets_within_follow_the_epochs():
    parts = [ShuffleDataset(numbers(30), seed=seed) for seed in (1, 2)]
    concat = ConcatDataset(*parts)
    epochs = [[int(x) for (x,) in concat] for _ in range(2)]
    alone = [[[int(x) for (x,) in part] for _ in range(2)] for part in parts]
    assert epochs == [alone[0][e] + alone[1][e] for e in range(2)]


def test_transform_changes_entries_and_batches_of_them():
    pairs = TensorDataset(np.arange(4.0), np.arange(4))
    changed = TransformDataset(pairs, lambda x: x * 2.0, None)
    x, y = changed.take(np.asarray([1, 3]))
    assert (x.tolist(), y.tolist()) == ([2.0, 6.0], [1, 3])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ConcatDataset(), ValueError, "ConcatDataset takes one dataset or more, got none"),
        (lambda: MergeDataset([1, 2]), TypeError, "MergeDataset takes Datasets, got list"),
        (lambda: MergeDataset(numbers(2), numbers(3)), ValueError, r"equal length, got lengths \[2, 3\]"),
        (lambda: TransformDataset(numbers(2), 3), TypeError, "functions or None, got 3"),
        (lambda: TransformDataset(numbers(2), None, None)[0], ValueError, "2 functions for samples of 1 entries"),
    ],
)
def test_errors(make, error, text):
    with pytest.raises(error, match=text):
        make()
