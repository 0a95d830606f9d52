"""Token and speech models of torch's own layers, with the settings of `flnb.models` and parameters in equal order."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["MODELS"]


class PositionEmbedding(nn.Module):
    def __init__(self, length: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, features))

    def forward(self, x: Any) -> Any:
        return x + self.weight[: x.shape[1]]


def encoder(layers: int, features: int, heads: int, inner: int, dropout: float, **options: Any) -> nn.ModuleList:
    options |= {"batch_first": True}
    return nn.ModuleList(nn.TransformerEncoderLayer(features, heads, inner, dropout, **options) for _ in range(layers))


class BERT(nn.Module):
    def __init__(
        self, vocabulary: int = 50_265, features: int = 1024, heads: int = 16, layers: int = 24, length: int = 512,
        feedforward: int | None = None, dropout: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, features)
        self.position = PositionEmbedding(length, features)
        self.norm = nn.LayerNorm(features, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.layers = encoder(layers, features, heads, feedforward or 4 * features, dropout, activation="gelu")
        self.output = nn.Linear(features, vocabulary)

    def forward(self, tokens: Any, positions: Any) -> Any:
        x = self.dropout(self.norm(self.position(self.embedding(tokens))))
        for layer in self.layers:
            x = layer(x)
        return self.output(x[torch.arange(len(x))[:, None], positions])


class ASRTransformer(nn.Module):
    def __init__(
        self, tokens: int = 10_000, bands: int = 80, features: int = 768, heads: int = 4, layers: int = 36,
        feedforward: int = 3072, length: int = 6000, dropout: float = 0.4,
    ) -> None:  # fmt: skip
        super().__init__()
        self.convolution = nn.Conv1d(bands, 2 * features, 7, 3, padding=3)
        self.dropout = nn.Dropout(dropout)
        rates = 10000.0 ** (-torch.arange(0, features, 2, dtype=torch.float64) / features)
        angles = torch.arange(-(-length // 3), dtype=torch.float64)[:, None] * rates
        positions = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        self.register_buffer("positions", positions, persistent=False)
        self.layers = encoder(layers, features, heads, feedforward, dropout, bias=False)
        self.output = nn.Linear(features, tokens)

    def forward(self, x: Any) -> Any:
        x = F.layer_norm(x, x.shape[1:])
        x = F.glu(self.convolution(x.transpose(1, 2)), 1).transpose(1, 2)
        x = self.dropout(x) + self.positions[: x.shape[1]].to(x.dtype)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


class TransformerLM(nn.Module):
    def __init__(
        self, vocabulary: int = 50_257, features: int = 768, heads: int = 12, layers: int = 12, length: int = 1024,
        feedforward: int | None = None, dropout: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, features)
        self.position = PositionEmbedding(length, features)
        self.dropout = nn.Dropout(dropout)
        inner = feedforward or 4 * features
        self.layers = encoder(layers, features, heads, inner, dropout, activation="gelu", norm_first=True)
        self.norm = nn.LayerNorm(features)

    def forward(self, tokens: Any) -> Any:
        x = self.dropout(self.position(self.embedding(tokens)))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return F.linear(self.norm(x), self.embedding.weight)


class LSTMLM(nn.Module):
    def __init__(self, vocabulary: int = 10_000, features: int = 200, layers: int = 1, dropout: float = 0.5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, features)
        self.lstm = nn.LSTM(features, features, layers, dropout=dropout if layers > 1 else 0.0)
        self.output = nn.Linear(features, vocabulary)
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Any) -> Any:
        x, _ = self.lstm(self.dropout(self.embedding(words.T)))
        return self.output(self.dropout(x.transpose(0, 1)))


class SoftAttention(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.frames = nn.Linear(features, features)
        self.state = nn.Linear(hidden, features, bias=False)
        self.score = nn.Linear(features, 1, bias=False)

    def forward(self, state: Any, frames: Any, projected: Any) -> Any:
        weights = self.score(torch.tanh(projected + self.state(state)[:, None]))[..., 0].softmax(-1)
        return (weights[:, None] @ frames)[:, 0]


class Captioner(nn.Module):
    def __init__(
        self, vocabulary: int = 20_000, features: int = 1024, word_features: int = 468, hidden: int = 3518,
        dropout: float = 0.5,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, word_features)
        self.first_h, self.first_c = nn.Linear(features, hidden), nn.Linear(features, hidden)
        self.attention = SoftAttention(features, hidden)
        self.gate = nn.Linear(hidden, 1)
        self.lstm = nn.LSTMCell(word_features + features, hidden)
        self.from_state = nn.Linear(hidden, word_features)
        self.from_context = nn.Linear(features, word_features)
        self.output = nn.Linear(word_features, vocabulary)
        self.dropout = nn.Dropout(dropout)

    def forward(self, frames: Any, words: Any) -> Any:
        before = F.pad(self.embedding(words)[:, :-1], (0, 0, 1, 0))
        projected, mean = self.attention.frames(frames), frames.mean(1)
        h, c = torch.tanh(self.first_h(mean)), torch.tanh(self.first_c(mean))
        states, contexts = [], []
        for word in before.unbind(1):
            context = self.attention(h, frames, projected) * torch.sigmoid(self.gate(h))
            h, c = self.lstm(torch.cat([word, context], 1), (h, c))
            states.append(h)
            contexts.append(context)
        read = self.from_state(self.dropout(torch.stack(states, 1))) + self.from_context(torch.stack(contexts, 1))
        return self.output(self.dropout(torch.tanh(read + before)))


def token_loss(model: nn.Module, *batch: Any) -> Any:
    """Return the loss of logits (N, T, vocabulary) for targets (N, T), the last array of the batch."""
    *inputs, targets = batch
    return F.cross_entropy(model(*inputs).flatten(0, 1), targets.flatten())


def caption_loss(model: nn.Module, frames: Any, words: Any) -> Any:
    return token_loss(model, frames, words, words)


MODELS = {
    "bert": (BERT, token_loss),
    "asr-transformer": (ASRTransformer, token_loss),
    "transformer-lm": (TransformerLM, token_loss),
    **dict.fromkeys(("lstm-lm-200", "lstm-lm-600", "lstm-lm-650x2"), (LSTMLM, token_loss)),
    "captioner": (Captioner, caption_loss),
}
"""For each model its class, and its loss: a function of the model and a batch."""
