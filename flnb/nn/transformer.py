"""Transformer blocks (Vaswani et al. 2017) on (N, T, features), with torch's parameter names."""

from __future__ import annotations

from typing import Any

from flnb import ops
from flnb.dispatch.miss import default_dtype
from flnb.nn import init
from flnb.nn.layers import Dropout, Linear
from flnb.nn.module import Module, Parameter
from flnb.nn.norm import LayerNorm

__all__ = ["MultiheadAttention", "TransformerEncoderLayer"]

ACTIVATIONS = {"relu": ops.relu, "gelu": ops.gelu}


class MultiheadAttention(Module):
    """Attention in ``heads`` parts of the features, each projected (Vaswani et al. 2017, section 3.2.2).

    Called as ``attention(query, key, value, mask, is_causal)``: query (N, L, features), key and value (N, S, features);
    key defaults to the query, value to the key. The mask, broadcast to (N, heads, L, S), is bool, true where to attend,
    or numbers added to the scores. Gives (N, L, features).

    >>> import flnb
    >>> MultiheadAttention(8, 2)(flnb.ones((3, 5, 8)), is_causal=True).shape
    (3, 5, 8)
    """

    def __init__(self, features: int, heads: int, bias: bool = True, dropout: float = 0.0) -> None:
        if heads < 1 or features % heads:
            raise ValueError(f"MultiheadAttention: expected heads that divide {features} features, got {heads}")
        self.features, self.heads, self.dropout = features, heads, dropout
        self.in_proj_weight = Parameter(init.glorot_uniform((3 * features, features)))
        self.in_proj_bias = Parameter(ops.zeros((3 * features,), dtype=default_dtype())) if bias else None
        self.out_proj = Linear(features, features, bias)
        if self.out_proj.bias is not None:
            ops.assign(self.out_proj.bias.data, 0.0)

    def forward(self, query: Any, key: Any = None, value: Any = None, mask: Any = None, is_causal: bool = False) -> Any:
        given = [x for x in (query, key, value) if x is not None]
        if any(x.ndim != 3 or x.shape[2] != self.features or x.shape[0] != query.shape[0] for x in given):
            raise ValueError(
                f"MultiheadAttention: expected inputs (N, T, {self.features}) of one N, got "
                f"{', '.join(str(x.shape) for x in given)}"
            )
        q, k, v = (self._in_heads(x) for x in self._projected(query, key, value))
        dropout = self.dropout if self.training else 0.0
        y = ops.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
        return self.out_proj(ops.reshape(ops.permute_dims(y, (0, 2, 1, 3)), query.shape))

    def _projected(self, query: Any, key: Any, value: Any) -> list[Any]:
        """Of one input in one product, of several each by its third of the weight."""
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
        """(N, T, features) -> (N, heads, T, features / heads)."""
        n, length, features = x.shape
        return ops.permute_dims(ops.reshape(x, (n, length, self.heads, features // self.heads)), (0, 2, 1, 3))


class TransformerEncoderLayer(Module):
    """Self-attention, then two linear maps, each with a residual and a layer norm (Vaswani et al. 2017, section 3.1).

    The norm comes after the sum, or with ``norm_first`` before attention and maps (Xiong et al. 2020).

    >>> import flnb
    >>> TransformerEncoderLayer(8, 2, 16)(flnb.ones((3, 5, 8))).shape
    (3, 5, 8)
    """

    def __init__(
        self, features: int, heads: int, feedforward: int = 2048, dropout: float = 0.1, activation: str = "relu",
        norm_first: bool = False, eps: float = 1e-5,
    ) -> None:  # fmt: skip
        if activation not in ACTIVATIONS:
            raise ValueError(f"TransformerEncoderLayer: activation must be 'relu' or 'gelu', got {activation!r}")
        self.norm_first, self.activation = norm_first, activation
        self.self_attn = MultiheadAttention(features, heads, dropout=dropout)
        self.linear1 = Linear(features, feedforward)
        self.linear2 = Linear(feedforward, features)
        self.norm1, self.norm2 = LayerNorm(features, eps), LayerNorm(features, eps)
        self.dropout = Dropout(dropout)

    def forward(self, x: Any, mask: Any = None, is_causal: bool = False) -> Any:
        if self.norm_first:
            x = x + self._attended(self.norm1(x), mask, is_causal)
            return x + self._fed_forward(self.norm2(x))
        x = self.norm1(x + self._attended(x, mask, is_causal))
        return self.norm2(x + self._fed_forward(x))

    def _attended(self, x: Any, mask: Any, is_causal: bool) -> Any:
        return self.dropout(self.self_attn(x, mask=mask, is_causal=is_causal))

    def _fed_forward(self, x: Any) -> Any:
        hidden = self.dropout(ACTIVATIONS[self.activation](self.linear1(x)))
        return self.dropout(self.linear2(hidden))
