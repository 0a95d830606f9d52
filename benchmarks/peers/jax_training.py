"""JAX's contestant: the whole step, optimizer included, compiled by jit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import numpy as jnp

from benchmarks.peers.jax_models import MODELS
from flnb import models
from flnb.bench.contestant import CHECKED, LEARNING_RATE, MOMENTUM, Contestant

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["JaxTraining"]


class JaxTraining(Contestant):
    """The model in JAX; arguments as for `flnb.bench.training.Training`. JAX counts no allocations on processors."""

    def __init__(self, model: str, scale: str, weights: str) -> None:
        if model not in MODELS:
            raise ValueError(f"benchmarks: {model!r} has no peer in JAX; there are {', '.join(sorted(MODELS))}")
        jax.jit(jax.grad(lambda x: (x @ x).sum()))(jnp.ones((2, 2))).block_until_ready()
        super().__init__()
        self.recipe, self.scale = models.get(model), scale
        self.function = partial(MODELS[model], **self.recipe.settings[scale])
        with np.load(weights) as arrays:
            self.parameters = [jnp.asarray(array) for array in arrays.values()]
        self.first = [np.asarray(parameter) for parameter in self.parameters]
        self.momenta = [jnp.zeros_like(parameter) for parameter in self.parameters]
        self.batch = [jnp.asarray(array) for array in self.recipe.batch(scale)]
        self.key = jax.random.key(0)
        self.gradients = jax.jit(jax.value_and_grad(self._loss))
        self.step = jax.jit(self._step, donate_argnums=(0, 1))
        self.last: Any = None

    def _loss(self, parameters: list[Any], batch: list[Any], key: Any) -> Any:
        *inputs, targets = batch
        logits = jax.nn.log_softmax(self.function(iter(parameters), *inputs, key))
        return -jnp.take_along_axis(logits, targets[:, None], 1).mean()

    def _step(self, parameters: list[Any], momenta: list[Any], batch: list[Any], key: Any) -> tuple[Any, ...]:
        gradients = jax.grad(self._loss)(parameters, batch, key)
        momenta = [MOMENTUM * m + g for m, g in zip(momenta, gradients, strict=True)]
        parameters = [p - LEARNING_RATE * m for p, m in zip(parameters, momenta, strict=True)]
        return parameters, momenta

    def iteration(self, update: bool) -> None:
        self.key, key = jax.random.split(self.key)
        if update:
            self.parameters, self.momenta = self.step(self.parameters, self.momenta, self.batch, key)
            self.last = self.parameters
        else:
            self.last = self.gradients(self.parameters, self.batch, key)

    def sync(self) -> None:
        jax.block_until_ready(self.last)

    def in_double(self) -> tuple[float, Iterable[Any]]:
        with jax.enable_x64(True):
            parameters = [jnp.asarray(array, jnp.float64) for array in self.first]
            arrays = self.recipe.batch(self.scale, size=CHECKED)
            batch = [jnp.asarray(array, jnp.float64 if array.dtype.kind == "f" else None) for array in arrays]
            loss, gradients = jax.jit(jax.value_and_grad(self._loss))(parameters, batch, None)
            return float(loss), [np.asarray(gradient) for gradient in gradients]

    def counted(self) -> dict[str, Any]:
        return {"live": None, "allocations": None}
