"""The common parts of token models: random batches, the check of inputs, initial weights, the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb import ops, random

if TYPE_CHECKING:
    import numpy as np

    from flnb.models.recipe import Batch, Draw
    from flnb.nn import Module


def next_tokens(vocabulary: int, length: int) -> Draw:
    """Return a function that draws random tokens (N, length), int64, and as targets the tokens that follow them.

    Tokens are numbers from 0 to ``vocabulary`` - 1.
    """

    def draw(generator: np.random.Generator, size: int) -> Batch:
        tokens = generator.integers(vocabulary, size=(size, length + 1))
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()

    return draw


def expect_tokens(model: object, tokens: Any, vocabulary: int, length: int | None = None) -> Any:
    """Check tokens (N, T) and return them as a tensor. Errors name the class of `model`.

    Raises:
        ValueError: another number of axes than two, no token at all, or T above ``length``.
        TypeError: the tokens are not integers.
        IndexError: a token is negative, or not below ``vocabulary``.
    """
    tokens = ops.asarray(tokens)
    name = type(model).__name__
    if tokens.ndim != 2 or tokens.size == 0 or (length is not None and tokens.shape[1] > length):
        limit = "" if length is None else f" at most {length}"
        raise ValueError(f"{name}: expected tokens (N, T) with T{limit or ' > 0'}, got {tuple(tokens.shape)}")
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"{name}: tokens are indices into a vocabulary and must be integers, got {tokens.dtype.name}")
    least, most = tokens._bounds()
    if least < 0 or most >= vocabulary:
        raise IndexError(f"{name}: expected tokens from 0 to {vocabulary - 1}, got tokens from {least} to {most}")
    return tokens


def draw_weights(model: Module, std: float) -> None:
    """Initialise a transformer in place: matrices from a normal distribution with standard deviation ``std``, biases 0.

    As in the code that Devlin et al. 2019 published.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            ops.assign(parameter.data, random.normal(parameter.shape, 0.0, std))
        elif name.endswith("bias"):
            ops.assign(parameter.data, 0.0)


def token_loss(logits: Any, targets: Any) -> Any:
    """Return the mean cross-entropy, in nats per token, of logits (N, T, vocabulary) for targets (N, T)."""
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"token_loss: expected targets {logits.shape[:-1]} for logits {logits.shape}, got {targets.shape}"
        )
    return ops.cross_entropy(ops.reshape(logits, (-1, logits.shape[-1])), ops.reshape(targets, (-1,)))


def sequence_loss(model: Module, *batch: Any) -> Any:
    """Return the mean cross-entropy of ``model(*inputs)``; a batch is the inputs, then the targets (N, T)."""
    *inputs, targets = batch
    return token_loss(model(*inputs), targets)
