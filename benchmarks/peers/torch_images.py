"""Image models in torch, with the settings of `flnb.models`, and parameters in the same order with the same shapes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.peers.torch_tokens import encoder
from flnb.models.googlenet import TABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MODELS"]


class MLP(nn.Module):
    def __init__(self, widths: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        x = x.flatten(1)
        *hidden, last = self.layers
        for layer in hidden:
            x = self.dropout(F.relu(layer(x)))
        return last(x)


class LeNet(nn.Module):
    def __init__(
        self, channels: int = 1, image: int = 32, classes: int = 10, widths: Sequence[int] = (6, 16, 120, 84),
        kernel: int = 5, padding: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        c1, c3, c5, f6 = widths
        extent = image
        for _ in range(2):
            extent = (extent + 2 * padding - kernel + 1) // 2
        self.c1 = nn.Conv2d(channels, c1, kernel, padding=padding)
        self.c3 = nn.Conv2d(c1, c3, kernel, padding=padding)
        self.pool = nn.AvgPool2d(2)
        self.c5, self.f6, self.output = nn.Linear(c3 * extent * extent, c5), nn.Linear(c5, f6), nn.Linear(f6, classes)

    def forward(self, x: Any) -> Any:
        x = self.pool(torch.tanh(self.c1(x)))
        x = self.pool(torch.tanh(self.c3(x))).flatten(1)
        return self.output(torch.tanh(self.f6(torch.tanh(self.c5(x)))))


def rectified(channels: int, made: int, kernel: int, **options: Any) -> list[nn.Module]:
    """Return a convolution from ``channels`` to ``made`` channels, and an in-place ReLU, as in torchvision's models."""
    return [nn.Conv2d(channels, made, kernel, **options), nn.ReLU(inplace=True)]


def flat(features: nn.Module, channels: int, image: int) -> int:
    """Return the number of values that ``features`` computes for an image of (channels, image, image) pixels."""
    with torch.no_grad():
        return features(torch.zeros(1, channels, image, image)).numel()


class Convolutional(nn.Module):
    """A network of convolutional features followed by a classifier."""

    features: nn.Module
    classifier: nn.Module

    def forward(self, x: Any) -> Any:
        return self.classifier(self.features(x))


class AlexNet(Convolutional):
    def __init__(
        self, widths: Sequence[int] = (64, 192, 384, 256, 256), hidden: int = 4096, image: int = 224,
        classes: int = 1000, dropout: float = 0.5, channels: int = 3,
    ) -> None:  # fmt: skip
        super().__init__()
        a, b, c, d, e = widths
        self.features = nn.Sequential(
            *rectified(channels, a, 11, stride=4, padding=2), nn.MaxPool2d(3, 2),
            *rectified(a, b, 5, padding=2), nn.MaxPool2d(3, 2),
            *rectified(b, c, 3, padding=1), *rectified(c, d, 3, padding=1),
            *rectified(d, e, 3, padding=1), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Dropout(dropout), nn.Linear(flat(self.features, channels, image), hidden),
            nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU(inplace=True),
            nn.Linear(hidden, classes),
        )  # fmt: skip


class OverFeat(Convolutional):
    def __init__(
        self, widths: Sequence[int] = (96, 256, 512, 1024, 1024), hidden: Sequence[int] = (3072, 4096),
        image: int = 231, classes: int = 1000, dropout: float = 0.5, channels: int = 3,
    ) -> None:  # fmt: skip
        super().__init__()
        a, b, c, d, e = widths
        first, second = hidden
        self.features = nn.Sequential(
            *rectified(channels, a, 11, stride=4), nn.MaxPool2d(2), *rectified(a, b, 5), nn.MaxPool2d(2),
            *rectified(b, c, 3, padding=1), *rectified(c, d, 3, padding=1),
            *rectified(d, e, 3, padding=1), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Dropout(dropout), nn.Linear(flat(self.features, channels, image), first),
            nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(first, second), nn.ReLU(inplace=True),
            nn.Linear(second, classes),
        )  # fmt: skip


class VGG(Convolutional):
    def __init__(
        self, depths: Sequence[int], widths: Sequence[int] = (64, 128, 256, 512, 512), hidden: int = 4096,
        image: int = 224, classes: int = 1000, dropout: float = 0.5, channels: int = 3,
    ) -> None:  # fmt: skip
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for depth, width in zip(depths, widths, strict=True):
            for _ in range(depth):
                layers += rectified(before, width, 3, padding=1)
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(flat(self.features, channels, image), hidden), nn.ReLU(inplace=True),
            nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )  # fmt: skip


class Inception(nn.Module):
    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        one, reduced3, three, reduced5, five, pooled = widths
        self.one = nn.Sequential(*rectified(channels, one, 1))
        self.three = nn.Sequential(*rectified(channels, reduced3, 1), *rectified(reduced3, three, 3, padding=1))
        self.five = nn.Sequential(*rectified(channels, reduced5, 1), *rectified(reduced5, five, 5, padding=2))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, padding=1), *rectified(channels, pooled, 1))

    def forward(self, x: Any) -> Any:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


class GoogLeNet(Convolutional):
    def __init__(
        self, width: float = 1.0, image: int = 224, classes: int = 1000, dropout: float = 0.4, channels: int = 3
    ) -> None:
        super().__init__()
        first, made = (max(1, round(count * width)) for count in (64, 192))

        def halving() -> nn.Module:
            return nn.MaxPool2d(3, 2, padding=1)

        layers = [*rectified(channels, first, 7, stride=2, padding=3), halving()]
        layers += [*rectified(first, first, 1), *rectified(first, made, 3, padding=1), halving()]
        for row, counts in TABLE.items():
            if row in ("4a", "5a"):
                layers.append(halving())
            widths = [max(1, round(count * width)) for count in counts]
            layers.append(Inception(made, widths))
            made = widths[0] + widths[2] + widths[4] + widths[5]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(made, classes))


class Block(nn.Module):
    """A residual block of `flnb.models.resnet`, Basic or Bottleneck, given by the kernels of its convolutions."""

    def __init__(self, channels: int, width: int, stride: int, kernels: Sequence[int], expansion: int) -> None:
        super().__init__()
        made, before, layers = width * expansion, channels, []
        for i, kernel in enumerate(kernels):
            after = made if i == len(kernels) - 1 else width
            step = stride if i == len(kernels) - 2 else 1  # the first of two, the second of three
            layers += [nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(after)]
            layers += [nn.ReLU(inplace=True)] * (i < len(kernels) - 1)
            before = after
        self.residual = nn.Sequential(*layers)
        shortcut = nn.Conv2d(channels, made, 1, stride, bias=False), nn.BatchNorm2d(made)
        self.downsample = nn.Sequential(*shortcut) if stride != 1 or channels != made else nn.Identity()

    def forward(self, x: Any) -> Any:
        return F.relu(self.residual(x) + self.downsample(x), inplace=True)


BLOCKS = {"basic": ((3, 3), 1), "bottleneck": ((1, 3, 1), 4)}


class ResNet(Convolutional):
    def __init__(
        self, depths: Sequence[int], block: str = "basic", width: int = 64, classes: int = 1000, channels: int = 3
    ) -> None:
        super().__init__()
        kernels, expansion = BLOCKS[block]
        layers = [nn.Conv2d(channels, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        layers.append(nn.MaxPool2d(3, 2, 1))
        before = width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                layers.append(Block(before, width * 2**stage, 2 if stage and not i else 1, kernels, expansion))
                before = expansion * width * 2**stage
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(before, classes)


class VisionTransformer(nn.Module):
    def __init__(
        self, image: int = 224, patch: int = 16, features: int = 768, layers: int = 12, heads: int = 12,
        feedforward: int = 3072, classes: int = 1000, dropout: float = 0.0, channels: int = 3,
    ) -> None:  # fmt: skip
        super().__init__()
        self.class_token = nn.Parameter(torch.empty(1, 1, features))
        self.positions = nn.Parameter(torch.empty(1, (image // patch) ** 2 + 1, features))
        self.patches = nn.Conv2d(channels, features, patch, patch)
        self.dropout = nn.Dropout(dropout)
        options = {"activation": "gelu", "norm_first": True, "layer_norm_eps": 1e-6}
        self.encoder = encoder(layers, features, heads, feedforward, dropout, **options)
        self.norm = nn.LayerNorm(features, eps=1e-6)
        self.head = nn.Linear(features, classes)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = self.dropout(torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.positions)
        for layer in self.encoder:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


def classification(model: nn.Module, x: Any, targets: Any) -> Any:
    return F.cross_entropy(model(x), targets)


MODELS = {
    name: (kind, classification)
    for kind, names in {
        MLP: ["mlp"],
        LeNet: ["lenet"],
        AlexNet: ["alexnet"],
        OverFeat: ["overfeat"],
        VGG: ["vgg-a", "vgg16"],
        GoogLeNet: ["googlenet"],
        ResNet: ["resnet18", "resnet34", "resnet50"],
        VisionTransformer: ["vit"],
    }.items()
    for name in names
}
"""For each model its class, and its loss: a function of the model and a batch."""
