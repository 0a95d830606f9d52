"""The common parts of image models: their classifier, random batches, checks of sizes, initial values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flnb import ops
from flnb.nn import AvgPool2d, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential, init

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flnb.models.recipe import Batch, Draw

__all__ = ["Convolutional", "begin_rectified", "expect_images", "extent_after", "images"]


class Convolutional(Module):
    """Image classifier (N, channels, image, image) -> logits (N, classes): convolutions, then linear maps with dropout.

    ``widths`` are the channels that ``features`` produce, the features of the hidden maps, and the classes. Dropout is
    before each hidden map, or after its rectifier if ``before`` is false.
    """

    def __init__(
        self, channels: int, image: int, features: Iterable[Module], widths: Sequence[int], dropout: float,
        before: bool = True,
    ) -> None:  # fmt: skip
        self.channels, self.image = channels, image
        self.features = Sequential(*features)
        layers: list[Module] = [Flatten()]
        inputs = widths[0] * extent_after(self.features, image) ** 2
        for made in widths[1:-1]:
            hidden = [Linear(inputs, made), ReLU()]
            layers += [Dropout(dropout), *hidden] if before else [*hidden, Dropout(dropout)]
            inputs = made
        self.classifier = Sequential(*layers, Linear(inputs, widths[-1]))
        begin_rectified(self)

    def forward(self, x: Any) -> Any:
        expect_images(self, x, self.channels, self.image)
        return self.classifier(self.features(x))


def images(extent: int, classes: int, channels: int = 3) -> Draw:
    """Batches of normal images (N, channels, extent, extent), float32, and their classes (N,), int64."""

    def draw(generator: np.random.Generator, size: int) -> Batch:
        x = generator.standard_normal((size, channels, extent, extent), dtype=np.float32)
        return x, generator.integers(classes, size=size)

    return draw


def expect_images(model: object, x: Any, channels: int, extent: int | None = None) -> None:
    """Refuse an x that is not (N, channels, extent, extent); with no extent, of any height and width.

    Raises:
        ValueError: another shape; names it and the expected one.
    """
    heights = tuple(x.shape[2:])
    if x.ndim != 4 or x.shape[1] != channels or (extent is not None and heights != (extent, extent)):
        wanted = f"{channels}, H, W" if extent is None else f"{channels}, {extent}, {extent}"
        raise ValueError(f"{type(model).__name__}: expected images (N, {wanted}), got {tuple(x.shape)}")


def extent_after(model: Module, image: int) -> int:
    """Height and width of an image after the square convolutions and poolings of `model`, one after another.

    Raises:
        ValueError: nothing is left.
    """
    extent = image
    for _, layer in model.named_modules():
        if isinstance(layer, (Conv2d, MaxPool2d, AvgPool2d)):
            kernel, stride, padding = (_first(extents) for extents in (layer.kernel_size, layer.stride, layer.padding))
            extent = (extent + 2 * padding - kernel) // stride + 1
            if extent < 1:
                raise ValueError(
                    f"images of {image} x {image} are too small: nothing is left of them after a kernel of {kernel} "
                    f"with stride {stride} and padding {padding}; take larger images"
                )
    return extent


def _first(extents: int | tuple[int, ...]) -> int:
    return extents if isinstance(extents, int) else extents[0]


def begin_rectified(model: Module) -> None:
    """Draw the weights of all convolutions for rectifiers (He et al. 2015, section 2.2), set their biases to 0."""
    for _, layer in model.named_modules():
        if isinstance(layer, Conv2d):
            ops.assign(layer.weight.data, init.kaiming_normal(layer.weight.shape))
            if layer.bias is not None:
                ops.assign(layer.bias.data, 0.0)
