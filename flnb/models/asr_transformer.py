"""A transformer for speech recognition: tokens for frames of speech."""

from __future__ import annotations

from typing import Any

import numpy as np

from flnb import ops
from flnb.models.recipe import Batch, Draw, Recipe
from flnb.models.tokens import token_loss
from flnb.nn import Conv1d, Dropout, Linear, Module, ModuleList, SinusoidalPositionEmbedding, TransformerEncoderLayer

__all__ = ["ASRTransformer", "RECIPES", "frame_loss", "utterances"]

KERNEL, STRIDE = 7, 3


class ASRTransformer(Module):
    """Speech recogniser: log-mel frames (N, T, bands) -> logits (N, ceil(T / 3), tokens) (Likhomanenko et al. 2020).

    Each utterance is normalised; a gated convolution over 7 frames takes every third; sines and cosines of the
    position are added; transformer layers without biases follow, and a linear map to the tokens.

    The defaults have 263M parameters, as in Flashlight's table 3. They are the network of Flashlight's benchmark
    application; that has 30 letters, with which it had 256M, so the 10,000 word pieces of the paper it comes from are
    taken here. There, norms have one weight and bias for all features, the convolution drops 0.3, and layers are
    dropped as a whole, which is not done here.

    >>> import flnb
    >>> model = ASRTransformer(tokens=30, bands=5, features=8, heads=2, layers=1, feedforward=16)
    >>> model(flnb.ones((2, 20, 5))).shape
    (2, 7, 30)

    Raises:
        ValueError: frames of other shapes, or more than ``length`` of them.
    """

    def __init__(
        self, tokens: int = 10_000, bands: int = 80, features: int = 768, heads: int = 4, layers: int = 36,
        feedforward: int = 3072, length: int = 6000, dropout: float = 0.4,
    ) -> None:  # fmt: skip
        self.bands, self.length = bands, length
        self.convolution = Conv1d(bands, 2 * features, KERNEL, STRIDE, padding=KERNEL // 2)
        self.dropout = Dropout(dropout)
        self.position = SinusoidalPositionEmbedding(-(-length // STRIDE), features)
        self.layers = ModuleList(
            TransformerEncoderLayer(features, heads, feedforward, dropout, bias=False) for _ in range(layers)
        )
        self.output = Linear(features, tokens)

    def forward(self, x: Any) -> Any:
        if x.ndim != 3 or x.shape[2] != self.bands or not 0 < x.shape[1] <= self.length:
            raise ValueError(
                f"ASRTransformer: expected frames (N, T, {self.bands}) with T from 1 to {self.length}, got {x.shape}"
            )
        x = ops.layer_norm(x, x.shape[1:])
        x = ops.glu(self.convolution(ops.permute_dims(x, (0, 2, 1))), axis=1)
        x = self.position(self.dropout(ops.permute_dims(x, (0, 2, 1))))
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def utterances(frames: int, bands: int, tokens: int) -> Draw:
    """Batches of normal frames (N, frames, bands), float32, and a token for every third, int64."""

    def draw(generator: np.random.Generator, size: int) -> Batch:
        x = generator.standard_normal((size, frames, bands), dtype=np.float32)
        return x, generator.integers(tokens, size=(size, -(-frames // STRIDE)))

    return draw


def frame_loss(model: Module, x: Any, targets: Any) -> Any:
    """Mean cross-entropy of every third frame's token: targets (N, ceil(T / 3)).

    It replaces the paper's loss, CTC (Graves et al. 2006), whose targets are not aligned to frames: flnb has it for one
    utterance at a time, as the `flnb.speech.path_score` of a `flnb.speech.ctc`.
    """
    return token_loss(model(x), targets)


SMALL = {"tokens": 500, "bands": 40, "features": 128, "heads": 4, "layers": 4, "feedforward": 512, "length": 600}

RECIPES = (
    Recipe(
        name="asr-transformer",
        model=ASRTransformer,
        source="Kahn et al. 2022 (Flashlight), table 3: ASR transformer, 263M",
        settings={"paper": {}, "small": SMALL},
        parameters={"paper": 263_410_960, "small": 923_892},
        batch_sizes={"paper": 10, "small": 8},
        draws={"paper": utterances(1500, 80, 10_000), "small": utterances(450, 40, 500)},
        loss=frame_loss,
    ),
)
