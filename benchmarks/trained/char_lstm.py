"""An LSTM that learns to write Python, character by character, from the standard library's sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.trained.characters import language_model
from benchmarks.trained.experiment import Experiment
from benchmarks.trained.sources import CHARACTERS
from flnb.models import LSTMLM
from flnb.optim import Adam

if TYPE_CHECKING:
    from argparse import Namespace

    from benchmarks.trained.training import Training


def prepare(seed: int, options: Namespace) -> Training:
    """Return the training of an LSTM of 256 units, with 600 batches of 32 pieces of 64 characters."""
    model = LSTMLM(vocabulary=len(CHARACTERS), features=64 if options.quick else 256, dropout=0.0)
    steps = 20 if options.quick else 600
    optimizer = Adam(model.parameters(), lr=4e-3)
    return language_model(model, optimizer, lambda model, x: model(x)[0], seed, steps, batch=32, length=64)


EXPERIMENT = Experiment(
    "char-lstm", "LSTM on Python's sources", "bits per character", goal=2.4, prepare=prepare, higher=False
)
