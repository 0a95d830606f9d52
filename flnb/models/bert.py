"""BERT: a transformer encoder that predicts hidden tokens from the tokens on both sides."""

from __future__ import annotations

from typing import Any

import numpy as np

from flnb import ops
from flnb.models.recipe import Batch, Draw, Recipe
from flnb.models.tokens import draw_weights, expect_tokens, sequence_loss
from flnb.nn import (
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    Module,
    ModuleList,
    PositionEmbedding,
    TransformerEncoderLayer,
)


class BERT(Module):
    """Predict every token from all tokens around it: (N, T) -> logits (N, T, vocabulary) (Devlin et al. 2019).

    ``bert(tokens, positions)`` with positions (N, K) returns the logits at these positions alone, (N, K, vocabulary):
    training on hidden tokens needs no others. The layers are those of the paper's section 3: attention and two linear
    maps with GELU, each followed by a layer norm. Embeddings of tokens and learnt positions are added and normalised.

    The defaults have 406M parameters, as many as the "BERT-like" network in table 3 of Kahn et al. 2022 (Flashlight),
    which is not described further. They are BERT's large size (section 3) without the parts for pairs of sentences,
    with the 50,265 tokens of RoBERTa (Liu et al. 2019, section 4.4), and with an output layer that shares no weight.
    The table does not state the length of its sequences either; the recipe has 128, as most of BERT's training
    (appendix A.2).

    >>> import flnb
    >>> bert = flnb.models.BERT(vocabulary=50, features=8, heads=2, layers=1, length=16)
    >>> tokens = flnb.asarray([[3, 1, 4, 1, 5]])
    >>> bert(tokens).shape, bert(tokens, flnb.asarray([[0, 2]])).shape
    ((1, 5, 50), (1, 2, 50))

    Raises:
        ValueError: more tokens than ``length``, or positions that are not integers (N, K).
        IndexError: a token that is not below ``vocabulary``, or a position that is not below T.
    """

    def __init__(
        self, vocabulary: int = 50_265, features: int = 1024, heads: int = 16, layers: int = 24, length: int = 512,
        feedforward: int | None = None, dropout: float = 0.1,
    ) -> None:  # fmt: skip
        self.vocabulary, self.length = vocabulary, length
        self.embedding = Embedding(vocabulary, features)
        self.position = PositionEmbedding(length, features)
        self.norm = LayerNorm(features, eps=1e-12)
        self.dropout = Dropout(dropout)
        inner = 4 * features if feedforward is None else feedforward
        self.layers = ModuleList(
            TransformerEncoderLayer(features, heads, inner, dropout, activation="gelu") for _ in range(layers)
        )
        self.output = Linear(features, vocabulary)
        draw_weights(self, std=0.02)

    def forward(self, tokens: Any, positions: Any = None) -> Any:
        tokens = expect_tokens(self, tokens, self.vocabulary, self.length)
        x = self.dropout(self.norm(self.position(self.embedding(tokens))))
        for layer in self.layers:
            x = layer(x)
        return self.output(x if positions is None else self._at(x, ops.asarray(positions)))

    def _at(self, x: Any, positions: Any) -> Any:
        """Select from x (N, T, features) the features at each sequence's positions (N, K): (N, K, features)."""
        n, length, _ = x.shape
        if positions.ndim != 2 or positions.shape[0] != n or positions.dtype.kind not in "iu":
            raise ValueError(f"BERT: expected integer positions ({n}, K), got {positions._spec!r}")
        least, most = positions._bounds() if positions.size else (0, 0)
        if least < 0 or most >= length:
            raise IndexError(f"BERT: expected positions from 0 to {length - 1}, got positions from {least} to {most}")
        return x[ops.arange(n)[:, None], positions]


def masked_tokens(vocabulary: int, length: int) -> Draw:
    """Return a function that draws random tokens (N, length), 15% of the positions (N, K), and their tokens (N, K).

    The token at a drawn position is replaced by the mask, which is the vocabulary's last token, with probability 0.8,
    by a random token with probability 0.1, and stays otherwise (Devlin et al. 2019, section 3.1).
    """

    def draw(generator: np.random.Generator, size: int) -> Batch:
        mask = vocabulary - 1
        tokens = generator.integers(mask, size=(size, length))
        places = np.argsort(generator.random((size, length)), axis=1)[:, : max(1, round(0.15 * length))]
        places.sort(axis=1)
        targets = np.take_along_axis(tokens, places, axis=1)
        fate = generator.random(places.shape)
        anything = generator.integers(mask, size=places.shape)
        np.put_along_axis(tokens, places, np.where(fate < 0.8, mask, np.where(fate < 0.9, anything, targets)), axis=1)
        return tokens, places, targets

    return draw


SMALL = {"vocabulary": 4000, "features": 128, "heads": 4, "layers": 4, "length": 64}

BERT_RECIPE = Recipe(
    name="bert",
    model=BERT,
    source="Kahn et al. 2022 (Flashlight), table 3: BERT-like, 406M",
    settings={"paper": {}, "small": SMALL},
    parameters={"paper": 405_828_697, "small": 1_829_536},
    batch_sizes={"paper": 128, "small": 16},
    draws={"paper": masked_tokens(50_265, 128), "small": masked_tokens(4000, 64)},
    loss=sequence_loss,
)
