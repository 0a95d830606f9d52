"""The common parts of the two character models: batches of text, bits per character, and text written by the model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import flnb
from benchmarks.trained.sources import CHARACTERS, Windows, decoded, encoded, entropies, spread, texts
from benchmarks.trained.training import Training
from flnb.data import BatchDataset, ShuffleDataset
from flnb.models.tokens import token_loss
from flnb.optim import Chain, Cosine, LinearWarmUp, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb import nn
    from flnb.optim import Optimizer

    Logits = Callable[[nn.Module, Any], Any]

PROMPT = "def "


def language_model(
    model: nn.Module, optimizer: Optimizer, logits: Logits, seed: int, steps: int, batch: int, length: int
) -> Training:
    """Return the training of a language model; `logits(model, x)` are the scores for x (N, length).

    Each character of a piece of text is predicted from the characters before it in the same piece. The test uses 256
    pieces of the validation files.
    """
    train, validation = texts()
    held_out = spread(Windows(validation, length), 256)
    x, y = (tensor.numpy() for tensor in held_out.take(np.arange(len(held_out))))
    warm = max(1, steps // 20)
    tests = BatchDataset(held_out, batch)
    return Training(
        model=model,
        optimizer=optimizer,
        schedule=Schedule(optimizer, Chain({0: LinearWarmUp(warm), warm: Cosine(steps - warm, floor=0.05)})),
        batches=BatchDataset(ShuffleDataset(Windows(train, length), seed=seed), batch, last="skip"),
        loss=lambda trained, x, y: token_loss(logits(trained, x), y),
        test=lambda trained: bits(trained, logits, tests),
        steps=steps,
        every=max(5, steps // 20),
        clip=1.0,
        references={"chance": math.log2(len(CHARACTERS))} | entropies(train, x, y),
        sample=lambda trained: written(trained, logits, length),
    )


def bits(model: nn.Module, logits: Logits, tests: BatchDataset) -> float:
    """Return the mean bits per character: the cross-entropy in nats divided by log 2."""
    losses = [(float(token_loss(logits(model, x), y)), y.size) for x, y in tests]
    return sum(loss * size for loss, size in losses) / sum(size for _, size in losses) / math.log(2)


def written(model: nn.Module, logits: Logits, length: int, temperature: float = 0.7) -> str:
    """Return a text of `length` characters: `PROMPT`, continued by the model.

    Each character is drawn from the model's probabilities; a `temperature` below 1 sharpens these.
    """
    rng = np.random.default_rng(0)
    codes = encoded(PROMPT).astype(np.int64).tolist()
    model.eval()
    with flnb.no_grad():
        while len(codes) < length:
            last = logits(model, np.asarray([codes]))[0, -1].numpy().astype(np.float64) / temperature
            weights = np.exp(last - last.max())
            codes.append(int(rng.choice(len(weights), p=weights / weights.sum())))
    return decoded(codes)
