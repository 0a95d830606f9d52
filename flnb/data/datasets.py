"""Datasets, which have a length and samples by index; their base class, and a dataset of arrays."""

from __future__ import annotations

import copy
import operator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from flnb import ops
from flnb.dispatch import state
from flnb.dispatch.state import category

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from flnb.tensor import Tensor

Indices = npt.NDArray[np.int64]


@dataclass
class Position:
    """A position in the iteration over a dataset: the number of the epoch, and the number of the epoch's next item."""

    epoch: int
    index: int = 0


class Dataset:
    """Base of datasets, which are indexed by sample and iterated over epoch by epoch.

    A subclass defines ``__len__()`` and ``__getitem__(index)``, which returns a sample: a tuple of arrays or numbers.
    It may define ``take(indices)``, too, if it can read many samples faster than one by one.

    >>> import flnb
    >>> class Squares(flnb.data.Dataset):
    ...     def __len__(self):
    ...         return 5
    ...     def __getitem__(self, index):
    ...         return float(index), float(index) ** 2
    >>> [y.numpy().tolist() for x, y in flnb.data.BatchDataset(Squares(), 2)]
    [[0.0, 1.0], [4.0, 9.0], [16.0]]
    """

    _epochs: int = 0
    _latest: Position | None = None
    _resumed: Position | None = None

    def __len__(self) -> int:
        raise NotImplementedError(f"flnb: {type(self).__name__} must define __len__(), the number of its samples")

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        raise NotImplementedError(f"flnb: {type(self).__name__} must define __getitem__(index), which returns a sample")

    def take(self, indices: Indices) -> tuple[Any, ...]:
        """Return the samples with these indices as one batch: their entries are stacked along a new first axis."""
        return stacked([self[int(index)] for index in indices])

    def _at_epoch(self, epoch: int) -> Self:
        """Return a copy of this dataset in the order of the given epoch; the datasets that it wraps are copied, too."""
        fixed = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Dataset):
                setattr(fixed, name, value._at_epoch(epoch))
            elif isinstance(value, (list, tuple)) and any(isinstance(item, Dataset) for item in value):
                items = (item._at_epoch(epoch) if isinstance(item, Dataset) else item for item in value)
                setattr(fixed, name, type(value)(items))
        return fixed

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over the next epoch (at first epoch 0) or, if `state` was set, over the rest of the state's epoch."""
        position = self._resumed or Position(self._epochs)
        self._latest, self._resumed, self._epochs = position, None, position.epoch + 1
        return self._follow(self._at_epoch(position.epoch), position)

    @staticmethod
    def _follow(fixed: Dataset, position: Position) -> Iterator[tuple[Any, ...]]:
        """Yield the items of an epoch from a position on, and update the position.

        ``fixed`` is the copy of the dataset in the order of this epoch.
        """
        with closing(fixed._items(position.epoch, position.index)) as items:
            for item in items:
                position.index += 1
                yield item
        position.epoch, position.index = position.epoch + 1, 0

    def _items(self, epoch: int, start: int) -> Generator[tuple[Any, ...], None, None]:
        """Yield the items from number ``start`` on; called on the copy that `_at_epoch` returned."""
        for index in range(start, len(self)):
            yield self[index]

    @property
    def state(self) -> dict[str, int]:
        """The position in the latest epoch, for a checkpoint; setting it makes the next `for` loop continue there.

        The position is a dict of "epoch", which counts from 0, "index", the number of the next item, and "size", the
        dataset's length.

        Raises (when set):
            ValueError: the state is of a dataset of another length, or its position does not exist.

        >>> import flnb
        >>> items = flnb.data.TensorDataset(flnb.arange(4))
        >>> for (x,) in items:
        ...     if int(x) == 1:
        ...         break
        >>> items.state
        {'epoch': 0, 'index': 2, 'size': 4}
        >>> again = flnb.data.TensorDataset(flnb.arange(4))
        >>> again.state = items.state
        >>> [int(x) for (x,) in again], [int(x) for (x,) in again]
        ([2, 3], [0, 1, 2, 3])
        """
        position = self._resumed or self._latest or Position(self._epochs)
        return {"epoch": position.epoch, "index": position.index, "size": len(self)}

    @state.setter
    def state(self, value: dict[str, int]) -> None:
        if not isinstance(value, dict) or sorted(value) != ["epoch", "index", "size"]:
            raise ValueError(f"flnb: a dataset's state is a dict of epoch, index and size, got {value!r:.80}")
        epoch, index, size = (operator.index(value[name]) for name in ("epoch", "index", "size"))
        if size != len(self):
            raise ValueError(f"flnb: this state is of a dataset of {size} items, {type(self).__name__} has {len(self)}")
        if epoch < 0 or not 0 <= index <= size:
            raise ValueError(f"flnb: epoch {epoch}, index {index} is not a position in a dataset of {size} items")
        self._resumed = Position(epoch, index)

    def _check(self, index: int) -> int:
        """Convert an index that may count from the end to one from 0, or raise an IndexError if it is out of range."""
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"flnb: {type(self).__name__} of length {size} has no item {index}")
        return index % size

    def _check_all(self, indices: Any) -> Indices:
        """Convert indices that may count from the end to ones from 0; raise a TypeError or IndexError if one is bad."""
        given, size = np.asarray(indices), len(self)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise TypeError(
                f"flnb: {type(self).__name__}.take expects a list of whole numbers, "
                f"got shape {given.shape} of {given.dtype}"
            )
        wrong = given[(given < -size) | (given >= size)]
        if wrong.size:
            raise IndexError(f"flnb: {type(self).__name__} of length {size} has no item {wrong[0]}")
        return np.where(given < 0, given + size, given).astype(np.int64)


def stacked(samples: Sequence[tuple[Any, ...]]) -> tuple[Tensor, ...]:
    """Make a batch of samples: entry i of the result stacks the entries i of all samples along a new first axis.

    >>> import numpy as np
    >>> import flnb
    >>> x, y = flnb.data.stacked([(np.zeros(3), 1), (np.ones(3), 2)])
    >>> x.shape, y.tolist()
    ((2, 3), [1, 2])

    Raises:
        ValueError: no samples, or samples with different numbers of entries or different shapes.
    """
    if len({len(sample) for sample in samples}) != 1:
        got = [len(sample) for sample in samples]
        raise ValueError(f"flnb: a batch needs one sample or more, with equal numbers of entries; got {got} entries")
    with category("input"):
        return tuple(_stacked(column) for column in zip(*samples, strict=True))


def _stacked(column: tuple[Any, ...]) -> Tensor:
    """Stack the items of a column, which are the same entry of each sample, along a new first axis."""
    first = column[0]
    if all(isinstance(item, np.ndarray) and item.dtype == first.dtype for item in column):
        _check_shapes(column)
        if first.dtype.isnative and first.dtype.kind in "biufc" and state.current().backend.shares_memory:
            batch = ops.empty((len(column), *first.shape), first.dtype)
            np.stack(column, out=batch.numpy())  # writes into the tensor's memory, without a copy
            return batch
    tensors = [ops.asarray(item) for item in column]
    _check_shapes(tensors)
    return ops.stack(tensors)


def _check_shapes(items: Sequence[Any]) -> None:
    """Raise a ValueError unless all arrays have one shape."""
    shapes = dict.fromkeys(tuple(item.shape) for item in items)
    if len(shapes) > 1:
        raise ValueError(
            f"flnb: the samples of a batch have different shapes {list(shapes)[:4]}; "
            f"bring them to one shape, or pad them: BatchDataset(..., collate=flnb.data.padded)"
        )


class TensorDataset(Dataset):
    """Arrays as a dataset: sample i is the tuple of the i-th elements of all arrays along their first axis.

    Raises:
        ValueError: no array, or arrays with first axes of different extents.

    >>> import flnb
    >>> pairs = flnb.data.TensorDataset(flnb.asarray([[1.0, 2.0], [3.0, 4.0]]), flnb.asarray([7, 8]))
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
            raise ValueError(f"flnb: TensorDataset takes arrays whose first axes are equally long, got shapes {shapes}")

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        index = self._check(index)
        return tuple(tensor[index] for tensor in self.tensors)

    def take(self, indices: Indices) -> tuple[Tensor, ...]:
        chosen = self._check_all(indices)
        with category("input"):
            return tuple(tensor[chosen] for tensor in self.tensors)
