"""A transformer that learns to write Python, character by character, from the standard library's sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.trained.characters import language_model
from benchmarks.trained.experiment import Experiment
from benchmarks.trained.sources import CHARACTERS
from flnb.models import TransformerLM
from flnb.optim import AdamW

if TYPE_CHECKING:
    from argparse import Namespace

    from benchmarks.trained.training import Training


def prepare(seed: int, options: Namespace) -> Training:
    """Return the training of a transformer of three layers (128 features, 4 heads), with 800 batches.

    A batch has 32 pieces of 64 characters.
    """
    features, layers, steps = (32, 1, 20) if options.quick else (128, 3, 800)
    model = TransformerLM(vocabulary=len(CHARACTERS), features=features, heads=4, layers=layers, length=64, dropout=0.0)
    optimizer = AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    return language_model(model, optimizer, lambda model, x: model(x), seed, steps, batch=32, length=64)


EXPERIMENT = Experiment(
    "char-transformer", "Transformer on Python's sources", "bits per character", goal=2.6, prepare=prepare,
    higher=False,
)  # fmt: skip
