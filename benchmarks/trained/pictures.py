"""Images to classify that need no download: patches of pictures that come with scikit-image, or CIFAR-10's files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.data import TensorDataset, cifar10

if TYPE_CHECKING:
    from argparse import Namespace

    Images = np.ndarray[Any, np.dtype[np.uint8]]

PICTURES = (
    "astronaut", "brick", "camera", "cell", "chelsea", "coffee", "coins", "grass", "gravel", "hubble_deep_field",
    "immunohistochemistry", "moon", "retina", "rocket",
)  # fmt: skip
"""scikit-image's pictures by their functions' names; scikit-learn's two photographs come after them."""
EXTENT, CELL = 32, 64
TRAIN, TEST = 250, 32
"""The number of patches that are cut from each picture, for training and for test."""


def image_set(options: Namespace) -> tuple[TensorDataset, TensorDataset, int]:
    """Return training set, test set and number of classes: images (N, 3, 32, 32) float32, labels int64.

    If the option "cifar" has the path of CIFAR-10, these are its first 10,000 training and 1,000 test images. Otherwise
    they are patches of photographs.
    """
    if options.cifar:
        train, test = cifar10(options.cifar)
        parts = [[tensor.numpy()[:count] for tensor in part.tensors] for part, count in ((train, 10_000), (test, 1000))]
        classes = 10
    else:
        pictures = photographs()
        parts, classes = patches(pictures), len(pictures)
    train, test = (TensorDataset((images / 255 - 0.5).astype(np.float32) * 4, labels) for images, labels in parts)
    return train, test, classes


def photographs() -> list[Images]:
    """Return the pictures of scikit-image and scikit-learn, each (height, width, 3) uint8.

    Grey pictures have three equal channels.
    """
    try:
        from skimage import data
        from sklearn.datasets import load_sample_images
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the pictures are scikit-image's and scikit-learn's ({error}); install them with: pip install "
            "scikit-image 'flnb[lab]', or pass CIFAR-10's archive: --cifar PATH"
        ) from error
    pictures = [getattr(data, name)() for name in PICTURES] + load_sample_images().images
    return [picture if picture.ndim == 3 else picture[..., None].repeat(3, axis=2) for picture in pictures]


def patches(pictures: list[Images], seed: int = 0) -> list[tuple[Images, Any]]:
    """Return patches (N, 3, 32, 32) of the pictures with the number of their picture, for training and for test.

    A picture is cut into cells of 64 x 64 pixels, a third of them for test. A patch is within one cell, so that no
    pixel is in both sets. A patch for training is anywhere in its cell; patches for test are quarters of cells, each
    used at most once.
    """
    rng = np.random.default_rng(seed)
    parts: tuple[list[Images], list[Images]] = ([], [])
    for picture in pictures:
        rows, columns = (side // CELL for side in picture.shape[:2])
        cells = [(CELL * int(cell // columns), CELL * int(cell % columns)) for cell in rng.permutation(rows * columns)]
        held_out, rest = cells[: len(cells) // 3], cells[len(cells) // 3 :]
        quarters = [(y + dy, x + dx) for y, x in held_out for dy in (0, EXTENT) for dx in (0, EXTENT)]
        offsets = rng.integers(0, CELL - EXTENT, (TRAIN, 2), endpoint=True)
        anywhere = [(rest[i % len(rest)][0] + dy, rest[i % len(rest)][1] + dx) for i, (dy, dx) in enumerate(offsets)]
        for part, corners in zip(parts, (anywhere, quarters[:TEST]), strict=True):
            part.append(np.stack([picture[y : y + EXTENT, x : x + EXTENT] for y, x in corners]))
    return [
        (np.concatenate(part).transpose(0, 3, 1, 2), np.repeat(np.arange(len(part)), [len(own) for own in part]))
        for part in parts
    ]
