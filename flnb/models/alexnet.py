"""AlexNet, in the variant with one column."""

from __future__ import annotations

from collections.abc import Sequence

from flnb.models.images import Convolutional
from flnb.models.recipe import Recipe, noise
from flnb.nn import Conv2d, MaxPool2d, ReLU


class AlexNet(Convolutional):
    """Image classifier (N, channels, image, image) -> logits (N, classes), with one column of convolutions.

    This is the variant of Krizhevsky 2014 ("One weird trick", footnote 1), as in torchvision. The network of Krizhevsky
    et al. 2012 has two columns and a response normalisation (section 3.5), which this one lacks. ``widths`` are the
    channels of the five convolutions; ``hidden`` is the number of features of each of the two hidden linear maps, each
    of which comes after dropout.

    >>> import flnb
    >>> net = flnb.models.AlexNet(image=64, widths=(4, 6, 8, 6, 6), hidden=16, classes=10)
    >>> net(flnb.ones((2, 3, 64, 64))).shape
    (2, 10)

    Raises:
        ValueError: images too small for the convolutions and poolings, or an x of another shape.
    """

    def __init__(
        self, widths: Sequence[int] = (64, 192, 384, 256, 256), hidden: int = 4096, image: int = 224,
        classes: int = 1000, dropout: float = 0.5, channels: int = 3,
    ) -> None:  # fmt: skip
        a, b, c, d, e = widths
        features = (
            Conv2d(channels, a, 11, stride=4, padding=2), ReLU(), MaxPool2d(3, stride=2),
            Conv2d(a, b, 5, padding=2), ReLU(), MaxPool2d(3, stride=2),
            Conv2d(b, c, 3, padding=1), ReLU(),
            Conv2d(c, d, 3, padding=1), ReLU(),
            Conv2d(d, e, 3, padding=1), ReLU(), MaxPool2d(3, stride=2),
        )  # fmt: skip
        super().__init__(channels, image, features, (e, hidden, hidden, classes), dropout)


SMALL = {"widths": (16, 48, 96, 64, 64), "hidden": 512, "image": 128, "classes": 100}

ALEXNET_RECIPE = Recipe(
    name="alexnet",
    model=AlexNet,
    source="Krizhevsky 2014, footnote 1; Krizhevsky et al. 2012, section 3",
    settings={"paper": {}, "small": SMALL},
    parameters={"paper": 61_100_840, "small": 768_308},
    batch_sizes={"paper": 32, "small": 48},
    draws={"paper": noise((3, 224, 224), 1000), "small": noise((3, 128, 128), 100)},
)
