"""The common parts of token models: random tokens, the check of inputs, initial weights, the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb import ops, random

if TYPE_CHECKING:
    import numpy as np

    from flnb.models.recipe import Batch, Draw
    from flnb.nn import Module

__all__ = ["draw_weights", "expect_tokens", "next_tokens", "token_loss"]


def next_tokens(vocabulary: int, length: int) -> Draw:
    """Batches of random tokens (N, length), int64, and those that follow each of them."""

    def draw(generator: np.random.Generator, size: int) -> Batch:
        tokens = generator.integers(vocabulary, size=(size, length + 1))
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()

    return draw


def expect_tokens(model: object, tokens: Any, vocabulary: int, length: int | None = None) -> Any:
    """Tokens (N, T) as a tensor: integers from 0 to vocabulary - 1, and if a length is given, T at most that.

    Raises:
        ValueError: another number of axes, no token, or too many of them.
        TypeError: no integers.
        IndexError: a number that is no token.
    """
    tokens = ops.asarray(tokens)
    name = type(model).__name__
    if tokens.ndim != 2 or tokens.size == 0 or (length is not None and tokens.shape[1] > length):
        limit = "" if length is None else f" at most {length}"
        raise ValueError(f"{name}: expected tokens (N, T) with T{limit or ' > 0'}, got {tuple(tokens.shape)}")
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"{name}: tokens are places in a vocabulary and must be integers, got {tokens.dtype.name}")
    least, most = tokens._bounds()
    if least < 0 or most >= vocabulary:
        raise IndexError(f"{name}: expected tokens from 0 to {vocabulary - 1}, got tokens from {least} to {most}")
    return tokens


def draw_weights(model: Module, std: float) -> None:
    """Matrices normal with `std`, biases zero, in place: where transformers begin (Devlin et al. 2019, its code)."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            ops.assign(parameter.data, random.normal(parameter.shape, 0.0, std))
        elif name.endswith("bias"):
            ops.assign(parameter.data, 0.0)


def token_loss(logits: Any, targets: Any) -> Any:
    """Mean cross-entropy, in nats per token, of logits (N, T, vocabulary) and integer targets (N, T)."""
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"token_loss: expected targets {logits.shape[:-1]} for logits {logits.shape}, got {targets.shape}"
        )
    return ops.cross_entropy(ops.reshape(logits, (-1, logits.shape[-1])), ops.reshape(targets, (-1,)))
