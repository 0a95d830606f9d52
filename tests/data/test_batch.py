"""Dynamic and padded batches, and what cannot be a batch."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flnb.data import BatchDataset, BlobDataset, ShuffleDataset, TensorDataset, padded, stacked


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(9, 30))
def test_dynamic_batches_fit_the_budget_and_are_as_large_as_they_can(lengths, budget):
    blob = BlobDataset([(np.full(n, n),) for n in lengths])
    batches = [x.numpy() for (x,) in BatchDataset(blob, budget, lengths=lengths, collate=padded)]
    assert [int(row.max()) for batch in batches for row in batch] == lengths
    assert all(batch.size <= budget for batch in batches)
    for batch, following in pairwise(batches):
        longest = max(batch.shape[1], int(following[0].max()))
        assert longest * (len(batch) + 1) > budget


def test_shuffled_dynamic_batches_keep_their_samples_together():
    lengths = [1, 1, 2, 3, 3, 5]
    blob = BlobDataset([(np.full(n, n),) for n in lengths])
    batches = ShuffleDataset(BatchDataset(blob, 6, lengths=lengths, collate=padded), seed=3)
    shapes = [[x.shape for (x,) in batches] for _ in range(2)]
    assert sorted(shapes[0]) == sorted(shapes[1]) == [(1, 5), (2, 3), (3, 2)]


def test_padding_fills_ends_with_the_value():
    x, y = padded([(np.ones((1, 2)), 5), (np.ones((2, 1)), 6)], value=-1)
    assert x.tolist() == [[[1, 1], [-1, -1]], [[1, -1], [1, -1]]]
    assert y.tolist() == [5, 6]


def test_stacking_keeps_dtypes():
    x, y = stacked([(np.float16(1.5), np.zeros(2, ">i4")), (np.float16(2.5), np.ones(2, ">i4"))])
    assert (x.dtype, y.dtype, y.tolist()) == (np.float16, np.int32, [[0, 0], [1, 1]])


ragged = [(np.ones(2),), (np.ones(3),)]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: BatchDataset(TensorDataset(np.zeros((0, 3))), 2), "empty TensorDataset: there is nothing to batch"),
        (lambda: BatchDataset(BlobDataset(ragged), 2)[0], r"shapes \[\(2,\), \(3,\)\]; .*collate=flnb.data.padded"),
        (lambda: BatchDataset(BlobDataset(ragged), 4, lengths=[2]), "got 1 lengths for 2 samples"),
        (lambda: BatchDataset(BlobDataset(ragged), 2, lengths=[2, 3]), "sample 1 has length 3, expected 1 to 2"),
        (
            lambda: BatchDataset(BlobDataset(ragged), 3, "skip", lengths=[2, 3]),
            'last="skip" has no effect with lengths',
        ),
        (lambda: stacked([]), r"one sample or more, .*; got \[\] entries"),
        (lambda: stacked([(1,), (1, 2)]), r"got \[1, 2\] entries"),
        (lambda: padded([(np.ones(2),), (np.ones((2, 2)),)]), "samples have different numbers of axes in entry 0"),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make()
