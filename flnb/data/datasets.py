"""Datasets: a length and samples by number; each wraps another and changes one thing about it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from flnb import ops
from flnb.dispatch.state import category

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb.tensor import Tensor

__all__ = ["BatchDataset", "Dataset", "ShuffleDataset", "TensorDataset"]

Indices = npt.NDArray[np.int64]


class Dataset:
    """Write `__len__` and `__getitem__(index) -> tuple of arrays`; `take(indices)` too where many at once is faster.

    >>> class Squares(Dataset):
    ...     def __len__(self):
    ...         return 5
    ...     def __getitem__(self, index):
    ...         return float(index), float(index) ** 2
    >>> [y.numpy().tolist() for x, y in BatchDataset(Squares(), 2)]
    [[0.0, 1.0], [4.0, 9.0], [16.0]]
    """

    _epochs: int = 0

    def __len__(self) -> int:
        raise NotImplementedError(f"flnb: {type(self).__name__} defines no __len__")

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        raise NotImplementedError(f"flnb: {type(self).__name__} defines no __getitem__(index)")

    def take(self, indices: Indices) -> tuple[Any, ...]:
        """The samples of these numbers stacked along a new first axis."""
        columns = zip(*(self[int(index)] for index in indices), strict=True)
        with category("input"):
            return tuple(ops.stack([ops.asarray(item) for item in column]) for column in columns)

    def _at_epoch(self, epoch: int) -> Self:
        """This dataset as it is in that epoch, whatever is iterated meanwhile. Wrapped datasets follow."""
        fixed = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Dataset):
                setattr(fixed, name, value._at_epoch(epoch))
        return fixed

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """One epoch; each `for` is the next one, from 0."""
        fixed = self._at_epoch(self._epochs)
        self._epochs += 1
        return (fixed[index] for index in range(len(fixed)))

    def _check(self, index: int) -> int:
        """`index` counted from the start. IndexError also ends the iteration protocol of old."""
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"flnb: {type(self).__name__} of {size} has no item {index}")
        return index % size


class TensorDataset(Dataset):
    """Arrays with a common first axis; sample i is the tuple of their i-th entries.

    >>> import flnb
    >>> pairs = TensorDataset(flnb.asarray([[1.0, 2.0], [3.0, 4.0]]), flnb.asarray([7, 8]))
    >>> x, y = pairs[1]
    >>> len(pairs), x.numpy().tolist(), int(y)
    (2, [3.0, 4.0], 8)
    """

    def __init__(self, *arrays: Any) -> None:
        with category("input"):
            self.tensors: tuple[Tensor, ...] = tuple(ops.asarray(array) for array in arrays)
        lengths = [tensor.shape[0] if tensor.ndim else None for tensor in self.tensors]
        if not lengths or None in lengths or len(set(lengths)) != 1:
            shapes = [tuple(tensor.shape) for tensor in self.tensors]
            raise ValueError(f"flnb: TensorDataset takes arrays with the same first axis, got shapes {shapes}")

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        index = self._check(index)
        return tuple(tensor[index] for tensor in self.tensors)

    def take(self, indices: Indices) -> tuple[Tensor, ...]:
        with category("input"):
            return tuple(tensor[indices] for tensor in self.tensors)


class ShuffleDataset(Dataset):
    """Another order of the same samples, a different one in each epoch, all fixed by `seed`.

    >>> import flnb
    >>> shuffled = ShuffleDataset(TensorDataset(flnb.arange(4)), seed=1)
    >>> first, second = [[int(x) for (x,) in shuffled] for epoch in range(2)]
    >>> sorted(first) == sorted(second) == [0, 1, 2, 3], first == second
    (True, False)
    """

    def __init__(self, dataset: Dataset, seed: int = 0) -> None:
        self.dataset, self.seed = dataset, seed
        self._shuffle(0)

    def _shuffle(self, epoch: int) -> None:
        self._order = np.random.default_rng((self.seed, epoch)).permutation(len(self.dataset))

    def _at_epoch(self, epoch: int) -> Self:
        fixed = super()._at_epoch(epoch)
        fixed._shuffle(epoch)
        return fixed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.dataset[int(self._order[self._check(index)])]

    def take(self, indices: Indices) -> tuple[Any, ...]:
        return self.dataset.take(self._order[indices])


class BatchDataset(Dataset):
    """Groups of `size` samples stacked; the smaller rest is a batch of its own (`last="include"`) or left out ("skip").

    >>> import flnb
    >>> batches = BatchDataset(TensorDataset(flnb.zeros((10, 3))), 4, last="skip")
    >>> len(batches), [x.shape for (x,) in batches]
    (2, [(4, 3), (4, 3)])
    """

    def __init__(self, dataset: Dataset, size: int, last: str = "include") -> None:
        if size < 1:
            raise ValueError(f"flnb: BatchDataset's size must be at least 1, got {size}")
        if last not in ("include", "skip"):
            raise ValueError(f'flnb: BatchDataset\'s last is "include" or "skip", got {last!r}')
        self.dataset, self.size, self.last = dataset, size, last

    def __len__(self) -> int:
        samples = len(self.dataset)
        return samples // self.size if self.last == "skip" else -(-samples // self.size)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        start = self._check(index) * self.size
        return self.dataset.take(np.arange(start, min(start + self.size, len(self.dataset))))
