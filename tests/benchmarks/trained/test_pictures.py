"""Patches of pictures: no pixel in both parts; baselines by hand; CIFAR-10 instead where it is given."""

from argparse import Namespace

import numpy as np
import pytest

from benchmarks.trained import pictures
from benchmarks.trained.classifying import accuracy, chance, nearest_mean
from benchmarks.trained.pictures import CELL, EXTENT, PICTURES, TEST, TRAIN, image_set, patches
from flnb.data import TensorDataset


def coordinates(height, width):
    """A picture whose pixels say where they are."""
    y, x = np.mgrid[:height, :width]
    return np.stack([y, x, 0 * x], axis=-1).astype(np.int64)


def test_no_pixel_of_a_test_patch_is_in_a_training_patch():
    made = [coordinates(300, 451), coordinates(5 * CELL, 6 * CELL)]
    (train, labels), (test, held_out) = patches(made)
    assert train.shape == (2 * TRAIN, 3, EXTENT, EXTENT)
    assert test.shape == (2 * TEST, 3, EXTENT, EXTENT)
    for picture in range(2):
        seen, kept = (
            [np.unique(patch[0] * 1000 + patch[1]) for patch in part[of == picture]]
            for part, of in ((train, labels), (test, held_out))
        )
        assert all(len(pixels) == EXTENT**2 for pixels in seen + kept)
        assert np.intersect1d(np.concatenate(seen), np.concatenate(kept)).size == 0
        assert len(np.unique(np.concatenate(kept))) == TEST * EXTENT**2  # nor twice in the test


def test_the_bundled_pictures_make_a_balanced_set():
    pytest.importorskip("skimage")
    train, test, classes = image_set(Namespace(cifar=None))
    assert classes == len(PICTURES) + 2
    assert np.bincount(train.tensors[1].numpy()).tolist() == [TRAIN] * classes
    assert np.bincount(test.tensors[1].numpy()).tolist() == [TEST] * classes
    images = train.tensors[0].numpy()
    assert images.dtype == np.float32
    assert -2 <= images.min() < images.max() <= 2
    assert chance(test) == 100 / classes
    assert chance(test) < nearest_mean(train, test, axes=(2, 3)) < 60


def test_cifar_is_read_where_its_path_is_given(tmp_path, monkeypatch):
    path = tmp_path / "cifar-10-python.tar.gz"
    with pytest.raises(FileNotFoundError, match=r"nothing at .*cifar-10.*; get https"):
        image_set(Namespace(cifar=path))
    images = np.full((1001, 3, 32, 32), 255, np.uint8)
    images[:, 0] = 0
    made = TensorDataset(images, np.arange(1001) % 10)
    monkeypatch.setattr(pictures, "cifar10", lambda given: (made, made) if given == path else None)
    train, test, classes = image_set(Namespace(cifar=path))
    assert (len(train), len(test), classes) == (1001, 1000, 10)
    assert np.unique(train.tensors[0].numpy()).tolist() == [-2.0, 2.0]
    assert test.tensors[1].numpy().tolist() == (np.arange(1000) % 10).tolist()


def test_baselines_by_hand():
    images = np.asarray([[0, 4], [1, 3], [10, 10], [8, 12]], np.float32).reshape(4, 1, 1, 2)
    train = TensorDataset(images, np.asarray([0, 0, 1, 1]))
    test = TensorDataset(images + 1, np.asarray([0, 1, 1, 1]))
    assert chance(test) == 75.0
    assert nearest_mean(train, test, axes=(2, 3)) == nearest_mean(train, test) == 75.0
    assert accuracy(lambda x: x[:, 0, 0], test, batch=3) == 50.0  # the second pixel is the greater in all but one
