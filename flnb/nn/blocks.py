"""Blocks of speech models: time-depth separable convolution (TDS) and the Conformer."""

from __future__ import annotations

from typing import Any

from flnb import ops
from flnb.nn.activations import GLU, Swish
from flnb.nn.containers import Sequential
from flnb.nn.convolution import AsymmetricConv1d, Conv2d
from flnb.nn.layers import Dropout, Linear
from flnb.nn.module import Module
from flnb.nn.norm import GroupNorm, LayerNorm
from flnb.nn.transformer import MultiheadAttention

__all__ = ["Conformer", "TDSBlock"]


class TDSBlock(Module):
    """Time-depth separable convolution: a convolution over time, then two linear maps of each step's features.

    x (N, channels, T, width) keeps its shape. The result of the convolution is added to its input, and the sum is
    normalised. The same is done with the result of the two maps. Hannun et al. 2019, "Sequence-to-sequence speech
    recognition with time-depth separable convolutions", section 3.1.

    Args:
        channels: the number of channels.
        kernel_size: the number of steps that a kernel of the convolution covers.
        width: the number of features of a channel at each step.
        dropout: the probability of dropping a feature.
        hidden: the number of features between the two maps, channels * width by default.
        future: the number of steps after the present one that a kernel covers, by default half of kernel_size - 1.
        norm_time: normalise over a whole example; if false, over each step alone, so that no step depends on later
            ones.

    Raises:
        ValueError: ``future`` is not in the range from 0 to kernel_size - 1, or x has another shape.

    >>> import flnb, flnb.nn as nn
    >>> nn.TDSBlock(channels=2, kernel_size=5, width=8)(flnb.ones((3, 2, 20, 8))).shape
    (3, 2, 20, 8)
    """

    def __init__(
        self, channels: int, kernel_size: int, width: int, dropout: float = 0.0, hidden: int | None = None,
        future: int | None = None, norm_time: bool = True,
    ) -> None:  # fmt: skip
        neighbours = kernel_size - 1
        future = neighbours - neighbours // 2 if future is None else future
        if not 0 <= future <= neighbours:
            raise ValueError(
                f"TDSBlock: future must be from 0 to {neighbours} (for kernel_size={kernel_size}), got {future}"
            )
        self.channels, self.width, self.kernel_size, self.future = channels, width, kernel_size, future
        self.norm_time = norm_time
        features = channels * width
        self.conv = Conv2d(channels, channels, (kernel_size, 1))
        self.norm1 = GroupNorm(1, channels)
        self.linear1 = Linear(features, hidden or features)
        self.linear2 = Linear(hidden or features, features)
        self.norm2 = GroupNorm(1, channels)
        self.dropout = Dropout(dropout)

    def forward(self, x: Any) -> Any:
        if x.ndim != 4 or x.shape[1] != self.channels or x.shape[3] != self.width:
            raise ValueError(f"TDSBlock: expected x (N, {self.channels}, T, {self.width}), got {x.shape}")
        around = (0, 0), (0, 0), (self.kernel_size - 1 - self.future, self.future), (0, 0)
        x = self._normed(self.norm1, x + self.dropout(ops.relu(self.conv(ops.pad(x, around)))))
        n, channels, length, width = x.shape
        steps = ops.reshape(ops.permute_dims(x, (0, 2, 1, 3)), (n, length, channels * width))
        steps = self.dropout(self.linear2(self.dropout(ops.relu(self.linear1(steps)))))
        mapped = ops.permute_dims(ops.reshape(steps, (n, length, channels, width)), (0, 2, 1, 3))
        return self._normed(self.norm2, x + mapped)

    def _normed(self, norm: GroupNorm, x: Any) -> Any:
        """Apply a norm to each example of x (N, channels, T, width), or to each step if ``norm_time`` is false."""
        if self.norm_time:
            return norm(x)
        n, channels, length, width = x.shape
        steps = ops.reshape(ops.permute_dims(x, (0, 2, 1, 3)), (n * length, channels, width))
        return ops.permute_dims(ops.reshape(norm(steps), (n, length, channels, width)), (0, 2, 1, 3))


class Conformer(Module):
    """Convolution-augmented transformer block: feed-forward, self-attention, convolution, feed-forward, layer norm.

    Called as ``conformer(x, mask)``: x (N, T, features) keeps its shape. The optional mask (N, T), bool, is false at
    the padding of shorter sequences; values there do not influence other steps.

    Gulati et al. 2020, "Conformer: convolution-augmented transformer for speech recognition", section 2, with two
    changes as in Flashlight: distances are added to attention as in `MultiheadAttention` with ``context``, and the
    convolution has a layer norm in place of a batch norm, so that the examples of a batch do not affect each other.

    Args:
        features: the number of features of x.
        heads: the number of attention heads.
        feedforward: the number of features between the two linear maps of a feed-forward module.
        kernel_size: the number of steps that a kernel of the convolution covers.
        dropout: the probability of dropping a feature, and an attention weight.
        context: the largest length of a sequence; 0 for attention that ignores distances.

    >>> import flnb, flnb.nn as nn
    >>> nn.Conformer(features=8, heads=2, feedforward=16, kernel_size=3)(flnb.ones((3, 5, 8))).shape
    (3, 5, 8)
    """

    def __init__(
        self, features: int, heads: int, feedforward: int, kernel_size: int = 31, dropout: float = 0.1,
        context: int = 0,
    ) -> None:  # fmt: skip
        self.feed1 = _feed(features, feedforward, dropout)
        self.attention_norm = LayerNorm(features)
        self.attention = MultiheadAttention(features, heads, dropout=dropout, context=context)
        self.convolution = _Convolution(features, kernel_size, dropout)
        self.feed2 = _feed(features, feedforward, dropout)
        self.norm = LayerNorm(features)
        self.dropout = Dropout(dropout)

    def forward(self, x: Any, mask: Any = None) -> Any:
        if mask is not None and mask.shape != x.shape[:2]:
            raise ValueError(f"Conformer: expected a mask {x.shape[:2]} for x {x.shape}, got {mask.shape}")
        x = x + self.feed1(x) * 0.5
        attended = self.attention(self.attention_norm(x), mask=None if mask is None else mask[:, None, None, :])
        x = x + self.dropout(attended)
        x = x + self.convolution(x, mask)
        return self.norm(x + self.feed2(x) * 0.5)


def _feed(features: int, hidden: int, dropout: float) -> Sequential:
    """Return the feed-forward module of the Conformer paper's section 2.3, without its residual."""
    return Sequential(
        norm=LayerNorm(features), linear1=Linear(features, hidden), swish=Swish(), dropout1=Dropout(dropout),
        linear2=Linear(hidden, features), dropout2=Dropout(dropout),
    )  # fmt: skip


class _Convolution(Module):
    """The convolution module of the Conformer (section 2.2): a gate, a convolution of each feature, a linear map."""

    def __init__(self, features: int, kernel_size: int, dropout: float) -> None:
        self.before = Sequential(norm=LayerNorm(features), linear=Linear(features, 2 * features), gate=GLU())
        self.depthwise = AsymmetricConv1d(features, features, kernel_size, groups=features)
        self.after = Sequential(
            norm=LayerNorm(features), swish=Swish(), linear=Linear(features, features), dropout=Dropout(dropout)
        )

    def forward(self, x: Any, mask: Any = None) -> Any:
        x = self.before(x)
        if mask is not None:
            x = ops.where(mask[..., None], x, 0.0)
        return self.after(ops.permute_dims(self.depthwise(ops.permute_dims(x, (0, 2, 1))), (0, 2, 1)))
