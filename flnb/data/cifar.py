"""CIFAR-10, read from the files that its authors publish without executing code in them."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.data.datasets import TensorDataset

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
MD5 = "c58f30108f718f92721af3b95e74349a"
BATCHES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
"""The names of the files with images in the archive, and their MD5 checksums."""
SHAPE = (3, 32, 32)
ANEW = f"get {URL} (170,498,071 bytes, MD5 {MD5}) and pass its path, or that of the folder cifar-10-batches-py in it"


def cifar10(path: str | os.PathLike[str], checksum: bool = True) -> tuple[TensorDataset, TensorDataset]:
    """Read CIFAR-10, 60,000 small photographs of ten classes; nothing is downloaded.

    Krizhevsky, 2009, "Learning multiple layers of features from tiny images", chapter 3.

    Args:
        path: the archive "cifar-10-python.tar.gz", or its unpacked folder "cifar-10-batches-py".
        checksum: accept only the published files; if false, any files of the same format.

    Returns:
        The training set of 50,000 and the test set of 10,000 samples: images (3, 32, 32), uint8, and labels, int64,
        whose names are `CIFAR10_CLASSES`.

    Raises:
        FileNotFoundError: there is nothing at ``path``, or a file is missing in it; the message says where to get it.
        ValueError: a file that is not the published one, is incomplete, or has another format.
    """
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"flnb: cifar10: there is nothing at {source}; {ANEW}")
    found = {name: _batch(name, content) for name, content in _contents(source, checksum)}
    if missing := [name for name in BATCHES if name not in found]:
        raise FileNotFoundError(f"flnb: cifar10: {source} has no {', '.join(missing)}; {ANEW}")
    images, labels = zip(*(found[name] for name in BATCHES), strict=True)
    return (
        TensorDataset(np.concatenate(images[:-1]), np.concatenate(labels[:-1])),
        TensorDataset(images[-1], labels[-1]),
    )


def _contents(source: Path, checksum: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file with images, from a folder or an archive; check them if ``checksum``."""
    if source.is_dir():
        for name in BATCHES:
            if (source / name).is_file():
                content = (source / name).read_bytes()
                if checksum:
                    _same(source / name, hashlib.md5(content, usedforsecurity=False).hexdigest(), BATCHES[name])
                yield name, content
        return
    if checksum:
        with source.open("rb") as file:
            _same(source, hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest(), MD5)
    try:
        with gzip.open(source) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as archive:
            for member in archive:  # in the archive's order: going back in it would unpack it again
                name = PurePosixPath(member.name).name
                if name in BATCHES and member.isreg() and (stream := archive.extractfile(member)):
                    yield name, stream.read()
            while unpacked.read(2**20):
                pass  # to its end, where gzip compares its own checksum
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise ValueError(f"flnb: cifar10: {source} is not a whole .tar.gz archive ({error}); {ANEW}") from error


def _same(source: Path, got: str, expected: str) -> None:
    """Raise a ValueError unless ``got``, the checksum of the file ``source``, is ``expected``."""
    if got != expected:
        raise ValueError(
            f"flnb: cifar10: {source} ({source.stat().st_size:,} bytes) has MD5 {got}, expected {expected}: it is cut "
            f"off or another file; {ANEW}"
        )


def _batch(name: str, content: bytes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Read images (N, 3, 32, 32) and labels (N,) from one file, a pickled dict with an array (N, 3072) and a list."""
    try:
        batch = _Reader(io.BytesIO(content), encoding="bytes").load()
        _, (rows, width), dtype, by_columns, pixels = batch[b"data"].state
        labels = np.asarray(batch[b"labels"], np.int64)
        images = np.frombuffer(pixels, np.uint8).reshape(rows, *SHAPE)
    except Exception as error:  # a broken pickle raises anything
        raise ValueError(
            f"flnb: cifar10: {name} ({len(content):,} bytes) is not whole or not in CIFAR-10's format "
            f"({type(error).__name__}: {error}); {ANEW}"
        ) from error
    expected = (3072, b"u1", False, (rows,))
    got = (width, dtype.args[0], by_columns, labels.shape)
    if got != expected or not ((labels >= 0) & (labels < len(CIFAR10_CLASSES))).all():
        raise ValueError(
            f"flnb: cifar10: {name}: expected {rows} images of 3072 bytes (uint8) in rows and {rows} labels from 0 "
            f"to 9, got {width} bytes each, dtype {dtype.args[0]}, labels of shape {labels.shape} from "
            f"{labels.min(initial=0)} to {labels.max(initial=0)}; {ANEW}"
        )
    return images, labels


class _Kept:
    """Placeholder for a NumPy array or dtype in a pickle: stores the pickled arguments and makes no array."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle.Unpickler):
    """An unpickler that executes no code: it replaces three names of NumPy by `_Kept`, and rejects all other names."""

    def find_class(self, module: str, name: str) -> type[_Kept]:
        if (module, name) in {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}:
            return _Kept
        raise pickle.UnpicklingError(
            f"the pickle names {module}.{name}, which no file of CIFAR-10 does; nothing was executed"
        )
