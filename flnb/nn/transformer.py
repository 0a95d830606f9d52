"""Transformers (Vaswani et al. 2017) over x (N, T, features); parameters are named as in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flnb import ops, random
from flnb.dispatch.dtypes import default_dtype
from flnb.nn import init
from flnb.nn.containers import ModuleList
from flnb.nn.layers import Dropout, Linear
from flnb.nn.module import Module, Parameter
from flnb.nn.norm import LayerNorm

__all__ = ["MultiheadAttention", "Transformer", "TransformerDecoderLayer", "TransformerEncoderLayer"]

ACTIVATIONS = {"relu": ops.relu, "gelu": ops.gelu}


class MultiheadAttention(Module):
    """Multi-head attention (Vaswani et al. 2017, section 3.2.2).

    Called as ``attention(query, key, value, mask, is_causal)``: query (N, L, features), key and value (N, S, features);
    by default, key is the query, and value is the key. The mask is broadcast to (N, heads, L, S): bool, true where a
    query attends to a key, or numbers that are added to the scores. With ``is_causal`` no query attends to later
    positions. Returns (N, L, features).

    With ``context``, the largest length of a sequence, scores also depend on the distance of query i and key j: the
    product of the query and row j - i of the parameter ``relative`` is added (Shaw et al. 2018, section 3.2). All heads
    share this parameter.

    Raises:
        ValueError: ``heads`` does not divide ``features``, inputs have other shapes, or more steps than ``context``.

    >>> import flnb, flnb.nn as nn
    >>> nn.MultiheadAttention(8, 2)(flnb.ones((3, 5, 8)), is_causal=True).shape
    (3, 5, 8)
    """

    def __init__(self, features: int, heads: int, bias: bool = True, dropout: float = 0.0, context: int = 0) -> None:
        if heads < 1 or features % heads:
            raise ValueError(f"MultiheadAttention: expected heads that divide {features} features, got {heads}")
        self.features, self.heads, self.dropout, self.context = features, heads, dropout, context
        self.in_proj_weight = Parameter(init.glorot_uniform((3 * features, features)))
        self.in_proj_bias = Parameter(ops.zeros((3 * features,), dtype=default_dtype())) if bias else None
        self.out_proj = Linear(features, features, bias)
        if self.out_proj.bias is not None:
            ops.assign(self.out_proj.bias.data, 0.0)
        if context:
            self.relative = Parameter(random.uniform((2 * context - 1, features // heads), -0.1, 0.1))

    def forward(self, query: Any, key: Any = None, value: Any = None, mask: Any = None, is_causal: bool = False) -> Any:
        given = [x for x in (query, key, value) if x is not None]
        if any(x.ndim != 3 or x.shape[2] != self.features or x.shape[0] != query.shape[0] for x in given):
            raise ValueError(
                f"MultiheadAttention: expected inputs (N, T, {self.features}) with equal N, got "
                f"{', '.join(str(x.shape) for x in given)}"
            )
        q, k, v = (self._in_heads(x) for x in self._projected(query, key, value))
        dropout = self.dropout if self.training else 0.0
        bias = self._by_distance(q, k.shape[2]) if self.context else None
        y = ops.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, bias=bias)
        return self.out_proj(ops.reshape(ops.permute_dims(y, (0, 2, 1, 3)), query.shape))

    def _projected(self, query: Any, key: Any, value: Any) -> list[Any]:
        """Project query, key and value; self-attention, where all three are one input, takes one matrix product."""
        n = self.features
        thirds = [slice(i * n, (i + 1) * n) for i in range(3)]
        if key is None and value is None:
            whole = ops.linear(query, self.in_proj_weight, self.in_proj_bias)
            return [whole[..., third] for third in thirds]
        key = query if key is None else key
        inputs = query, key, key if value is None else value
        bias = self.in_proj_bias
        return [
            ops.linear(x, self.in_proj_weight[third], None if bias is None else bias[third])
            for x, third in zip(inputs, thirds, strict=True)
        ]

    def _in_heads(self, x: Any) -> Any:
        """Divide the features among the heads: (N, T, features) -> (N, heads, T, features / heads)."""
        n, length, features = x.shape
        return ops.permute_dims(ops.reshape(x, (n, length, self.heads, features // self.heads)), (0, 2, 1, 3))

    def _by_distance(self, q: Any, keys: int) -> Any:
        """Return the terms that distances add to the scores: (N, heads, L, ``keys``) for queries q (N, heads, L, E)."""
        n, heads, length, features = q.shape
        if max(length, keys) > self.context:
            raise ValueError(
                f"MultiheadAttention: expected sequences of at most context={self.context}, got {length} queries and "
                f"{keys} keys"
            )
        rows = self.relative[self.context - length : self.context - 1 + keys]  # distances 1 - length to keys - 1
        scores = ops.matmul(q * features**-0.5, rows, transpose_b=True)
        # Row i is needed from column length - 1 - i on. With a column of zeros more, the rows of the flattened scores,
        # cut anew at the old width, are shifted so.
        wide = length + keys - 1
        flat = ops.reshape(ops.pad(scores, ((0, 0), (0, 0), (0, 0), (0, 1))), (n, heads, length * (wide + 1)))
        return ops.reshape(flat[..., length - 1 : length - 1 + length * wide], (n, heads, length, wide))[..., :keys]


class _Layer(Module):
    """Base of encoder and decoder layers: two linear maps, and a residual with layer norm around each sublayer."""

    def _make(
        self, features: int, feedforward: int, dropout: float, activation: str, norm_first: bool, bias: bool = True
    ) -> None:
        """Make the linear maps and store the settings (see `TransformerEncoderLayer`), after attention was made."""
        if activation not in ACTIVATIONS:
            raise ValueError(f"{type(self).__name__}: activation must be 'relu' or 'gelu', got {activation!r}")
        self.norm_first, self.activation = norm_first, activation
        self.linear1 = Linear(features, feedforward, bias)
        self.linear2 = Linear(feedforward, features, bias)
        self.dropout = Dropout(dropout)

    def _added(self, x: Any, norm: LayerNorm, part: Callable[[Any], Any]) -> Any:
        """Add the result of a sublayer (``part``) to x; the norm is applied to the sum, or to the sublayer's input."""
        return x + self.dropout(part(norm(x))) if self.norm_first else norm(x + self.dropout(part(x)))

    def _fed_forward(self, x: Any) -> Any:
        """Apply the two linear maps, with activation and dropout between them."""
        return self.linear2(self.dropout(ACTIVATIONS[self.activation](self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention, then two linear maps, each with a residual and a layer norm (Vaswani et al. 2017, section 3.1).

    Called as ``layer(x, mask, is_causal)``: x (N, T, features) keeps its shape; ``mask`` and ``is_causal`` are as in
    `MultiheadAttention`.

    Args:
        features, heads, context: see `MultiheadAttention`.
        feedforward: the number of features between the two linear maps.
        dropout: the probability of dropping a feature, and an attention weight.
        activation: "relu" or "gelu", between the two maps.
        norm_first: normalise the inputs of attention and maps (Xiong et al. 2020) rather than the sums.
        eps: added to the variance in the layer norms.
        bias: whether attention, maps and norms have biases.

    Raises:
        ValueError: another activation, or ``heads`` that do not divide ``features``.

    >>> import flnb, flnb.nn as nn
    >>> nn.TransformerEncoderLayer(8, 2, 16)(flnb.ones((3, 5, 8))).shape
    (3, 5, 8)
    """

    def __init__(
        self, features: int, heads: int, feedforward: int = 2048, dropout: float = 0.1, activation: str = "relu",
        norm_first: bool = False, eps: float = 1e-5, context: int = 0, bias: bool = True,
    ) -> None:  # fmt: skip
        self.self_attn = MultiheadAttention(features, heads, bias, dropout, context)
        self._make(features, feedforward, dropout, activation, norm_first, bias)
        self.norm1, self.norm2 = (LayerNorm(features, eps, bias=bias) for _ in range(2))

    def forward(self, x: Any, mask: Any = None, is_causal: bool = False) -> Any:
        x = self._added(x, self.norm1, lambda x: self.self_attn(x, mask=mask, is_causal=is_causal))
        return self._added(x, self.norm2, self._fed_forward)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to ``memory``, and two linear maps, each with a residual and a layer norm.

    Called as ``layer(x, memory, mask, memory_mask, is_causal)``: x (N, L, features) keeps its shape; memory (N, S,
    features) is the encoder's result; ``mask`` and ``is_causal`` are for self-attention, ``memory_mask`` for attention
    to the memory, as in `MultiheadAttention`. For the settings see `TransformerEncoderLayer`. Vaswani et al. 2017,
    section 3.1.

    >>> import flnb, flnb.nn as nn
    >>> nn.TransformerDecoderLayer(8, 2, 16)(flnb.ones((3, 5, 8)), flnb.ones((3, 7, 8)), is_causal=True).shape
    (3, 5, 8)
    """

    def __init__(
        self, features: int, heads: int, feedforward: int = 2048, dropout: float = 0.1, activation: str = "relu",
        norm_first: bool = False, eps: float = 1e-5, context: int = 0,
    ) -> None:  # fmt: skip
        self.self_attn = MultiheadAttention(features, heads, dropout=dropout, context=context)
        self.multihead_attn = MultiheadAttention(features, heads, dropout=dropout)
        self._make(features, feedforward, dropout, activation, norm_first)
        self.norm1, self.norm2, self.norm3 = (LayerNorm(features, eps) for _ in range(3))

    def forward(self, x: Any, memory: Any, mask: Any = None, memory_mask: Any = None, is_causal: bool = False) -> Any:
        x = self._added(x, self.norm1, lambda x: self.self_attn(x, mask=mask, is_causal=is_causal))
        x = self._added(x, self.norm2, lambda x: self.multihead_attn(x, memory, mask=memory_mask))
        return self._added(x, self.norm3, self._fed_forward)


class _Stack(Module):
    """Base of encoder and decoder: calls layers in turn, with the same further arguments, then a layer norm."""

    def __init__(self, layers: Iterable[Module], norm: LayerNorm) -> None:
        self.layers, self.norm = ModuleList(layers), norm

    def forward(self, x: Any, *more: Any, **options: Any) -> Any:
        for layer in self.layers:
            x = layer(x, *more, **options)
        return self.norm(x)


class Transformer(Module):
    """Encoder over a source, and decoder over a target that attends to the source (Vaswani et al. 2017, figure 1).

    Called as ``transformer(source, target, mask, target_mask, memory_mask, is_causal)``: source (N, S, features) and
    target (N, L, features), with position embeddings already added. ``mask`` is for self-attention of the source,
    ``target_mask`` and ``is_causal`` for that of the target, ``memory_mask`` for attention of the target to the source,
    all as in `MultiheadAttention`. Returns (N, L, features). For the settings see `TransformerEncoderLayer`.

    >>> import flnb, flnb.nn as nn
    >>> small = nn.Transformer(8, 2, encoder_layers=1, decoder_layers=1, feedforward=16)
    >>> small(flnb.ones((3, 7, 8)), flnb.ones((3, 5, 8)), is_causal=True).shape
    (3, 5, 8)
    """

    def __init__(
        self, features: int = 512, heads: int = 8, encoder_layers: int = 6, decoder_layers: int = 6,
        feedforward: int = 2048, dropout: float = 0.1, activation: str = "relu", norm_first: bool = False,
        eps: float = 1e-5,
    ) -> None:  # fmt: skip
        same = features, heads, feedforward, dropout, activation, norm_first, eps
        self.encoder = _Stack((TransformerEncoderLayer(*same) for _ in range(encoder_layers)), LayerNorm(features, eps))
        self.decoder = _Stack((TransformerDecoderLayer(*same) for _ in range(decoder_layers)), LayerNorm(features, eps))

    def forward(
        self, source: Any, target: Any, mask: Any = None, target_mask: Any = None, memory_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:  # fmt: skip
        memory = self.encoder(source, mask)
        return self.decoder(target, memory, target_mask, memory_mask, is_causal)
