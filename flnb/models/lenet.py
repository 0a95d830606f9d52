"""LeNet-5, a small convolutional network for handwritten digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flnb.models.images import expect_images, extent_after
from flnb.models.recipe import Recipe, noise
from flnb.nn import AvgPool2d, Conv2d, Flatten, Linear, Module, Sequential, Tanh


class LeNet(Module):
    """Image classifier (N, channels, image, image) -> logits (N, classes) (LeCun et al. 1998, section II.B, figure 2).

    Two convolutions, each followed by tanh and average pooling by 2, then three linear maps. ``widths`` are the
    channels of the convolutions (C1 and C3 in the paper) and the features of the hidden maps (C5 and F6). As is usual
    now, three places differ from the paper's 60,000 parameters: the second convolution sees all channels (2,416
    parameters, where table I leads to 1,516), poolings have no parameters (the paper: 44), and the outputs are a linear
    map (850) instead of fixed radial basis functions. With ``kernel=3, padding=1`` convolutions keep the images' size.

    >>> import flnb
    >>> flnb.models.LeNet()(flnb.ones((2, 1, 32, 32))).shape
    (2, 10)
    >>> flnb.models.LeNet(image=8, kernel=3, padding=1)(flnb.ones((2, 1, 8, 8))).shape
    (2, 10)

    Raises:
        ValueError: images too small for the convolutions and poolings, or an x of another shape.
    """

    def __init__(
        self, channels: int = 1, image: int = 32, classes: int = 10, widths: Sequence[int] = (6, 16, 120, 84),
        kernel: int = 5, padding: int = 0,
    ) -> None:  # fmt: skip
        c1, c3, c5, f6 = widths
        self.channels, self.image = channels, image
        self.features = Sequential(
            c1=Conv2d(channels, c1, kernel, padding=padding), tanh1=Tanh(), s2=AvgPool2d(2),
            c3=Conv2d(c1, c3, kernel, padding=padding), tanh2=Tanh(), s4=AvgPool2d(2),
        )  # fmt: skip
        inputs = c3 * extent_after(self.features, image) ** 2
        self.classifier = Sequential(
            flatten=Flatten(), c5=Linear(inputs, c5), tanh1=Tanh(), f6=Linear(c5, f6), tanh2=Tanh(),
            output=Linear(f6, classes),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        expect_images(self, x, self.channels, self.image)
        return self.classifier(self.features(x))


SMALL = {"image": 8, "widths": (6, 16, 32, 16), "kernel": 3, "padding": 1}

LENET_RECIPE = Recipe(
    name="lenet",
    model=LeNet,
    source="LeCun et al. 1998, section II.B, figure 2",
    settings={"paper": {}, "small": SMALL},
    parameters={"paper": 61_706, "small": 3_718},
    batch_sizes={"paper": 64, "small": 64},
    draws={"paper": noise((1, 32, 32), 10), "small": noise((1, 8, 8), 10)},
)
