"""LeNet-5, the network that read cheques."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flnb.models.images import expect_images, extent_after, images
from flnb.models.recipe import Recipe
from flnb.nn import AvgPool2d, Conv2d, Flatten, Linear, Module, Sequential, Tanh

__all__ = ["LeNet", "RECIPES"]


class LeNet(Module):
    """Image classifier (N, channels, image, image) -> logits (N, classes) (LeCun et al. 1998, section II.B, figure 2).

    Two convolutions, each followed by tanh and average pooling by 2, then three linear maps; ``widths`` are the
    channels of the convolutions C1 and C3 and the features of C5 and F6. Of the paper's 60,000 parameters this differs,
    as is usual now, in three places: C3 sees all channels of S2 (2,416 parameters where the paper's table I has 1,516),
    pooling has none (the paper: 44), and the outputs are a linear map (850) instead of fixed radial basis functions.
    For small images, ``kernel=3, padding=1`` keeps their size.

    >>> import flnb
    >>> LeNet()(flnb.ones((2, 1, 32, 32))).shape
    (2, 10)
    >>> LeNet(image=8, kernel=3, padding=1)(flnb.ones((2, 1, 8, 8))).shape
    (2, 10)

    Raises:
        ValueError: images so small that nothing is left of them; an x of another size.
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

RECIPES = (
    Recipe(
        name="lenet",
        model=LeNet,
        source="LeCun et al. 1998, section II.B, figure 2",
        settings={"paper": {}, "small": SMALL},
        parameters={"paper": 61_706, "small": 3_718},
        batch_sizes={"paper": 64, "small": 64},
        draws={"paper": images(32, 10, channels=1), "small": images(8, 10, channels=1)},
    ),
)
