"""LeNet-5, the network that read cheques."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb import ops
from flnb.models.images import expect_images, images
from flnb.models.recipe import Recipe
from flnb.nn import AvgPool2d, Conv2d, Linear, Module

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LeNet", "RECIPES"]


class LeNet(Module):
    """Images (N, channels, image, image) -> logits (N, classes) (LeCun et al. 1998, section II.B and figure 2).

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
        ValueError: an image so small that nothing is left of it; an x of another size.
    """

    def __init__(
        self, channels: int = 1, image: int = 32, classes: int = 10, widths: Sequence[int] = (6, 16, 120, 84),
        kernel: int = 5, padding: int = 0,
    ) -> None:  # fmt: skip
        extent = image
        for _ in range(2):
            extent = (extent + 2 * padding - kernel + 1) // 2
        if extent < 1:
            raise ValueError(
                f"LeNet: nothing is left of images of {image} after two convolutions with kernel {kernel} and padding "
                f"{padding}, each halved; take larger images, a smaller kernel or more padding"
            )
        c1, c3, c5, f6 = widths
        self.channels, self.image = channels, image
        self.c1 = Conv2d(channels, c1, kernel, padding=padding)
        self.c3 = Conv2d(c1, c3, kernel, padding=padding)
        self.pool = AvgPool2d(2)
        self.c5 = Linear(c3 * extent * extent, c5)
        self.f6 = Linear(c5, f6)
        self.output = Linear(f6, classes)

    def forward(self, x: Any) -> Any:
        expect_images(self, x, self.channels, self.image)
        x = self.pool(ops.tanh(self.c1(x)))
        x = self.pool(ops.tanh(self.c3(x)))
        x = ops.reshape(x, (x.shape[0], -1))
        return self.output(ops.tanh(self.f6(ops.tanh(self.c5(x)))))


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
