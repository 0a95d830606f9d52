"""GoogLeNet: stages of inception modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flnb import ops
from flnb.models.images import begin_rectified, expect_images, extent_after
from flnb.models.recipe import Recipe, noise
from flnb.nn import AvgPool2d, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential

# Szegedy et al. 2015, table 1: channels of 1 x 1; of 3 x 3 reduced, 3 x 3; of 5 x 5 reduced, 5 x 5; after pooling.
TABLE = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


class Inception(Module):
    """Four branches of convolutions, concatenated: (N, channels, H, W) -> (N, made, H, W) (figure 2b of the paper).

    ``widths`` are six numbers of channels, as in a row of the paper's table 1: of the 1 x 1 convolution; of the
    reduction before the 3 x 3 convolution, and of that convolution; of the reduction before the 5 x 5 convolution, and
    of that convolution; of the 1 x 1 convolution after max pooling. ``made`` is the number of channels of the result.

    >>> import flnb
    >>> module = Inception(6, (2, 3, 4, 1, 2, 2))
    >>> module(flnb.ones((1, 6, 5, 5))).shape, module.made
    ((1, 10, 5, 5), 10)
    """

    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        one, reduced3, three, reduced5, five, pooled = widths
        self.made = one + three + five + pooled
        self.one = Sequential(Conv2d(channels, one, 1), ReLU())
        self.three = Sequential(Conv2d(channels, reduced3, 1), ReLU(), Conv2d(reduced3, three, 3, padding=1), ReLU())
        self.five = Sequential(Conv2d(channels, reduced5, 1), ReLU(), Conv2d(reduced5, five, 5, padding=2), ReLU())
        self.pooled = Sequential(MaxPool2d(3, stride=1, padding=1), Conv2d(channels, pooled, 1), ReLU())

    def forward(self, x: Any) -> Any:
        return ops.concat([self.one(x), self.three(x), self.five(x), self.pooled(x)], axis=1)


class GoogLeNet(Module):
    """Image classifier (N, channels, image, image) -> logits (N, classes) (Szegedy et al. 2015, section 5).

    The paper's network (table 1) with 5 x 5 convolutions and biases, without batch norm, and without the two response
    normalisations of its figure 3, which have no parameters. With ``auxiliary``, two more classifiers get the results
    of the modules 4a and 4d (section 5). In training mode, the model then returns three tensors of logits: its own,
    those after module 4a, those after 4d. All numbers of channels are multiplied by ``width``.

    It has 6,998,552 parameters, or 13,378,280 with auxiliary classifiers. The column "params" of table 1 counts weights
    in units of 1024 and agrees to 8%, except for the first convolution: it has 9,408 weights (7 x 7 x 3 x 64), the
    table says 2.7K.

    >>> import flnb
    >>> net = flnb.models.GoogLeNet(width=0.125, image=32, classes=10)
    >>> net(flnb.ones((2, 3, 32, 32))).shape
    (2, 10)

    Raises:
        ValueError: images too small for the auxiliary classifiers, or an x of another shape.
    """

    def __init__(
        self, width: float = 1.0, image: int = 224, classes: int = 1000, auxiliary: bool = False, dropout: float = 0.4,
        channels: int = 3,
    ) -> None:  # fmt: skip
        def scaled(count: int) -> int:
            """Return ``count``, a number of channels, multiplied by the model's ``width``."""
            return max(1, round(count * width))

        made = second = scaled(192)
        inceptions: dict[str, Inception] = {}
        for row, widths in TABLE.items():
            inceptions[row] = Inception(made, [scaled(count) for count in widths])
            made = inceptions[row].made

        first, self.channels, self.image = scaled(64), channels, image
        self.early = Sequential(
            Conv2d(channels, first, 7, stride=2, padding=3), ReLU(), _halving(),
            Conv2d(first, first, 1), ReLU(), Conv2d(first, second, 3, padding=1), ReLU(), _halving(),
            inceptions["3a"], inceptions["3b"], _halving(), inceptions["4a"],
        )  # fmt: skip
        self.middle = Sequential(inceptions["4b"], inceptions["4c"], inceptions["4d"])
        self.late = Sequential(inceptions["4e"], _halving(), inceptions["5a"], inceptions["5b"])
        self.classifier = Sequential(Dropout(dropout), Linear(made, classes))
        self.auxiliary = [
            _auxiliary(inceptions[row].made, extent_after(self.early, image), width, classes)
            for row in (("4a", "4d") if auxiliary else ())
        ]
        begin_rectified(self)

    def forward(self, x: Any) -> Any:
        expect_images(self, x, self.channels, self.image)
        early = self.early(x)
        middle = self.middle(early)
        logits = self.classifier(ops.mean(self.late(middle), axis=(2, 3)))
        if not (self.training and self.auxiliary):
            return logits
        return logits, *(aside(y) for aside, y in zip(self.auxiliary, (early, middle), strict=True))


def _halving() -> MaxPool2d:
    """Return a max pooling that halves an even height and width; it pads the image where the paper rounds sizes up."""
    return MaxPool2d(3, stride=2, padding=1)


def _auxiliary(channels: int, extent: int, width: float, classes: int) -> Sequential:
    """Return an auxiliary classifier (section 5): (N, channels, extent, extent) -> logits (N, classes).

    ``width`` multiplies the numbers of channels and features of the paper.
    """
    if extent < 5:
        raise ValueError(
            f"GoogLeNet: the auxiliary classifiers need 5 x 5 positions, the convolutions leave {extent} x {extent}; "
            "use images of 80 x 80 or more, or auxiliary=False"
        )
    reduced, hidden, left = round(128 * width), round(1024 * width), (extent - 5) // 3 + 1
    return Sequential(
        AvgPool2d(5, stride=3), Conv2d(channels, reduced, 1), ReLU(), Flatten(),
        Linear(reduced * left * left, hidden), ReLU(), Dropout(0.7), Linear(hidden, classes),
    )  # fmt: skip


def with_auxiliary(model: Module, x: Any, targets: Any) -> Any:
    """Return the model's cross-entropy plus 0.3 times that of each auxiliary classifier (section 5)."""
    made = model(x)
    logits, *asides = made if isinstance(made, tuple) else (made,)
    loss = ops.cross_entropy(logits, targets)
    for aside in asides:
        loss = loss + 0.3 * ops.cross_entropy(aside, targets)
    return loss


GOOGLENET_RECIPE = Recipe(
    name="googlenet",
    model=GoogLeNet,
    source="Szegedy et al. 2015, section 5 and table 1, without the auxiliary classifiers",
    settings={"paper": {}, "small": {"width": 0.25, "image": 64, "classes": 100}},
    parameters={"paper": 6_998_552, "small": 402_176},
    batch_sizes={"paper": 128, "small": 24},
    draws={"paper": noise((3, 224, 224), 1000), "small": noise((3, 64, 64), 100)},
    loss=with_auxiliary,
)
