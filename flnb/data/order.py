"""Datasets that select or reorder the samples of another dataset: by indices, shuffled, or a contiguous range."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from flnb.data.datasets import Dataset, Indices


class ResampleDataset(Dataset):
    """Select samples of a dataset by indices: sample i is ``dataset[indices[i]]``.

    An index may occur several times, and negative ones count from the end.

    >>> import flnb
    >>> [int(x) for (x,) in flnb.data.ResampleDataset(flnb.data.TensorDataset(flnb.arange(5)), [3, -1, 3])]
    [3, 4, 3]

    Raises:
        TypeError: indices that are not integers.
        IndexError: an index that the dataset does not have.
    """

    def __init__(self, dataset: Dataset, indices: Sequence[int] | Indices) -> None:
        self.dataset = dataset
        self._order = dataset._check_all(indices)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.dataset[int(self._order[self._check(index)])]

    def take(self, indices: Indices) -> tuple[Any, ...]:
        return self.dataset.take(self._order[self._check_all(indices)])


class ShuffleDataset(ResampleDataset):
    """Shuffle the samples of a dataset, with a different order in each epoch; ``seed`` determines all orders.

    >>> import flnb
    >>> shuffled = flnb.data.ShuffleDataset(flnb.data.TensorDataset(flnb.arange(4)), seed=1)
    >>> first, second = [[int(x) for (x,) in shuffled] for epoch in range(2)]
    >>> sorted(first) == sorted(second) == [0, 1, 2, 3], first == second
    (True, False)
    """

    def __init__(self, dataset: Dataset, seed: int = 0) -> None:
        self.dataset, self.seed = dataset, seed
        self._shuffle(0)

    def _shuffle(self, epoch: int) -> None:
        """Draw the order of an epoch."""
        self._order = np.random.default_rng((self.seed, epoch)).permutation(len(self.dataset))

    def _at_epoch(self, epoch: int) -> Self:
        fixed = super()._at_epoch(epoch)
        fixed._shuffle(epoch)
        return fixed


class SpanDataset(ResampleDataset):
    """Select ``length`` neighbouring samples of a dataset, from index ``start`` on; by default all that follow.

    >>> import flnb
    >>> [int(x) for (x,) in flnb.data.SpanDataset(flnb.data.TensorDataset(flnb.arange(9)), 2, 3)]
    [2, 3, 4]

    Raises:
        ValueError: a range that is not within the dataset.
    """

    def __init__(self, dataset: Dataset, start: int, length: int | None = None) -> None:
        size, start = len(dataset), operator.index(start)
        stop = size if length is None else start + operator.index(length)
        if not 0 <= start <= stop <= size:
            raise ValueError(f"flnb: SpanDataset: expected a range within {size} samples, got {start} to {stop}")
        super().__init__(dataset, np.arange(start, stop))


def round_robin(samples: int, part: int, parts: int, batch: int = 1, allow_empty: bool = False) -> Indices:
    """Divide samples among processes: return the indices of one of them.

    Batches of neighbouring indices are assigned to the parts in turn. After the last round in which every part gets
    a batch, the remaining samples are divided evenly. If fewer samples than parts remain, these samples are left out,
    so that all parts have the same number of batches.

    Args:
        samples: the number of all samples.
        part: the number of this process, counted from 0.
        parts: the number of processes.
        batch: the number of samples in a batch.
        allow_empty: whether to keep the remaining samples even if some parts get none of them.

    >>> import flnb
    >>> [flnb.data.round_robin(11, part, 2, batch=2).tolist() for part in range(2)]
    [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10]]

    Raises:
        ValueError: a part that is not in range(parts), or a number that is too small.
    """
    if samples < 0 or parts < 1 or batch < 1 or not 0 <= part < parts:
        raise ValueError(
            f"flnb: round_robin takes samples >= 0, part in range(parts), batch >= 1; "
            f"got samples {samples}, part {part} of {parts}, batch {batch}"
        )
    rounds, rest = divmod(samples, parts * batch)
    begin = np.arange(rounds)[:, None] * parts * batch + part * batch
    whole = (begin + np.arange(batch)).ravel()
    if rest < parts and not allow_empty:
        return whole
    each, more = divmod(rest, parts)
    start = rounds * parts * batch + part * each + min(part, more)
    return np.concatenate([whole, np.arange(start, start + each + (part < more))])
