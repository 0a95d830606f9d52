"""What every recipe promises: counts, batches, gradients, a loss that falls, and weights that are saved and read."""

import re
import subprocess
import sys

import numpy as np
import pytest

import flnb
import flnb.nn as nn
import flnb.optim as optim

NAMES = flnb.models.names()
EXAMPLES = 4  # in the batches of these tests


def small(name):
    """A model, its batch and its loss, from a fixed seed."""
    flnb.manual_seed(0)
    recipe = flnb.models.get(name)
    model = recipe.build("small")
    batch = [flnb.asarray(array) for array in recipe.batch("small", size=EXAMPLES)]
    return model, batch, lambda: recipe.loss(model, *batch)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_as_many_as_stated(name):
    recipe = flnb.models.get(name)
    assert set(recipe.parameters) == set(recipe.settings) == set(recipe.batch_sizes) == set(recipe.draws)
    for scale, stated in recipe.parameters.items():
        with flnb.use_backend("meta"):
            assert sum(parameter.size for parameter in recipe.build(scale).parameters()) == stated, scale


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_the_same_for_the_same_seed(name):
    recipe = flnb.models.get(name)
    first, again, other = (recipe.batch("small", seed=seed, size=EXAMPLES) for seed in (0, 0, 1))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(first, other, strict=True) if a.shape == b.shape)
    assert len(first[-1]) == EXAMPLES
    assert len(recipe.batch("small")[-1]) == recipe.batch_sizes["small"]


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_finite_gradient_and_the_loss_falls(name):
    model, _, loss = small(name)
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for step in range(6):
        value = loss()
        assert value.shape == ()
        value.backward()
        if step == 0:
            for path, parameter in model.named_parameters():
                assert parameter.grad is not None, path
                assert bool(flnb.all(flnb.isfinite(parameter.grad))), path
                assert bool(flnb.any(parameter.grad != 0)), path
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(value))
    assert min(losses[-2:]) < losses[0], losses


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_it_gives_the_same_and_evaluating_is_deterministic(name, tmp_path):
    model, _, loss = small(name)
    loss()  # moves the running statistics, which are saved too
    model.eval()
    with flnb.no_grad():
        value = float(loss())
        assert float(loss()) == value
        nn.save(model, tmp_path / "model.safetensors")
        for parameter in model.parameters():
            flnb.assign(parameter.data, 0.0)
        assert float(loss()) != value
        nn.load(model, tmp_path / "model.safetensors")
        assert float(loss()) == value


def test_models_are_asked_for_by_name():
    assert flnb.models.names() == tuple(sorted(NAMES))
    with pytest.raises(ValueError, match=re.escape("flnb.models: no model 'lenett'; did you mean 'lenet'")):
        flnb.models.get("lenett")
    with pytest.raises(ValueError, match=f"no model '#'; known: {', '.join(NAMES)}"):
        flnb.models.get("#")
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = flnb.models.Nothing
    assert set(flnb.models.__all__) <= set(dir(flnb.models))


def test_scales_and_batches_that_are_none():
    recipe = flnb.models.get("mlp")
    for call in (recipe.build, recipe.batch):
        with pytest.raises(ValueError, match="mlp: expected the scale 'paper' or 'small', got 'large'"):
            call("large")
    with pytest.raises(ValueError, match="mlp: expected a batch of 1 example or more, got 0"):
        recipe.batch("small", size=0)


def test_models_are_imported_when_they_are_asked_for():
    program = """
import sys, flnb
assert "flnb.models" not in sys.modules
flnb.models.names()
assert "flnb.models.lenet" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
