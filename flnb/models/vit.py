"""The vision transformer."""

from __future__ import annotations

from typing import Any

from flnb import ops
from flnb.dispatch.dtypes import default_dtype
from flnb.models.images import expect_images
from flnb.models.recipe import Recipe, noise
from flnb.nn import Conv2d, Dropout, LayerNorm, Linear, Module, Parameter, Sequential, TransformerEncoderLayer, init


class VisionTransformer(Module):
    """Image classifier (N, channels, image, image) -> logits (N, classes) (Dosovitskiy et al. 2021, section 3.1).

    Squares of ``patch`` x ``patch`` pixels are mapped linearly to ``features``, a learnt class token is put before them
    and learnt positions are added. Then come ``layers`` encoder layers (norm first, GELU) and one linear map of the
    class token's output to logits, as for fine-tuning (section 3.2). The default sizes are those of ViT-B/16 in the
    paper's table 1.

    >>> import flnb
    >>> net = flnb.models.VisionTransformer(image=16, patch=8, features=8, layers=1, heads=2, feedforward=16)
    >>> net(flnb.ones((2, 3, 16, 16))).shape
    (2, 1000)

    Raises:
        ValueError: an image size that is not a multiple of the patch size, or an x of another shape.
    """

    def __init__(
        self, image: int = 224, patch: int = 16, features: int = 768, layers: int = 12, heads: int = 12,
        feedforward: int = 3072, classes: int = 1000, dropout: float = 0.0, channels: int = 3,
    ) -> None:  # fmt: skip
        if image % patch:
            raise ValueError(f"VisionTransformer: expected a patch that divides the image size {image}, got {patch}")
        self.channels, self.image = channels, image
        positions = (image // patch) ** 2 + 1
        self.class_token = Parameter(ops.zeros((1, 1, features), dtype=default_dtype()))
        self.positions = Parameter(init.normal((1, positions, features), std=0.02))
        self.patches = Conv2d(channels, features, patch, stride=patch)
        self.dropout = Dropout(dropout)
        self.encoder = Sequential(
            *(
                TransformerEncoderLayer(features, heads, feedforward, dropout, "gelu", norm_first=True, eps=1e-6)
                for _ in range(layers)
            )
        )
        self.norm = LayerNorm(features, eps=1e-6)
        self.head = Linear(features, classes)

    def forward(self, x: Any) -> Any:
        expect_images(self, x, self.channels, self.image)
        x = self.patches(x)
        n, features = x.shape[:2]
        x = ops.permute_dims(ops.reshape(x, (n, features, -1)), (0, 2, 1))
        token = ops.broadcast_to(self.class_token, (n, 1, features))
        x = self.dropout(ops.concat([token, x], axis=1) + self.positions)
        return self.head(self.norm(self.encoder(x)[:, 0]))


SMALL = {"image": 64, "patch": 16, "features": 128, "layers": 6, "heads": 4, "feedforward": 512, "classes": 100}

VIT_RECIPE = Recipe(
    name="vit",
    model=VisionTransformer,
    source="Dosovitskiy et al. 2021, table 1: ViT-Base with patches of 16",
    settings={"paper": {}, "small": SMALL},
    parameters={"paper": 86_567_656, "small": 1_303_524},
    batch_sizes={"paper": 128, "small": 48},
    draws={"paper": noise((3, 224, 224), 1000), "small": noise((3, 64, 64), 100)},
)
