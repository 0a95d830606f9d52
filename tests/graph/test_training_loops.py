"""Training loops have the same losses and weights with and without `flnb.jit`, also if settings change meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
from flnb import nn, optim

if TYPE_CHECKING:
    from collections.abc import Callable

DRAWN = np.random.default_rng(3).normal(size=(12, 6, 4)).astype(np.float32)
LOOPS: list[Callable[..., list[Any]]] = []


def loop(function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    LOOPS.append(function)
    return function


def net() -> Any:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))


def error(model: Any, i: int) -> Any:
    return flnb.mean((model(flnb.asarray(DRAWN[i])) - 1.0) ** 2.0)


def stepping(jit: Any, model: Any, optimizer: Any) -> Any:
    @jit
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = flnb.mean((model(x) - 1.0) ** 2.0)
        loss.backward()
        optimizer.step()
        return loss

    return lambda i: step(flnb.asarray(DRAWN[i])).item()


@loop
def gradients_are_accumulated_and_cleared_after_the_step(jit: Any) -> list[Any]:
    model = net()
    optimizer = optim.Adam(model.parameters(), lr=0.05)

    @jit
    def part(x: Any) -> None:
        flnb.mean((model(x) - 1.0) ** 2.0).backward()

    @jit
    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    @jit
    def whole(x: Any) -> None:
        flnb.mean((model(x) - 1.0) ** 2.0).backward()
        optimizer.step()
        optimizer.zero_grad()

    for i in range(8):
        part(flnb.asarray(DRAWN[i]))
        if i % 2:
            update()
    for i in range(8):
        if i in (5, 7):
            error(model, 0).backward()
        whole(flnb.asarray(DRAWN[i]))
    return model.parameters()


@loop
def gradients_of_another_layer_arrive_later(jit: Any) -> list[Any]:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = optim.Adam([*first.parameters(), *second.parameters()], lr=0.1)
    clip, update = jit(lambda: optim.clip_grad_norm(optimizer.parameters, 0.1)), jit(lambda: optimizer.step())
    norms = []
    for i in range(8):
        optimizer.zero_grad()
        (error(first, i) + error(second, i) if i in (1, 4, 5, 6) else error(first, i)).backward()
        norms.append(float(clip()))
        update()
    return [norms, *optimizer.parameters]


@loop
def layers_are_frozen_for_a_while(jit: Any) -> list[Any]:
    found = []
    for frozen in (range(3, 6), range(3)):
        model = net()
        step = stepping(jit, model, optim.Adam(model.parameters(), lr=0.1))
        for i in range(9):
            for p in model[0].parameters():
                p.requires_grad = i not in frozen
            found.append(step(i))
    return [found]


@loop
def hooks_come_and_go(jit: Any) -> list[Any]:
    model = net()
    step, found = stepping(jit, model, optim.SGD(model.parameters(), lr=0.1)), []
    for i in range(12):
        if i == 3:
            handle = model[0].register_forward_hook(lambda _module, _inputs, y: y * 2.0)
        elif i == 8:
            handle = model[0].weight.register_hook(lambda g: g * 0.0)
        elif i in (6, 10):
            handle.remove()
        found.append(step(i))
    return [found, *model.parameters()]


@loop
def rates_are_set_inside_the_step(jit: Any) -> list[Any]:
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    schedule, found = optim.Schedule(optimizer, optim.Cosine(8)), []

    @jit
    def scheduled(x: Any) -> Any:
        flnb.mean((model(x) - 1.0) ** 2.0).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    @jit
    def given(x: Any, lr: float) -> Any:
        optimizer.lr = lr
        flnb.mean((model(x) - 1.0) ** 2.0).backward()
        optimizer.step()
        optimizer.zero_grad()

    for i in range(6):
        scheduled(flnb.asarray(DRAWN[i]))
        found.append(optimizer.lr)
    for i in range(9):
        given(flnb.asarray(DRAWN[i]), (0.1, 0.02)[i % 3 == 2])
        found.append(optimizer.lr)
    return [found, *model.parameters()]


@loop
def a_checkpointed_function_drops_out(jit: Any) -> list[Any]:
    weight, drop = nn.Parameter(DRAWN[0]), nn.Dropout(0.5)
    inner = flnb.checkpoint(lambda x: drop(x * weight))
    outer = flnb.checkpoint(lambda x: drop(inner(x)) + flnb.rand(6, 4))

    @jit
    def step(x: Any) -> Any:
        weight.zero_grad()
        y = outer(x) + drop(x)
        flnb.sum(y * y).backward()
        return y.detach()

    return [z for i in range(5) for z in (step(flnb.asarray(DRAWN[i])), weight.grad)]


class Settings:
    def __init__(self) -> None:
        self.scale, self.tensor, self.inner = 2.0, flnb.asarray(DRAWN[1]), {"list": [3.0]}


@loop
def items_and_attributes_are_exchanged(jit: Any) -> list[Any]:
    first, named, settings = [flnb.asarray(DRAWN[0]), 2.0], {"a": [flnb.asarray(DRAWN[1]), {"b": 3.0}]}, Settings()
    pair, default = (1.0, [2.0]), [3.0]

    @jit
    def function(x: Any, last: Any = default) -> Any:
        inside: Any = named["a"][1]
        y = x * first[0] * first[1] + named["a"][0] * inside["b"] + settings.scale * settings.tensor
        return y * settings.inner["list"][0] + pair[1][0] + last[0]

    def change(i: int) -> None:
        one = flnb.asarray(DRAWN[i])
        (
            lambda: first.__setitem__(0, one),
            lambda: first.__setitem__(1, 7.0),
            lambda: named["a"].__setitem__(0, one),
            lambda: named["a"][1].__setitem__("b", 8.0),  # type: ignore[index, call-overload]
            lambda: setattr(settings, "scale", 9.0),
            lambda: setattr(settings, "tensor", one),
            lambda: settings.inner["list"].__setitem__(0, 10.0),
            lambda: pair[1].__setitem__(0, 11.0),
            lambda: default.__setitem__(0, 12.0),
        )[i]()

    found = [function(flnb.asarray(DRAWN[0])) for _ in range(3)]
    for i in range(9):
        change(i)
        found.append(function(flnb.asarray(DRAWN[0])))
    return found


@loop
def an_argument_is_also_in_a_list(jit: Any) -> list[Any]:
    one, other = (flnb.asarray(each) for each in DRAWN[:2])
    known = [one]
    found = []
    for first in (one, other):
        f = jit(lambda x: x - known[0])
        found += [f(x) for x in (first, first, first, one, other, one)]
    return found


@loop
def models_and_optimizers_in_lists_are_exchanged(jit: Any) -> list[Any]:
    models: list[Any] = [net(), net()]
    optimizers = [optim.SGD(model.parameters(), lr=0.1) for model in models]

    @jit
    def step(x: Any) -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            flnb.mean((model(x) - 1.0) ** 2.0).backward()
            optimizer.step()

    for i in range(9):
        if i == 3:
            models[0] = net()
            optimizers[0] = optim.SGD(models[0].parameters(), lr=0.2)
        elif i == 6:
            models.append(net())
            optimizers.append(optim.SGD(models[-1].parameters(), lr=0.1))
        step(flnb.asarray(DRAWN[i]))
    return [p for model in models for p in model.parameters()]


@loop
def gradients_are_accumulated_of_a_layer_that_is_used_twice(jit: Any) -> list[Any]:
    layer = nn.Linear(4, 4)  # whose first gradient is the sum of two transposed ones, with their strides

    @jit
    def part(x: Any) -> None:
        flnb.mean(layer(layer(x)) ** 2.0).backward()

    for i in range(6):
        part(flnb.asarray(DRAWN[i]))
    return [p.grad for p in layer.parameters()]


@loop
def frozen_layers_get_other_values(jit: Any) -> list[Any]:
    frozen, tensor = nn.Linear(4, 4), flnb.Variable(DRAWN[0])
    for p in frozen.parameters():
        p.requires_grad = False
    f, found = jit(lambda x: frozen(x) * tensor.data), []
    for i in range(9):
        if i == 3:
            frozen.weight.data = flnb.asarray(DRAWN[1][:4])
        elif i == 6:
            tensor.data = flnb.asarray(DRAWN[2])
        found.append(f(flnb.asarray(DRAWN[3])))
    return found


@loop
def a_layer_that_is_not_used_is_frozen(jit: Any) -> list[Any]:
    model, other = net(), nn.Linear(4, 4)

    @jit
    def part(x: Any) -> None:
        model.zero_grad()
        other.zero_grad()
        flnb.mean((model(x) - 1.0) ** 2.0).backward()

    for i in range(9):
        other.weight.requires_grad = i not in (3, 4)
        part(flnb.asarray(DRAWN[i]))
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("train", LOOPS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_a_loop_with_compiled_steps_does_what_it_does_without(train: Callable[..., list[Any]], backend: str) -> None:
    found = []
    for jit in (lambda function: function, flnb.jit):
        flnb.manual_seed(0)
        with flnb.use_backend(backend):
            made = [x.data if isinstance(x, flnb.Variable) else x for x in train(jit)]
            found.append([np.array(x.tolist() if isinstance(x, flnb.Tensor) else x) for x in made])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["numpy", "cpu", "deferred"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_momentum_that_is_set_later_is_an_error(backend: str, compiled: bool) -> None:
    with flnb.use_backend(backend):
        model = net()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        step = stepping(flnb.jit if compiled else lambda function: function, model, optimizer)
        for i in range(4):
            step(i)
        optimizer.momentum = 0.9
        with pytest.raises(ValueError, match=r"SGD: momentum is 0\.9 now, but was 0 when .*with momentum=0\.9"):
            step(4)
        optimizer.momentum = 0.0
        step(5)
