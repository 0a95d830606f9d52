"""Datasets compose; shuffling is fixed by its seed; the digits are the real ones, split the same everywhere."""

import io
import time

import numpy as np
import pytest

import flnb
from flnb.data import BatchDataset, Dataset, ShuffleDataset, TensorDataset, digits, progress


def numbered(count: int) -> TensorDataset:
    return TensorDataset(np.arange(count, dtype=np.float32)[:, None], np.arange(count) * 10)


def labels(dataset) -> list[list[int]]:
    return [np.atleast_1d(y.numpy()).tolist() for _, y in dataset]


def test_tensor_dataset():
    dataset = numbered(3)
    x, y = dataset[-1]
    assert (len(dataset), x.numpy().tolist(), int(y)) == (3, [2.0], 20)
    assert labels(dataset) == [[0], [10], [20]]
    with pytest.raises(IndexError, match="TensorDataset of length 3 has no item 3"):
        dataset[3]
    with pytest.raises(ValueError, match=r"first axes are equally long, got shapes \[\(2, 1\), \(3,\)\]"):
        TensorDataset(np.zeros((2, 1)), np.zeros(3))
    with pytest.raises(ValueError, match=r"got shapes \[\(\)\]"):
        TensorDataset(np.float32(1))
    with pytest.raises(ValueError, match=r"got shapes \[\]"):
        TensorDataset()


@pytest.mark.parametrize(("last", "expected"), [("include", [[0, 10], [20, 30], [40]]), ("skip", [[0, 10], [20, 30]])])
def test_batches_include_or_skip_the_rest(last, expected):
    batches = BatchDataset(numbered(5), 2, last=last)
    assert len(batches) == len(expected)
    assert labels(batches) == expected
    x, _ = batches[-1]
    assert x.shape == (len(expected[-1]), 1)
    with pytest.raises(IndexError):
        batches[len(expected)]


def test_batch_arguments_are_checked():
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        BatchDataset(numbered(5), 0)
    with pytest.raises(ValueError, match='last must be "include" or "skip", got \'drop\''):
        BatchDataset(numbered(5), 2, last="drop")
    assert len(BatchDataset(numbered(4), 2)) == len(BatchDataset(numbered(4), 2, last="skip")) == 2
    with pytest.raises(ValueError, match=r'last="skip" makes no batch of 2 from 1 samples'):
        BatchDataset(numbered(1), 2, last="skip")


def test_shuffle_is_a_new_permutation_each_epoch_fixed_by_the_seed():
    first, second = (BatchDataset(ShuffleDataset(numbered(50), seed=4), 8) for _ in range(2))
    epochs = [labels(first) for _ in range(3)]
    flat = [[label for batch in epoch for label in batch] for epoch in epochs]
    assert all(sorted(order) == list(range(0, 500, 10)) for order in flat)
    assert flat[0] != flat[1] != flat[2] != flat[0]
    assert [labels(second) for _ in range(3)] == epochs
    assert labels(BatchDataset(ShuffleDataset(numbered(50), seed=5), 8)) != epochs[0]


def test_an_epoch_under_way_is_not_disturbed_by_another():
    shuffled = ShuffleDataset(numbered(20), seed=0)
    same = ShuffleDataset(numbered(20), seed=0)
    expected = [labels(same) for epoch in (0, 1)]
    outer, inner = [], []
    for index, (_, y) in enumerate(shuffled):
        outer.append([int(y)])
        if index == 3:
            inner = labels(shuffled)
    assert [outer, inner] == expected


def test_shuffling_below_a_users_own_dataset_still_changes_each_epoch():
    class Negated(Dataset):
        def __init__(self, dataset):
            self.dataset = dataset

        def __len__(self):
            return len(self.dataset)

        def __getitem__(self, index):
            x, y = self.dataset[index]
            return -x, y

    batches = BatchDataset(Negated(ShuffleDataset(numbered(16))), 4)
    first, second = labels(batches), labels(batches)
    assert first != second
    x, y = batches[0]
    assert x.shape == (4, 1)
    np.testing.assert_array_equal(x.numpy()[:, 0] * -10, y.numpy())


def test_batch_memory_counts_as_input():
    images = TensorDataset(np.zeros((64, 1, 8, 8), np.float32))
    with flnb.record() as run:
        start = time.perf_counter_ns()
        batch = BatchDataset(images, 32)[0]
    table = run.table("alloc")
    assert table["category"][table["t"] >= start].tolist() == [5]
    assert batch[0].shape == (32, 1, 8, 8)


def test_digits_are_real_and_split_deterministically():
    pytest.importorskip("sklearn", reason="digits needs the extra lab")
    train, test = digits()
    assert (len(train), len(test)) == (1437, 360)
    x, y = train.tensors
    assert (x.shape, x.dtype, y.dtype) == ((1437, 1, 8, 8), np.float32, np.int64)
    assert (x.numpy().min(), x.numpy().max()) == (0.0, 1.0)
    assert np.bincount(test.tensors[1].numpy()).min() > 20
    np.testing.assert_array_equal(digits()[1].tensors[1].numpy(), test.tensors[1].numpy())
    assert (digits(seed=1)[1].tensors[1].numpy() != test.tensors[1].numpy()).any()
    rows = {bytes(image) for image in x.numpy()} & {bytes(image) for image in test.tensors[0].numpy()}
    assert not rows  # no image is in both
    with pytest.raises(ValueError, match="test must be between 1 and 1796, got 1797"):
        digits(test=1797)


def test_progress_shows_a_description_and_counts():
    pytest.importorskip("tqdm", reason="progress bars need the extra lab")
    shown = io.StringIO()
    batches = BatchDataset(numbered(10), 5)
    assert len(list(progress(batches, "epoch 1", file=shown))) == 2
    assert "epoch 1: 100%" in shown.getvalue()
    assert "2/2" in shown.getvalue()
