"""Batches: of so many samples, or of as many as fit a budget; stacked, padded or put together by one's own function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb import ops
from flnb.data.datasets import Dataset
from flnb.dispatch.state import category

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flnb.tensor import Tensor

__all__ = ["BatchDataset", "padded"]


class BatchDataset(Dataset):
    """Stack groups of `size` samples; a smaller remainder is a batch too (`last="include"`) or skipped ("skip").

    With `lengths`, one for each sample of `dataset`, batches are dynamic: neighbours join while their number times the
    longest of them is at most `size`, which bounds a padded batch's memory. Shuffle such batches, not the samples
    below. `collate(samples)` makes the batch from a list of samples if it is not to be stacked (`padded`).

    >>> import flnb
    >>> batches = flnb.data.BatchDataset(flnb.data.TensorDataset(flnb.zeros((10, 3))), 4, last="skip")
    >>> len(batches), [x.shape for (x,) in batches]
    (2, [(4, 3), (4, 3)])
    >>> dynamic = flnb.data.BatchDataset(flnb.data.TensorDataset(flnb.zeros((4, 3))), 6, lengths=[2, 3, 3, 6])
    >>> [x.shape for (x,) in dynamic]
    [(2, 3), (1, 3), (1, 3)]

    Raises:
        ValueError: an empty dataset, or arguments that make no batches.
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
            raise ValueError(f'flnb: BatchDataset\'s last is "include" or "skip", got {last!r}')
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
    """Where groups of neighbours begin (and the last one ends) for which number x longest <= budget, greedily.

    >>> packed([2, 3, 3, 6], 6)
    [0, 2, 3, 4]
    """
    bounds, longest = [0], 0
    for i, length in enumerate(lengths):
        if not 0 < length <= budget:
            raise ValueError(f"flnb: sample {i} has length {length}; a batch takes lengths from 1 to its size {budget}")
        longest = max(longest, length)
        if longest * (i + 1 - bounds[-1]) > budget:
            bounds.append(i)
            longest = length
    return [*bounds, len(lengths)]


def padded(samples: list[tuple[Any, ...]], value: float = 0) -> tuple[Tensor, ...]:
    """Stack samples as one batch (for `collate`), padding each column's entries at their ends with `value`.

    >>> import numpy as np
    >>> import flnb
    >>> x, n = flnb.data.padded([(np.ones(2), 2), (np.ones(3), 3)])
    >>> x.tolist(), n.tolist()
    ([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], [2, 3])

    Raises:
        ValueError: samples that differ in their number of entries or of the entries' axes.
    """
    batch = []
    for number, column in enumerate(zip(*samples, strict=True)):
        arrays = [np.asarray(item) for item in column]
        if len({array.ndim for array in arrays}) != 1:
            shapes = [array.shape for array in arrays]
            raise ValueError(f"flnb: padded: entry {number} of the samples has different numbers of axes: {shapes}")
        extents = np.max([array.shape for array in arrays], axis=0).astype(int)
        whole = np.full((len(arrays), *extents), value, np.result_type(*arrays))
        for i, array in enumerate(arrays):
            place: tuple[Any, ...] = (i, *(slice(n) for n in array.shape))
            whole[place] = array
        batch.append(whole)
    with category("input"):
        return tuple(ops.asarray(whole) for whole in batch)
