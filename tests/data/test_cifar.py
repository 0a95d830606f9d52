"""CIFAR-10's files, made here in the published format: read whole, refused otherwise, never executed."""

import hashlib
import io
import os
import pickle
import struct
import tarfile
from types import FunctionType
from typing import ClassVar

import numpy as np
import pytest

from flnb.data import CIFAR10_CLASSES, cifar, cifar10

ROWS = 4


class Python2(pickle._Pickler):
    """Writes what Python 2's pickle wrote, as the published files were: byte strings, NumPy's names of then."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, value):
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    def save_global(self, value, name=None):
        module = {_reconstruct: "numpy.core.multiarray"}.get(value, value.__module__)
        self.write(pickle.GLOBAL + f"{module}\n{value.__name__}\n".encode())
        self.memoize(value)

    dispatch[bytes], dispatch[type], dispatch[FunctionType] = save_bytes, save_global, save_global


def as_python2(value):
    stream = io.BytesIO()
    Python2(stream, protocol=2).dump(value)
    return stream.getvalue()


class Array:
    """Pickles as Python 2's NumPy pickled an array, without asking today's NumPy how."""

    def __init__(self, array, dtype=b"u1"):
        self.array, self.dtype = array, dtype

    def __reduce__(self):
        state = (1, self.array.shape, Dtype(self.dtype), False, self.array.tobytes())
        return _reconstruct, (np.ndarray, (0,), b"b"), state


class Dtype:
    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        return np.dtype, (self.code, 0, 1), (3, b"|", None, None, None, -1, -1, 0)


def _reconstruct():
    """Only its name is written."""


def batch(seed):
    """Pixels, labels, and the file that holds them."""
    rng = np.random.default_rng(seed)
    data, labels = rng.integers(0, 256, (ROWS, 3072), np.uint8), rng.integers(0, 10, ROWS).tolist()
    content = {b"batch_label": b"made", b"labels": labels, b"data": Array(data), b"filenames": [b"a.png"] * ROWS}
    return data, labels, as_python2(content)


@pytest.fixture
def made():
    return {name: batch(seed) for seed, name in enumerate(cifar.BATCHES)}


@pytest.fixture
def folder(tmp_path, made):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, (_, _, content) in made.items():
        (folder / name).write_bytes(content)
    (folder / "readme.html").write_text("not a batch")
    return folder


@pytest.fixture
def archive(folder):
    path = folder.parent / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, folder.name)
    return path


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_reads_images_and_labels_in_the_published_order(kind, made, request):
    train, test = cifar10(request.getfixturevalue(kind), checksum=False)
    parts = list(made.values())
    assert (len(train), len(test)) == (5 * ROWS, ROWS)
    for dataset, expected in ((train, parts[:-1]), (test, parts[-1:])):
        images, labels = (tensor.numpy() for tensor in dataset.tensors)
        assert (images.dtype, labels.dtype, images.shape[1:]) == (np.uint8, np.int64, (3, 32, 32))
        np.testing.assert_array_equal(images.reshape(-1, 3072), np.concatenate([data for data, _, _ in expected]))
        assert labels.tolist() == [label for _, labels, _ in expected for label in labels]
    assert len(CIFAR10_CLASSES) == 10


def test_checksums_are_of_the_archive_and_of_each_file_of_the_folder(archive, folder, made, monkeypatch):
    for path in (archive, folder):
        with pytest.raises(
            ValueError, match=r"has MD5 \w{32}, expected \w{32}: it is cut off or another file; get http"
        ):
            cifar10(path)
    monkeypatch.setattr(cifar, "MD5", hashlib.md5(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(cifar, "BATCHES", {name: hashlib.md5(made[name][2]).hexdigest() for name in made})
    for path in (archive, folder):
        assert len(cifar10(path)[1]) == ROWS
    (folder / "data_batch_3").write_bytes(made["data_batch_4"][2])
    with pytest.raises(ValueError, match="data_batch_3"):
        cifar10(folder)


def test_what_is_absent_is_named_with_the_address(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match=r"nothing at .*absent; get https://www.cs.toronto.edu/.*tar.gz"):
        cifar10(tmp_path / "absent")
    (folder / "data_batch_2").unlink()
    (folder / "test_batch").unlink()
    with pytest.raises(FileNotFoundError, match="has no data_batch_2, test_batch; get https"):
        cifar10(folder, checksum=False)


@pytest.mark.parametrize("kept", [0, 0.01, 0.5, 0.9])
def test_truncated_and_corrupt_files_are_refused(kept, archive, folder, made):
    whole = archive.read_bytes()
    end = int(kept * len(whole))
    archive.write_bytes(whole[:end])
    with pytest.raises(ValueError, match=r"not a whole \.tar\.gz archive"):
        cifar10(archive, checksum=False)
    archive.write_bytes(whole[:end] + bytes(100) + whole[end + 100 :])
    with pytest.raises(ValueError, match=r"not a whole \.tar\.gz archive|not whole or not in CIFAR-10's format"):
        cifar10(archive, checksum=False)
    content = made["test_batch"][2]
    (folder / "test_batch").write_bytes(content[: int(kept * len(content))])
    with pytest.raises(ValueError, match=r"test_batch \([\d,]+ bytes\) is not whole or not in CIFAR-10's format"):
        cifar10(folder, checksum=False)


class Call:
    """A pickle that calls `function(*args)` when it is loaded by `pickle.load`."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


@pytest.mark.parametrize("where", ["instead", "inside"])
def test_a_malicious_pickle_executes_nothing(where, tmp_path, folder):
    mark = tmp_path / "executed"
    call = Call(os.mkdir, str(mark))
    attack = as_python2(call if where == "instead" else {b"data": call, b"labels": []})
    pickle.loads(attack)
    assert mark.exists()  # it does what it says, elsewhere
    mark.rmdir()
    (folder / "data_batch_1").write_bytes(attack)
    with pytest.raises(
        ValueError, match=r"the pickle names \w+\.mkdir, which no file of CIFAR-10 does; nothing was executed"
    ):
        cifar10(folder, checksum=False)
    assert not mark.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {b"labels": [0, 1, 2, 10]},
        {b"labels": [0, -1, 2, 3]},
        {b"labels": [0, 1, 2]},
        {b"labels": b"text"},
        {b"data": Array(np.zeros((ROWS, 3072), np.uint8), b"f4")},
        {b"data": Array(np.zeros((ROWS, 3073), np.uint8))},
        {b"data": Array(np.zeros((ROWS * 2, 1536), np.uint8))},
        {b"data": [1, 2]},
        {b"data": None},
    ],
)
def test_other_contents_are_refused(changes, folder):
    content = {b"labels": [0] * ROWS, b"data": Array(np.zeros((ROWS, 3072), np.uint8))} | changes
    (folder / "data_batch_5").write_bytes(as_python2(content))
    with pytest.raises(ValueError, match="data_batch_5"):
        cifar10(folder, checksum=False)
