"""Batches of a fixed number of samples, or of as many as fit a budget; stacked, padded, or made by a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb import ops
from flnb.data.datasets import Dataset
from flnb.dispatch.state import category

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.tensor import Tensor


class BatchDataset(Dataset):
    """Make batches of neighbouring samples: item i is a tuple of tensors with the samples along the first axis.

    Args:
        dataset: the samples.
        size: the number of samples in a batch; with ``lengths``, the largest padded size of a batch.
        last: "include" a smaller last batch, or "skip" it.
        lengths: a length for each sample, such as its number of steps. A batch then has as many neighbouring samples
            as satisfy number of samples * longest length <= size, which bounds the memory of a padded batch. To
            shuffle, wrap this dataset in a `ShuffleDataset`; the samples must stay in the order of the lengths.
        collate: a function that makes a batch from a list of samples, such as `padded`; by default they are stacked.

    >>> import flnb
    >>> batches = flnb.data.BatchDataset(flnb.data.TensorDataset(flnb.zeros((10, 3))), 4, last="skip")
    >>> len(batches), [x.shape for (x,) in batches]
    (2, [(4, 3), (4, 3)])
    >>> dynamic = flnb.data.BatchDataset(flnb.data.TensorDataset(flnb.zeros((4, 3))), 6, lengths=[2, 3, 3, 6])
    >>> [x.shape for (x,) in dynamic]
    [(2, 3), (1, 3), (1, 3)]

    Raises:
        ValueError: an empty dataset, or arguments that lead to no batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        size: int,
        last: str = "include",
        lengths: Sequence[int] | None = None,
        collate: Callable[[list[tuple[Any, ...]]], tuple[Any, ...]] | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"flnb: BatchDataset's size must be at least 1, got {size}")
        if last not in ("include", "skip"):
            raise ValueError(f'flnb: BatchDataset\'s last must be "include" or "skip", got {last!r}')
        samples = len(dataset)
        if not samples:
            raise ValueError(f"flnb: BatchDataset got an empty {type(dataset).__name__}: there is nothing to batch")
        self.dataset, self.size, self.last, self.collate = dataset, size, last, collate
        if lengths is not None:
            if last == "skip":
                raise ValueError(
                    'BatchDataset: last="skip" has no effect with lengths (there is no incomplete batch); remove it'
                )
            if len(lengths) != samples:
                raise ValueError(f"flnb: BatchDataset got {len(lengths)} lengths for {samples} samples")
            self._bounds = packed(lengths, size)
        else:
            whole = list(range(0, samples + 1, size))
            self._bounds = whole if last == "skip" or whole[-1] == samples else [*whole, samples]
            if len(self._bounds) == 1:
                raise ValueError(
                    f'flnb: BatchDataset with last="skip" makes no batch of {size} from {samples} samples; take '
                    'smaller batches, or last="include"'
                )

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        index = self._check(index)
        chosen = range(self._bounds[index], self._bounds[index + 1])
        if self.collate is None:
            return self.dataset.take(np.asarray(chosen))
        return self.collate([self.dataset[i] for i in chosen])


def packed(lengths: Sequence[int], budget: int) -> list[int]:
    """Divide samples into groups of neighbours with number of samples * longest length <= budget.

    Each group, from the first on, is as large as possible.

    Returns:
        A list with the index of each group's first sample and, at the end, the number of all samples.

    >>> packed([2, 3, 3, 6], 6)
    [0, 2, 3, 4]
    """
    bounds, longest = [0], 0
    for i, length in enumerate(lengths):
        if not 0 < length <= budget:
            raise ValueError(f"flnb: sample {i} has length {length}, expected 1 to {budget}, a batch's padded size")
        longest = max(longest, length)
        if longest * (i + 1 - bounds[-1]) > budget:
            bounds.append(i)
            longest = length
    return [*bounds, len(lengths)]


def padded(samples: list[tuple[Any, ...]], value: float = 0) -> tuple[Tensor, ...]:
    """Make a batch of samples that differ in shape: entries are padded at their ends with ``value`` and stacked.

    For use as ``BatchDataset(..., collate=flnb.data.padded)``. Entry i of the result is as long, along each axis, as
    the longest entry i of the samples.

    >>> import numpy as np
    >>> import flnb
    >>> x, n = flnb.data.padded([(np.ones(2), 2), (np.ones(3), 3)])
    >>> x.tolist(), n.tolist()
    ([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], [2, 3])

    Raises:
        ValueError: samples with different numbers of entries, or entries with different numbers of axes.
    """
    batch = []
    for number, column in enumerate(zip(*samples, strict=True)):
        arrays = [np.asarray(item) for item in column]
        if len({array.ndim for array in arrays}) != 1:
            shapes = [array.shape for array in arrays]
            raise ValueError(f"flnb: padded: samples have different numbers of axes in entry {number}: {shapes}")
        extents = np.max([array.shape for array in arrays], axis=0).astype(int)
        whole = np.full((len(arrays), *extents), value, np.result_type(*arrays))
        for i, array in enumerate(arrays):
            place: tuple[Any, ...] = (i, *(slice(n) for n in array.shape))
            whole[place] = array
        batch.append(whole)
    with category("input"):
        return tuple(ops.asarray(whole) for whole in batch)
