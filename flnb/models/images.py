"""The common parts of image models: a classifier, checks of image sizes, initial values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb import ops
from flnb.nn import AvgPool2d, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential, init

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Convolutional(Module):
    """Image classifier (N, channels, image, image) -> logits (N, classes): convolutions, then linear maps with dropout.

    Args:
        channels: channels of the images.
        image: height and width of the images.
        features: the convolutions, ReLUs and poolings, called one after another.
        widths: the number of channels that ``features`` return, the width of each hidden linear map, and the number of
            classes.
        dropout: the probability of dropping a feature.
        before: whether dropout comes before each hidden linear map; if false, it comes after the map's ReLU.
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


def expect_images(model: object, x: Any, channels: int, extent: int | None = None) -> None:
    """Raise a ValueError unless x is (N, channels, extent, extent); without an extent, any height and width will do.

    The message names the class of `model`, the shape that was passed and the expected one.
    """
    heights = tuple(x.shape[2:])
    if x.ndim != 4 or x.shape[1] != channels or (extent is not None and heights != (extent, extent)):
        wanted = f"{channels}, H, W" if extent is None else f"{channels}, {extent}, {extent}"
        raise ValueError(f"{type(model).__name__}: expected images (N, {wanted}), got {tuple(x.shape)}")


def extent_after(model: Module, image: int) -> int:
    """Return the height (and width) of square images after all convolutions and poolings of `model`.

    Args:
        model: a model whose kernels, strides and paddings are the same for rows and columns.
        image: the height and width of the images.

    Raises:
        ValueError: a kernel is larger than what is left of the image.
    """
    extent = image
    for _, layer in model.named_modules():
        if isinstance(layer, (Conv2d, MaxPool2d, AvgPool2d)):
            extents = layer.kernel_size, layer.stride, layer.padding
            kernel, stride, padding = (n if isinstance(n, int) else n[0] for n in extents)
            extent = (extent + 2 * padding - kernel) // stride + 1
            if extent < 1:
                raise ValueError(
                    f"images of {image} x {image} are too small: nothing is left of them after a kernel of {kernel} "
                    f"with stride {stride} and padding {padding}; take larger images"
                )
    return extent


def begin_rectified(model: Module) -> None:
    """Initialise all convolutions for ReLUs: weights by `init.kaiming_normal`, biases 0."""
    for _, layer in model.named_modules():
        if isinstance(layer, Conv2d):
            ops.assign(layer.weight.data, init.kaiming_normal(layer.weight.shape))
            if layer.bias is not None:
                ops.assign(layer.bias.data, 0.0)
