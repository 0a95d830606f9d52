"""Datasets that concatenate or merge others, or apply functions to their entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flnb.data.datasets import Dataset, Indices


class ConcatDataset(Dataset):
    """Concatenate datasets: all samples of the first, then all samples of the second, and so on.

    >>> import flnb
    >>> two, three = flnb.data.TensorDataset(flnb.arange(2)), flnb.data.TensorDataset(flnb.arange(3))
    >>> both = flnb.data.ConcatDataset(two, three)
    >>> [int(x) for (x,) in both]
    [0, 1, 0, 1, 2]
    """

    def __init__(self, *datasets: Dataset) -> None:
        self.datasets = _datasets("ConcatDataset", datasets)
        self._ends = np.cumsum([len(dataset) for dataset in datasets])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _part(self, index: int) -> int:
        """Return the position, among the concatenated datasets, of the one that contains the sample ``index``."""
        return int(np.searchsorted(self._ends, index, side="right"))

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        index = self._check(index)
        part = self._part(index)
        return self.datasets[part][index - int(self._ends[part]) + len(self.datasets[part])]

    def take(self, indices: Indices) -> tuple[Any, ...]:
        chosen = self._check_all(indices)
        parts = {self._part(index) for index in chosen}
        if len(parts) != 1:
            return super().take(chosen)
        (part,) = parts
        return self.datasets[part].take(chosen - self._ends[part] + len(self.datasets[part]))


class MergeDataset(Dataset):
    """Merge datasets of equal length: sample i has the entries of sample i of all datasets.

    >>> import flnb
    >>> numbers, values = flnb.data.TensorDataset(flnb.arange(2)), flnb.data.TensorDataset(flnb.asarray([5.0, 6.0]))
    >>> pairs = flnb.data.MergeDataset(numbers, values)
    >>> [(int(x), float(y)) for x, y in pairs]
    [(0, 5.0), (1, 6.0)]

    Raises:
        ValueError: datasets of different lengths.
    """

    def __init__(self, *datasets: Dataset) -> None:
        self.datasets = _datasets("MergeDataset", datasets)
        lengths = [len(dataset) for dataset in datasets]
        if len(set(lengths)) != 1:
            raise ValueError(f"flnb: MergeDataset takes datasets of equal length, got lengths {lengths}")

    def __len__(self) -> int:
        return len(self.datasets[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        index = self._check(index)
        return tuple(entry for dataset in self.datasets for entry in dataset[index])

    def take(self, indices: Indices) -> tuple[Any, ...]:
        return tuple(entry for dataset in self.datasets for entry in dataset.take(indices))


class TransformDataset(Dataset):
    """Apply functions to the entries of each sample, one function per entry; None leaves an entry unchanged.

    >>> import flnb
    >>> pairs = flnb.data.TensorDataset(flnb.asarray([1.0, 2.0]), flnb.asarray([0, 1]))
    >>> x, y = flnb.data.TransformDataset(pairs, lambda x: x * 10.0, None)[1]
    >>> float(x), int(y)
    (20.0, 1)

    Raises:
        TypeError: something that is neither a function nor None.
        ValueError: a sample has another number of entries than there are functions (raised when it is read).
    """

    def __init__(self, dataset: Dataset, *functions: Callable[[Any], Any] | None) -> None:
        for function in functions:
            if function is not None and not callable(function):
                raise TypeError(f"flnb: TransformDataset takes functions or None, got {function!r:.60}")
        self.dataset, self.functions = dataset, functions

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        sample = self.dataset[self._check(index)]
        if len(sample) != len(self.functions):
            raise ValueError(
                f"flnb: TransformDataset has {len(self.functions)} functions for samples of {len(sample)} entries; "
                f"give one for each entry, None where nothing changes"
            )
        return tuple(
            entry if function is None else function(entry)
            for function, entry in zip(self.functions, sample, strict=True)
        )


def _datasets(name: str, datasets: tuple[Dataset, ...]) -> tuple[Dataset, ...]:
    """Return the datasets; raise an error with the class name ``name`` if there are none, or one is not a `Dataset`."""
    if not datasets:
        raise ValueError(f"flnb: {name} takes one dataset or more, got none")
    for dataset in datasets:
        if not isinstance(dataset, Dataset):
            raise TypeError(f"flnb: {name} takes Datasets, got {type(dataset).__name__}")
    return datasets
