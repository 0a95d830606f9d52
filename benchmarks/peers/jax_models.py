"""Some of the models of `flnb.models` in JAX: functions of the parameters, which come in flnb's order.

Sizes are read from the arrays; only the settings that do not follow from the arrays are arguments. Batch norm here
normalises by the batch and stores no running statistics, which is a little less work than in the other frameworks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import jax
from jax import lax
from jax import numpy as jnp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["MODELS"]

Parameters: TypeAlias = "Iterator[Any]"


def linear(x: Any, p: Parameters, bias: bool = True) -> Any:
    y = x @ next(p).T
    return y + next(p) if bias else y


def conv(x: Any, p: Parameters, stride: int = 1, padding: int = 0, bias: bool = True) -> Any:
    y = lax.conv_general_dilated(x, next(p), (stride, stride), [(padding, padding)] * 2)
    return y + next(p)[:, None, None] if bias else y


def max_pool(x: Any, size: int, stride: int, padding: int = 0) -> Any:
    window, steps, around = (1, 1, size, size), (1, 1, stride, stride), [(0, 0)] * 2 + [(padding, padding)] * 2
    return lax.reduce_window(x, -jnp.inf, lax.max, window, steps, around)


def batch_norm(x: Any, p: Parameters) -> Any:
    weight, bias = next(p)[:, None, None], next(p)[:, None, None]
    mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    return (x - mean) * (weight * lax.rsqrt(variance + 1e-5)) + bias


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + eps) * weight + bias


class Dropout:
    """Dropout of the share `rate` of the elements, with a new random key at each call; without a key, the identity."""

    def __init__(self, key: Any, rate: float) -> None:
        self.key, self.rate = key, rate

    def __call__(self, x: Any) -> Any:
        if self.key is None or not self.rate:
            return x
        self.key, key = jax.random.split(self.key)
        return jnp.where(jax.random.bernoulli(key, 1.0 - self.rate, x.shape), x / (1.0 - self.rate), 0.0)


def mlp(p: Parameters, x: Any, key: Any, widths: Sequence[int], dropout: float = 0.0) -> Any:
    drop, x = Dropout(key, dropout), x.reshape(len(x), -1)
    for _ in widths[2:]:
        x = drop(jax.nn.relu(linear(x, p)))
    return linear(x, p)


def alexnet(p: Parameters, x: Any, key: Any, dropout: float = 0.5, **_: Any) -> Any:
    drop = Dropout(key, dropout)
    x = max_pool(jax.nn.relu(conv(x, p, 4, 2)), 3, 2)
    x = max_pool(jax.nn.relu(conv(x, p, 1, 2)), 3, 2)
    for _ in range(3):
        x = jax.nn.relu(conv(x, p, 1, 1))
    x = max_pool(x, 3, 2).reshape(len(x), -1)
    x = jax.nn.relu(linear(drop(x), p))
    return linear(jax.nn.relu(linear(drop(x), p)), p)


def vgg(p: Parameters, x: Any, key: Any, depths: Sequence[int], dropout: float = 0.5, **_: Any) -> Any:
    drop = Dropout(key, dropout)
    for depth in depths:
        for _ in range(depth):
            x = jax.nn.relu(conv(x, p, 1, 1))
        x = max_pool(x, 2, 2)
    x = drop(jax.nn.relu(linear(x.reshape(len(x), -1), p)))
    return linear(drop(jax.nn.relu(linear(x, p))), p)


def resnet(p: Parameters, x: Any, key: Any, depths: Sequence[int], block: str = "basic", **_: Any) -> Any:
    kernels, strided = ((3, 3), 0) if block == "basic" else ((1, 3, 1), 1)
    x = max_pool(jax.nn.relu(batch_norm(conv(x, p, 2, 3, bias=False), p)), 3, 2, 1)
    for stage, depth in enumerate(depths):
        for i in range(depth):
            stride, past = 2 if stage and not i else 1, x
            for place, kernel in enumerate(kernels):
                x = jax.nn.relu(x) if place else x
                x = batch_norm(conv(x, p, stride if place == strided else 1, kernel // 2, bias=False), p)
            if past.shape != x.shape:
                past = batch_norm(conv(past, p, stride, bias=False), p)
            x = jax.nn.relu(x + past)
    return linear(x.mean((2, 3)), p)


def vit(
    p: Parameters, x: Any, key: Any, layers: int = 12, heads: int = 12, patch: int = 16, dropout: float = 0.0, **_: Any
) -> Any:
    drop, token, positions = Dropout(key, dropout), next(p), next(p)
    x = conv(x, p, patch)
    x = x.reshape(*x.shape[:2], -1).transpose(0, 2, 1)
    x = drop(jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, token.shape[2])), x], 1) + positions)
    for _ in range(layers):
        x = encoder_layer(x, [next(p) for _ in range(12)], heads, drop)
    return linear(layer_norm(x, next(p), next(p), 1e-6)[:, 0], p)


def encoder_layer(x: Any, own: list[Any], heads: int, drop: Dropout) -> Any:
    """Apply a transformer layer with norm first and GELU; ``own`` are the parameters, in the order of flnb's layer."""
    norms, n, length, features = own[8:], *x.shape
    qkv = (layer_norm(x, norms[0], norms[1], 1e-6) @ own[0].T + own[1]).reshape(n, length, 3, heads, features // heads)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    weights = drop(jax.nn.softmax(q @ k.swapaxes(2, 3) * (features // heads) ** -0.5))
    x = x + drop((weights @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ own[2].T + own[3])
    hidden = drop(jax.nn.gelu(layer_norm(x, norms[2], norms[3], 1e-6) @ own[4].T + own[5], approximate=False))
    return x + drop(hidden @ own[6].T + own[7])


MODELS: dict[str, Callable[..., Any]] = {
    "mlp": mlp,
    "alexnet": alexnet,
    **dict.fromkeys(("vgg-a", "vgg16"), vgg),
    **dict.fromkeys(("resnet18", "resnet34", "resnet50"), resnet),
    "vit": vit,
}
"""For each model a function that returns logits, given an iterator over the parameters, the images or vectors, a random
key for dropout, and the settings."""
