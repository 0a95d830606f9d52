"""A transformer that predicts the next token."""

from __future__ import annotations

from typing import Any

from flnb import ops, random
from flnb.models.recipe import Recipe
from flnb.models.tokens import draw_weights, expect_tokens, next_tokens, sequence_loss
from flnb.nn import Dropout, Embedding, LayerNorm, Module, ModuleList, PositionEmbedding, TransformerEncoderLayer

STD = 0.02


class TransformerLM(Module):
    """Predict the token after each token: (N, T) -> logits (N, T, vocabulary) (Radford et al. 2019, section 2.3).

    Each position attends to itself and to earlier positions. Layer norms come before attention and linear maps, and
    after the last layer; the output layer shares the embedding's weight. The default sizes are those of the smallest
    model in table 2, GPT-2, with 124M parameters (the table says 117M). GELU is exact here; the paper approximates it
    by tanh.

    >>> import flnb
    >>> model = flnb.models.TransformerLM(vocabulary=50, features=8, heads=2, layers=1, length=16)
    >>> model(flnb.asarray([[3, 1, 4, 1, 5]])).shape
    (1, 5, 50)

    Raises:
        ValueError: more tokens than ``length``.
        IndexError: a token that is not below ``vocabulary``.
    """

    def __init__(
        self, vocabulary: int = 50_257, features: int = 768, heads: int = 12, layers: int = 12, length: int = 1024,
        feedforward: int | None = None, dropout: float = 0.1,
    ) -> None:  # fmt: skip
        self.vocabulary, self.length = vocabulary, length
        self.embedding = Embedding(vocabulary, features)
        self.position = PositionEmbedding(length, features)
        self.dropout = Dropout(dropout)
        inner = 4 * features if feedforward is None else feedforward
        self.layers = ModuleList(
            TransformerEncoderLayer(features, heads, inner, dropout, activation="gelu", norm_first=True)
            for _ in range(layers)
        )
        self.norm = LayerNorm(features)
        draw_weights(self, STD)
        for layer in self.layers:  # 2 * layers residuals are added up: scaled so, their sum has the variance of one
            for last in (layer.self_attn.out_proj, layer.linear2):
                ops.assign(last.weight.data, random.normal(last.weight.shape, 0.0, STD * (2 * layers) ** -0.5))

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(expect_tokens(self, tokens, self.vocabulary, self.length))
        x = self.dropout(self.position(x))
        for layer in self.layers:
            x = layer(x, is_causal=True)
        return ops.linear(self.norm(x), self.embedding.weight)


SMALL = {"vocabulary": 2000, "features": 128, "heads": 4, "layers": 4, "length": 64}

TRANSFORMER_LM_RECIPE = Recipe(
    name="transformer-lm",
    model=TransformerLM,
    source="Radford et al. 2019 (GPT-2), section 2.3 and table 2",
    settings={"paper": {}, "small": SMALL},
    parameters={"paper": 124_439_808, "small": 1_057_536},
    batch_sizes={"paper": 8, "small": 16},
    draws={"paper": next_tokens(50_257, 1024), "small": next_tokens(2000, 64)},
    loss=sequence_loss,
)
