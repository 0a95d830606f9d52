"""OverFeat's fast model."""

from __future__ import annotations

from collections.abc import Sequence

from flnb.models.images import Convolutional
from flnb.models.recipe import Recipe, noise
from flnb.nn import Conv2d, MaxPool2d, ReLU


class OverFeat(Convolutional):
    """Image classifier (N, channels, image, image) -> logits (N, classes) (Sermanet et al. 2014, table 1, fast model).

    ``widths`` are the channels of the five convolutions, ``hidden`` the features of the two hidden linear maps, each of
    which comes after dropout (section 3.2). The defaults have the 145 million parameters that table 4 states.

    >>> import flnb
    >>> net = flnb.models.OverFeat((4, 6, 8, 8, 8), hidden=(16, 16), image=71, classes=10)
    >>> net(flnb.ones((2, 3, 71, 71))).shape
    (2, 10)

    Raises:
        ValueError: images too small for the convolutions and poolings, or an x of another shape.
    """

    def __init__(
        self, widths: Sequence[int] = (96, 256, 512, 1024, 1024), hidden: Sequence[int] = (3072, 4096),
        image: int = 231, classes: int = 1000, dropout: float = 0.5, channels: int = 3,
    ) -> None:  # fmt: skip
        a, b, c, d, e = widths
        features = (
            Conv2d(channels, a, 11, stride=4), ReLU(), MaxPool2d(2),
            Conv2d(a, b, 5), ReLU(), MaxPool2d(2),
            Conv2d(b, c, 3, padding=1), ReLU(),
            Conv2d(c, d, 3, padding=1), ReLU(),
            Conv2d(d, e, 3, padding=1), ReLU(), MaxPool2d(2),
        )  # fmt: skip
        super().__init__(channels, image, features, (e, *hidden, classes), dropout)


SMALL = {"widths": (16, 48, 96, 128, 128), "hidden": (384, 512), "image": 135, "classes": 100}

OVERFEAT_RECIPE = Recipe(
    name="overfeat",
    model=OverFeat,
    source="Sermanet et al. 2014, table 1",
    settings={"paper": {}, "small": SMALL},
    parameters={"paper": 145_920_872, "small": 1_016_116},
    batch_sizes={"paper": 128, "small": 48},
    draws={"paper": noise((3, 231, 231), 1000), "small": noise((3, 135, 135), 100)},
)
