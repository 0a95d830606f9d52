"""Twenty training steps of every model, fused, in double precision: what eager NumPy computes.

All of them: ``python -m tests.graph.test_every_model [MODEL...]``; here are some.
"""

from __future__ import annotations

import random
import sys
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import models, optim
from tests.recipe_steps import training_step

STEPS = 20
QUICK = ("mlp", "lenet", "lstm-lm-200")
"""Models that take seconds: all of them are trained here, and one drawn from the others that need no minutes."""
CALM = {"resnet50": (1e-5, 8)}
"""Learning rate and examples of a batch, else 1e-3 and 2, with which fifty batch norms make chaos: eager NumPy's own
losses are 6 % apart after eight steps if the images are multiplied by 1 + 1e-15."""
DRAWN = random.Random(14).choice(("resnet18", "bert", "vit", "transformer-lm", "captioner"))


def trained(name: str, steps: int, jit: bool) -> tuple[list[float], dict[str, Any]]:
    """Losses, and all parameters and buffers, after some steps on two batches in turn."""
    flnb.manual_seed(0)
    recipe = models.get(name)
    rate, size = CALM.get(name, (1e-3, 2))
    with flnb.use_backend("cpu" if jit else "numpy"):
        model = recipe.build("small").astype(np.float64)
        batches = [recipe.batch("small", size=size, seed=seed) for seed in (0, 1)]
        given = [[flnb.asarray(a.astype(np.float64) if a.dtype.kind == "f" else a) for a in b] for b in batches]
        optimizer = optim.SGD(model.parameters(), lr=rate, momentum=0.9)

        step = training_step(recipe, model, optimizer)
        run: Any = flnb.jit(step) if jit else step
        losses = [run(*given[i % 2]).item() for i in range(steps)]
        if jit:
            assert run.programs
    named = {**{key: item.data for key, item in model.named_parameters()}, **dict(model.named_buffers())}
    return losses, {key: item.numpy().copy() for key, item in named.items()}


def check(name: str, steps: int = STEPS) -> float:
    """Compare a model's training by a program with that by eager NumPy; returns the largest relative difference."""
    (expected, known), (got, made) = trained(name, steps, jit=False), trained(name, steps, jit=True)
    np.testing.assert_allclose(got, expected, rtol=1e-8, err_msg=name)
    off = 0.0
    for key, value in known.items():
        np.testing.assert_allclose(made[key], value, rtol=1e-6, atol=1e-8, err_msg=f"{name}: {key}")
        if value.dtype.kind == "f" and value.size:
            off = max(off, float(np.abs(made[key] - value).max() / max(1.0, np.abs(value).max())))
    return off


@pytest.mark.parametrize("name", [*QUICK, DRAWN])
def test_twenty_steps_of_a_model_fused(name: str) -> None:
    check(name)


if __name__ == "__main__":
    failed = []
    for each in sys.argv[1:] or models.names():
        start = perf_counter()
        try:
            told = f"off by {check(each):.1e}"
        except Exception as error:
            failed.append(each)
            told = f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(f"{each}: {STEPS} steps, {told} ({perf_counter() - start:.0f} s)", flush=True)
    print(f"{len(failed)} failed {failed}")
    sys.exit(bool(failed))
