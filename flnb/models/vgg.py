"""The VGG networks: stages of small convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flnb.models.images import Convolutional
from flnb.models.recipe import Recipe, noise
from flnb.nn import Conv2d, MaxPool2d, Module, ReLU


class VGG(Convolutional):
    """Image classifier (N, channels, image, image) -> logits (N, classes) (Simonyan and Zisserman 2015, table 1).

    Stage i has ``depths[i]`` 3 x 3 convolutions of ``widths[i]`` channels, then max pooling by 2. With depths (1, 1, 2,
    2, 2) the model is the paper's network A (VGG-11), with (2, 2, 3, 3, 3) its network D (VGG-16). Two hidden linear
    maps of ``hidden`` features follow, each with dropout. Convolutions are initialised as in He et al. 2015; the paper
    instead trains small networks first, from which deeper ones are initialised.

    >>> import flnb
    >>> net = flnb.models.VGG((1, 2), widths=(4, 8), hidden=16, image=8, classes=10)
    >>> net(flnb.ones((2, 3, 8, 8))).shape
    (2, 10)

    Raises:
        ValueError: another number of widths than of depths; images too small for the convolutions and poolings, or an x
            of another shape.
    """

    def __init__(
        self, depths: Sequence[int], widths: Sequence[int] = (64, 128, 256, 512, 512), hidden: int = 4096,
        image: int = 224, classes: int = 1000, dropout: float = 0.5, channels: int = 3,
    ) -> None:  # fmt: skip
        if len(depths) != len(widths):
            raise ValueError(f"VGG: expected one width for each depth, got depths {depths} and widths {widths}")
        features, maps = _stages(channels, depths, widths), (widths[-1], hidden, hidden, classes)
        super().__init__(channels, image, features, maps, dropout, before=False)


def _stages(channels: int, depths: Sequence[int], widths: Sequence[int]) -> Iterator[Module]:
    """Yield the convolutions, ReLUs and poolings for images with `channels`, in order.

    Each stage has as many convolutions as ``depths`` says, with as many output channels as ``widths`` says.
    """
    for depth, width in zip(depths, widths, strict=True):
        for _ in range(depth):
            yield Conv2d(channels, width, 3, padding=1)
            yield ReLU()
            channels = width
        yield MaxPool2d(2)


def _recipe(name: str, column: str, depths: tuple[int, ...], parameters: dict[str, int], batch: int) -> Recipe:
    """Return the recipe of one of the networks in the paper's table 1.

    Args:
        name: the model's name for `flnb.models.get`.
        column: the letter of the network's column in the table.
        depths: the number of convolutions in each stage.
        parameters: the number of trained numbers in the scales "paper" and "small".
        batch: the batch size in the scale "paper".
    """
    small = {"widths": (16, 32, 64, 128, 128), "hidden": 256, "image": 64, "classes": 100}
    return Recipe(
        name=name,
        model=VGG,
        source=f"Simonyan and Zisserman 2015, table 1, column {column}",
        settings={"paper": {"depths": depths}, "small": {"depths": depths, **small}},
        parameters=parameters,
        batch_sizes={"paper": batch, "small": 24},
        draws={"paper": noise((3, 224, 224), 1000), "small": noise((3, 64, 64), 100)},
    )


VGG_RECIPES = (
    _recipe("vgg-a", "A", (1, 1, 2, 2, 2), {"paper": 132_863_336, "small": 799_940}, batch=64),
    _recipe("vgg16", "D", (2, 2, 3, 3, 3), {"paper": 138_357_544, "small": 1_143_604}, batch=32),
)
