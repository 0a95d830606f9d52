"""The examples in the docstrings of nn, optim, data and meters run and print what they say."""

import doctest
import importlib

import pytest

NEEDS = {
    "flnb.nn.module": None,
    "flnb.nn.layers": None,
    "flnb.nn.losses": None,
    "flnb.nn.init": None,
    "flnb.nn.saving": "safetensors",
    "flnb.optim.optimizer": None,
    "flnb.optim.algorithms": None,
    "flnb.data.datasets": None,
    "flnb.data.digits": "sklearn",
    "flnb.data.progress": "tqdm",
    "flnb.meters": None,
}


@pytest.mark.parametrize("name", NEEDS)
def test_examples(name):
    if NEEDS[name]:
        pytest.importorskip(NEEDS[name], reason="this example needs the extra lab")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
