"""What the models of images share: random batches, and the check of what they are called with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from flnb.models.recipe import Batch, Draw

__all__ = ["expect_images", "images"]


def images(extent: int, classes: int, channels: int = 3) -> Draw:
    """Batches of normal images (N, channels, extent, extent), float32, and their classes (N,), int64."""

    def draw(generator: np.random.Generator, size: int) -> Batch:
        x = generator.standard_normal((size, channels, extent, extent), dtype=np.float32)
        return x, generator.integers(classes, size=size)

    return draw


def expect_images(model: object, x: Any, channels: int, extent: int | None = None) -> None:
    """Refuse an x that is not (N, channels, extent, extent); with no extent, of any height and width.

    Raises:
        ValueError: what was expected and what was got.
    """
    heights = tuple(x.shape[2:])
    if x.ndim != 4 or x.shape[1] != channels or (extent is not None and heights != (extent, extent)):
        wanted = f"{channels}, H, W" if extent is None else f"{channels}, {extent}, {extent}"
        raise ValueError(f"{type(model).__name__}: expected images (N, {wanted}), got {tuple(x.shape)}")
