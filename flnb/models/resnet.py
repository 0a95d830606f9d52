"""Residual networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flnb import ops
from flnb.models.images import begin_rectified, expect_images
from flnb.models.recipe import Recipe, noise
from flnb.nn import BatchNorm, Conv2d, Linear, MaxPool2d, Module, Sequential


class _Block(Module):
    """Adds the result of convolutions, batch norms and ReLUs to x, or to a 1 x 1 convolution of x if shapes differ.

    See He et al. 2016, section 3.3, option B. Members have torchvision's names: conv1, bn1, conv2, ..., downsample.
    """

    expansion: ClassVar[int]

    def __init__(self, *convolutions: Conv2d, stride: int) -> None:
        self._depth = len(convolutions)
        for i, convolution in enumerate(convolutions, 1):
            setattr(self, f"conv{i}", convolution)
            setattr(self, f"bn{i}", BatchNorm(convolution.out_channels))
        channels, made = convolutions[0].in_channels, convolutions[-1].out_channels
        changes = stride != 1 or channels != made
        shortcut = Conv2d(channels, made, 1, stride=stride, bias=False)
        self.downsample = Sequential(shortcut, BatchNorm(made)) if changes else None

    def forward(self, x: Any) -> Any:
        past = x if self.downsample is None else self.downsample(x)
        for i in range(1, self._depth + 1):
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(ops.relu(x) if i > 1 else x))
        return ops.relu(past + x)


class Basic(_Block):
    """A block of two 3 x 3 convolutions: (N, channels, H, W) -> (N, width, ...) (He et al. 2016, figure 5 left)."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        first = Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        super().__init__(first, Conv2d(width, width, 3, padding=1, bias=False), stride=stride)


class Bottleneck(_Block):
    """A block of a 1 x 1, a 3 x 3 and a 1 x 1 convolution: (N, channels, H, W) -> (N, 4 * width, ...).

    See He et al. 2016, figure 5 right. The 3 x 3 convolution has the stride, as in torchvision ("v1.5"); in the paper
    the first convolution has it.
    """

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int = 1) -> None:
        first = Conv2d(channels, width, 1, bias=False)
        middle = Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        super().__init__(first, middle, Conv2d(width, self.expansion * width, 1, bias=False), stride=stride)


BLOCKS: dict[str, type[Basic] | type[Bottleneck]] = {"basic": Basic, "bottleneck": Bottleneck}


class ResNet(Module):
    """Image classifier (N, channels, H, W) -> logits (N, classes) (He et al. 2016, section 3.3 and table 1).

    A 7 x 7 convolution and max pooling reduce height and width to a quarter. Stage i then has ``depths[i]`` residual
    blocks ("basic" or "bottleneck") of ``width * 2**i`` channels; each stage but the first halves height and width.
    Parameters and buffers are named as in torchvision.

    >>> import flnb
    >>> net = flnb.models.ResNet((1, 1), block="bottleneck", width=4, classes=10)
    >>> net(flnb.ones((2, 3, 32, 32))).shape
    (2, 10)

    Raises:
        ValueError: an unknown block, or an x with another number of axes or channels.
    """

    def __init__(
        self, depths: Sequence[int], block: str = "basic", width: int = 64, classes: int = 1000, channels: int = 3
    ) -> None:
        if block not in BLOCKS:
            raise ValueError(f"ResNet: block must be 'basic' or 'bottleneck', got {block!r}")
        kind = BLOCKS[block]
        self.channels, self.depths = channels, tuple(depths)
        self.conv1 = Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = BatchNorm(width)
        self.maxpool = MaxPool2d(3, stride=2, padding=1)
        before = width
        for stage, depth in enumerate(depths):
            here = width * 2**stage
            blocks = []
            for i in range(depth):
                blocks.append(kind(before, here, stride=2 if stage and not i else 1))
                before = kind.expansion * here
            setattr(self, f"layer{stage + 1}", Sequential(*blocks))
        self.fc = Linear(before, classes)
        begin_rectified(self)

    def forward(self, x: Any) -> Any:
        expect_images(self, x, self.channels)
        x = self.maxpool(ops.relu(self.bn1(self.conv1(x))))
        for stage in range(len(self.depths)):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(ops.mean(x, axis=(2, 3)))


def _recipe(name: str, depths: tuple[int, ...], block: str, parameters: dict[str, int], small_batch: int) -> Recipe:
    """Return the recipe of a ResNet.

    Args:
        name: the model's name for `flnb.models.get`.
        depths, block: the arguments of `ResNet`.
        parameters: the number of trained numbers in the scales "paper" and "small".
        small_batch: the batch size in the scale "small".
    """
    settings = {"depths": depths, "block": block}
    return Recipe(
        name=name,
        model=ResNet,
        source="He et al. 2016, table 1",
        settings={"paper": settings, "small": {**settings, "width": 16, "classes": 100}},
        parameters=parameters,
        batch_sizes={"paper": 32, "small": small_batch},
        draws={"paper": noise((3, 224, 224), 1000), "small": noise((3, 64, 64), 100)},
    )


RESNET_RECIPES = (
    _recipe("resnet18", (2, 2, 2, 2), "basic", {"paper": 11_689_512, "small": 714_996}, 32),
    _recipe("resnet34", (3, 4, 6, 3), "basic", {"paper": 21_797_672, "small": 1_348_148}, 16),
    _recipe("resnet50", (3, 4, 6, 3), "bottleneck", {"paper": 25_557_032, "small": 1_532_276}, 16),
)
