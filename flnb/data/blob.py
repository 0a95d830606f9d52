"""Samples of arrays of any shapes and dtypes, in memory or in one file.

The file has three parts, in which all numbers are little-endian:

- A header of 64 bytes: 8 bytes `FLNBBLOB`, uint32 version (1), uint32 CRC-32 of the index, uint64 offset of the index,
  uint64 size of the index in bytes, zeros.
- The arrays in C order, each at an offset that is a multiple of 64.
- The index: uint64 size of the JSON text in bytes, uint64 number of samples S, uint64 number of arrays E; the JSON
  text, a list of kinds (dtype and shape) such as `[["<f4", [3, 4]]]`; int64[S + 1] the number of each sample's first
  array and, at the end, E; int64[E] the offset of each array; int64[E] the number of each array's kind.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from flnb_telemetry.formats import aside

from flnb import ops
from flnb.data.datasets import Dataset, Indices, stacked
from flnb.dispatch.state import category

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flnb.tensor import Tensor

    Arrays = tuple[npt.NDArray[Any], ...]

MAGIC, VERSION, ALIGN = b"FLNBBLOB", 1, 64
HEADER = struct.Struct("<8sIIQQ32x")
COUNTS = struct.Struct("<QQQ")


class BlobDataset(Dataset):
    """Samples in memory, each a tuple of arrays of any shapes and numeric dtypes; `add` appends one.

    >>> import flnb
    >>> blob = flnb.data.BlobDataset([([1.0, 2.0], 0)])
    >>> blob.add([3.0, 4.0, 5.0], 1)
    >>> x, y = blob[1]
    >>> len(blob), x.tolist(), int(y)
    (2, [3.0, 4.0, 5.0], 1)
    >>> blob.save("samples.blob")
    >>> flnb.data.FileBlobDataset("samples.blob")[0][0].tolist()
    [1.0, 2.0]
    """

    def __init__(self, samples: Iterable[tuple[Any, ...]] = ()) -> None:
        self._samples: list[Arrays] = []
        for sample in samples:
            self.add(*sample)

    def add(self, *entries: Any) -> None:
        """Append a sample, a copy of the entries.

        Raises:
            TypeError: an entry that is not numeric.
        """
        sample = tuple(_storable(entry).copy() for entry in entries)
        for array in sample:
            array.flags.writeable = False
        self._samples.append(sample)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the samples to a file for `FileBlobDataset`; an interrupted call leaves an older file unchanged."""
        FileBlobDataset.write(path, self._samples)

    def __len__(self) -> int:
        return len(self._samples)

    def arrays(self, index: int) -> Arrays:
        """Return a sample as read-only NumPy arrays, without a copy."""
        return self._samples[self._check(index)]

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        with category("input"):
            return tuple(ops.asarray(array) for array in self.arrays(index))

    def take(self, indices: Indices) -> tuple[Tensor, ...]:
        return stacked([self.arrays(int(index)) for index in indices])


class FileBlobDataset(BlobDataset):
    """Samples in a file that `write` or `BlobDataset.save` has written; a sample is read when it is accessed.

    No code in the file is executed. A pickled dataset contains only the path, so each worker process opens the file
    itself.

    >>> import flnb
    >>> flnb.data.FileBlobDataset.write("pairs.blob", [([1, 2], 0.5), ([3], 1.5)])
    >>> pairs = flnb.data.FileBlobDataset("pairs.blob")
    >>> len(pairs), pairs[1][0].tolist()
    (2, [3])

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has another format, or is truncated or damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = BlobFile(Path(path).absolute())

    @staticmethod
    def write(path: str | os.PathLike[str], samples: Iterable[tuple[Any, ...]]) -> None:
        """Write samples to a file, one by one; an interrupted call leaves an older file unchanged."""
        with aside(path) as part, part.open("wb") as file:
            _write(file, samples)

    def add(self, *entries: Any) -> None:
        """Raise a TypeError: a file cannot grow."""
        raise TypeError("flnb: a FileBlobDataset cannot grow; write a new file with FileBlobDataset.write")

    def __len__(self) -> int:
        return len(self._file.first) - 1

    def arrays(self, index: int) -> Arrays:
        """Return a sample as read-only NumPy arrays on the file's memory map, without a copy."""
        return self._file.read(self._check(index))


class BlobFile:
    """A file of samples, mapped into memory, with its index, which is checked when the file is opened.

    Attributes:
        kinds: pairs of dtype and shape.
        first: the index of each sample's first array and, at the end, the number of all arrays.
        offset: each array's position in the file, in bytes.
        kind: each array's index in ``kinds``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < HEADER.size:
                raise self._error(f"it has {size} bytes, fewer than the {HEADER.size} of a header")
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, version, crc, start, length = HEADER.unpack_from(self.bytes)
        if magic != MAGIC:
            raise self._error(f"it begins with {magic!r}, not {MAGIC!r}; FileBlobDataset.write makes such files")
        if version != VERSION:
            raise self._error(f"its version is {version}, this flnb reads {VERSION}")
        if start + length != size:
            raise self._error(f"it has {size} bytes, its header says {start + length}: it was cut short or added to")
        index = self.bytes[start:]
        if zlib.crc32(index) != crc:
            raise self._error("the checksum of its index is wrong: it is damaged")
        try:
            self._parse(index, start)
        except (ValueError, TypeError, OverflowError, struct.error) as error:
            raise self._error(f"its index is wrong: {error}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return BlobFile, (self.path,)

    def _error(self, what: str) -> ValueError:
        """Make the error for a file that cannot be read; ``what`` is the reason."""
        return ValueError(f"flnb: {self.path} is not a valid blob file: {what}")

    def _parse(self, index: bytes, end: int) -> None:
        """Read ``index``, the bytes of the file's index; ``end`` is the position where the arrays end."""
        length, samples, entries = COUNTS.unpack_from(index)
        text = COUNTS.size + length
        if len(index) != (needed := text + 8 * (samples + 1 + 2 * entries)):
            raise ValueError(f"the index has {len(index)} bytes; {samples} samples of {entries} arrays need {needed}")
        self.kinds = [(_dtype(name), _shape(shape)) for name, shape in json.loads(index[COUNTS.size : text])]
        numbers = np.frombuffer(index, "<i8", offset=text)
        self.first, self.offset, self.kind = np.split(numbers, [samples + 1, samples + 1 + entries])
        steps = np.diff(self.first)
        if self.first[0] != 0 or self.first[-1] != entries or (steps < 0).any():
            raise ValueError(
                "its index is damaged: positions of the samples' first arrays must start at 0 and increase"
            )
        sizes = np.array([dtype.itemsize * math.prod(shape) for dtype, shape in self.kinds], np.int64)
        if entries and not (self.kind.min() >= 0 and self.kind.max() < len(sizes)):
            raise ValueError("an array is of an unknown kind")
        if entries and not (self.offset.min() >= HEADER.size and (sizes[self.kind] <= end - self.offset).all()):
            raise ValueError("an array is outside of the file")

    def read(self, sample: int) -> Arrays:
        """Return read-only views of a sample's arrays."""
        return tuple(
            np.ndarray(self.kinds[k][1], self.kinds[k][0], self.bytes, offset)
            for k, offset in (
                (int(self.kind[entry]), int(self.offset[entry]))
                for entry in range(self.first[sample], self.first[sample + 1])
            )
        )


def _write(file: IO[bytes], samples: Iterable[tuple[Any, ...]]) -> None:
    """Write header, arrays and index in the format that this module's docstring describes."""
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    first, offsets, numbers = [0], [], []
    end = file.write(bytes(HEADER.size))
    for sample in samples:
        for entry in sample:
            array = _storable(entry)
            array = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
            offsets.append(end)
            numbers.append(kinds.setdefault((array.dtype.str, array.shape), len(kinds)))
            end += file.write(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
            end += file.write(bytes(-end % ALIGN))
        first.append(len(offsets))
    text = json.dumps(list(kinds)).encode()
    tables = np.asarray([*first, *offsets, *numbers], "<i8").tobytes()
    index = COUNTS.pack(len(text), len(first) - 1, len(offsets)) + text + tables
    file.write(index)
    file.seek(0)
    file.write(HEADER.pack(MAGIC, VERSION, zlib.crc32(index), end, len(index)))


def _storable(entry: Any) -> npt.NDArray[Any]:
    """Convert an entry to a NumPy array; numbers and lists become float32 or int64, as in `flnb.asarray`."""
    array = np.asarray(ops.asarray(entry).numpy() if isinstance(entry, (int, float, complex, list, tuple)) else entry)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"flnb: a blob stores numbers, got {type(entry).__name__} of dtype {array.dtype}")
    return array


def _dtype(name: Any) -> np.dtype[Any]:
    """Return the numeric dtype for a name in a file's index; raises a ValueError for any other name."""
    dtype = np.dtype(name) if isinstance(name, str) else None
    if dtype is None or dtype.kind not in "biufc":
        raise ValueError(f"{name!r:.40} is not a numeric dtype")
    return dtype


def _shape(extents: Any) -> tuple[int, ...]:
    """Return the shape in a file's index; raises a ValueError if it is invalid."""
    if not isinstance(extents, list) or not all(type(n) is int and n >= 0 for n in extents):
        raise ValueError(f"{extents!r:.40} is not a shape")
    return tuple(extents)
