"""Character models: bits of models whose probabilities are known, and what they write."""

import math

import numpy as np
import pytest

import flnb
from benchmarks.trained.characters import PROMPT, bits, written
from benchmarks.trained.sources import CHARACTERS, Windows, encoded
from flnb import nn
from flnb.data import BatchDataset

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


class Successor(nn.Module):
    """After each character comes the one after it in the vocabulary, with odds of exp(sharpness)."""

    def __init__(self, sharpness):
        self.sharpness = sharpness

    def forward(self, x):
        codes = (np.asarray(x.numpy() if isinstance(x, flnb.Tensor) else x) + 1) % len(CHARACTERS)
        return flnb.asarray(np.eye(len(CHARACTERS), dtype=np.float32)[codes] * self.sharpness)


def logits(model, x):
    return model(x)


@pytest.mark.parametrize("sharpness", [0.0, 2.0, 30.0])
def test_bits_per_character(sharpness):
    tests = BatchDataset(Windows(encoded(ALPHABET), 5), 2)  # a last batch of one weighs half as much
    expected = math.log2(math.exp(sharpness) + len(CHARACTERS) - 1) - sharpness * math.log2(math.e)
    assert bits(Successor(sharpness), logits, tests) == pytest.approx(expected, abs=1e-5)


def test_what_is_written_follows_the_models_probabilities():
    text = written(Successor(30.0), logits, 12)
    first = CHARACTERS.index(PROMPT[-1]) + 1
    assert text == PROMPT + CHARACTERS[first : first + 8]
    model = Successor(0.0)
    model.train()
    assert written(model, logits, 40) == written(model, logits, 40) != text
