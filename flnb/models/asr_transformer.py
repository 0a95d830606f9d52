"""A transformer for speech recognition, which scores tokens for frames of speech."""

from __future__ import annotations

from typing import Any

from flnb import ops
from flnb.models.recipe import Recipe, noise
from flnb.models.tokens import sequence_loss
from flnb.nn import Conv1d, Dropout, Linear, Module, ModuleList, SinusoidalPositionEmbedding, TransformerEncoderLayer

KERNEL, STRIDE = 7, 3


class ASRTransformer(Module):
    """Speech recogniser: log-mel frames (N, T, bands) -> logits (N, ceil(T / 3), tokens) (Likhomanenko et al. 2020).

    Each utterance is normalised; a gated convolution over 7 frames with stride 3 follows; sines and cosines of the
    position are added; then come transformer layers without biases, and a linear map to the tokens.

    With the default sizes the model has 263M parameters, as in table 3 of Kahn et al. 2022 (Flashlight). The sizes are
    those of Flashlight's benchmark application, except that the tokens are the 10,000 word pieces of Likhomanenko et
    al. in place of the application's 30 letters, with which the network would have 256M parameters. The application
    differs in three more places: its norms have one weight and one bias for all features, its convolution has a dropout
    of 0.3, and it drops whole layers.

    >>> import flnb
    >>> model = flnb.models.ASRTransformer(tokens=30, bands=5, features=8, heads=2, layers=1, feedforward=16)
    >>> model(flnb.ones((2, 20, 5))).shape
    (2, 7, 30)

    Raises:
        ValueError: frames of another shape, or more frames than ``length``.
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


SMALL = {"tokens": 500, "bands": 40, "features": 128, "heads": 4, "layers": 4, "feedforward": 512, "length": 600}

ASR_TRANSFORMER_RECIPE = Recipe(
    name="asr-transformer",
    model=ASRTransformer,
    source="Kahn et al. 2022 (Flashlight), table 3: ASR transformer, 263M",
    settings={"paper": {}, "small": SMALL},
    parameters={"paper": 263_410_960, "small": 923_892},
    batch_sizes={"paper": 10, "small": 8},
    # Cross-entropy with a target for every third frame replaces the paper's loss, CTC: `flnb.speech` computes it for
    # one utterance at a time.
    draws={"paper": noise((1500, 80), 10_000, targets=(500,)), "small": noise((450, 40), 500, targets=(150,))},
    loss=sequence_loss,
)
