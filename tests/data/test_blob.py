"""Blobs hold any arrays; files come back whole or not at all."""

import pickle
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from flnb.data import BatchDataset, BlobDataset, FileBlobDataset
from flnb.data.blob import COUNTS, HEADER, MAGIC

arrays = st.one_of(
    *(hn.arrays(dtype, hn.array_shapes(min_dims=0, min_side=0, max_side=3)) for dtype in ("<f4", ">f8", "u1", "?"))
)
SAMPLES = [(np.arange(6, dtype=np.float32).reshape(2, 3), 7), (np.zeros((0, 2)),), ()]


@given(st.lists(st.lists(arrays, max_size=3).map(tuple), max_size=5))
def test_files_give_back_what_was_written(tmp_path_factory, samples):
    path = tmp_path_factory.mktemp("blob") / "samples"
    blob = BlobDataset(samples)
    blob.save(path)
    file = pickle.loads(pickle.dumps(FileBlobDataset(path)))
    assert len(file) == len(blob) == len(samples)
    for i, sample in enumerate(samples):
        for dataset in (file, blob):
            for got, expected in zip(dataset.arrays(i), sample, strict=True):
                np.testing.assert_array_equal(got, expected)
                assert got.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
            assert [x.shape for x in dataset[i]] == [x.shape for x in sample]


def test_batches_and_indices(tmp_path):
    FileBlobDataset.write(tmp_path / "b", ((np.full(3, i), i) for i in range(5)))
    file = FileBlobDataset(tmp_path / "b")
    assert [y.tolist() for _, y in BatchDataset(file, 2)] == [[0, 1], [2, 3], [4]]
    assert int(file[-1][1]) == 4
    with pytest.raises(IndexError, match="FileBlobDataset of length 5 has no item 5"):
        file[5]
    with pytest.raises(TypeError, match="cannot grow"):
        file.add(1)
    with pytest.raises(ValueError, match="read-only"):
        file.arrays(0)[0][:] = 1


def test_every_truncation_and_every_wrong_byte_of_the_index_is_an_error(tmp_path):
    path = tmp_path / "b"
    BlobDataset(SAMPLES).save(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is not a valid blob file"):
            FileBlobDataset(path)
    start = int.from_bytes(whole[16:24], "little")
    for place in [*range(32), *range(start, len(whole))]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="is not a valid blob file"):
            FileBlobDataset(path)


@pytest.mark.parametrize(
    "content", [b"", pickle.dumps(list(range(100))), b"\x89PNG" * 100], ids=["empty", "pickle", "png"]
)
def test_foreign_files_are_told(tmp_path, content):
    (tmp_path / "b").write_bytes(content)
    with pytest.raises(ValueError, match=r"b is not a valid blob file: it (has 0 bytes|begins with b)"):
        FileBlobDataset(tmp_path / "b")


def test_an_index_that_lies_is_an_error(tmp_path):
    for kinds, tables, text in [
        (b'[["<f4", [9]]]', [0, 1, 64, 0], "outside of the file"),
        (b'[["<f4", [0]]]', [0, 1, 64, 1], "unknown kind"),
        (b'[["<f4", [0]]]', [1, 0, 64, 0], "must start at 0 and increase"),
        (b'[["O", [0]]]', [0, 1, 64, 0], "not a numeric dtype"),
        (b'[["<f4", [-1]]]', [0, 1, 64, 0], "is not a shape"),
        (b"[3]", [0, 1, 64, 0], "index is wrong"),
        (b"{", [0, 1, 64, 0], "index is wrong"),
        (b"[]", [0, 1, 64], " 1 samples of "),
    ]:
        index = COUNTS.pack(len(kinds), 1, 1) + kinds + struct.pack(f"<{len(tables)}q", *tables)
        header = HEADER.pack(MAGIC, 1, zlib.crc32(index), HEADER.size, len(index))
        (tmp_path / "b").write_bytes(header + index)
        with pytest.raises(ValueError, match=text):
            FileBlobDataset(tmp_path / "b")


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "b"
    BlobDataset(SAMPLES).save(path)

    def samples():
        yield (1,)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        FileBlobDataset.write(path, samples())
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
    assert len(FileBlobDataset(path)) == len(SAMPLES)
    with pytest.raises(TypeError, match="stores numbers, got ndarray of dtype object"):
        BlobDataset([(np.asarray([object()]),)])
