"""Steps with modules that run again in backward: which these are, that their gradients are right, and that nothing of
it is left behind."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from threading import Thread
from typing import Any

import numpy as np
import pytest

import flnb
import flnb.nn as nn
from flnb.memory import lean

X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())


class Counted(nn.Module):
    """Knows how often it ran: once in forward, once more where it runs again."""

    ran = 0

    def __init__(self) -> None:
        self.inner = nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        self.ran += 1
        return flnb.tanh(self.inner(x))


def gradients(module: nn.Module) -> list[Any]:
    return [None if p.grad is None else p.grad.numpy().copy() for p in module.parameters()]


def called(*modules: Any) -> list[int]:
    """How often each runs in a step through all of them."""
    for module in modules:
        module.ran = 0
    y = flnb.asarray(X)
    for module in modules:
        y = module(y)
    y.sum().backward()
    return [module.ran for module in modules]


def test_all_modules_of_a_scope_are_meant() -> None:
    a, b, other = Counted(), Counted(), Counted()
    with lean([a, b], recompute=["counted"]):
        assert called(a, b, other) == [2, 2, 1]
    assert called(a, b, other) == [1, 1, 1]


def test_also_after_an_error_and_where_blocks_overlap() -> None:
    net = Counted()
    with pytest.raises(ValueError, match="stop"), lean(net, "counted"):
        raise ValueError("stop")
    assert called(net) == [1]
    first, second = lean(net, "counted"), lean(net, "counted")
    first.__enter__()
    second.__enter__()
    assert called(net) == [2]
    first.__exit__(None, None, None)
    assert called(net) == [2]
    second.__exit__(None, None, None)
    assert called(net) == [1]


def test_copies_are_modules_of_their_own() -> None:
    net = Counted()
    with lean(net, "counted"):
        twin, saved = copy.deepcopy(net), pickle.dumps(net)
        with flnb.no_grad():
            for parameter in net.parameters():
                flnb.assign(parameter, 0.0)
        for other in (twin, pickle.loads(saved)):
            assert called(other) == [1]
            assert other(flnb.asarray(X)).detach().numpy().any()


def test_another_thread_has_its_own_blocks() -> None:
    net, seen = Counted(), []
    with lean(net, "counted"):
        thread = Thread(target=lambda: seen.append(called(net)))
        thread.start()
        thread.join()
        assert called(net) == [2]
    assert seen == [[1]]


def test_hooks_are_called_once() -> None:
    net, seen = Counted(), []
    with net.register_forward_hook(lambda *_: seen.append(1)), lean(net, "counted"):
        assert called(net) == [2]
    assert seen == [1]


@pytest.mark.parametrize("own", [False, True], ids=["parameter", "input"])
@pytest.mark.parametrize("make", [block, lambda: nn.Linear(16, 16)], ids=["saved", "not saved"])
def test_what_was_written_between_is_an_error(own: bool, make: Any) -> None:
    net, x = make(), flnb.Variable(X)
    hidden = x * 1.0
    with lean(net, [net._name]), pytest.raises(RuntimeError, match="written in place"):
        y = net(hidden).sum()
        with flnb.no_grad():
            flnb.assign(hidden.data if own else net.parameters()[0], 0.0)
        y.backward()


def test_the_error_names_the_parameter_and_what_to_do() -> None:
    net = block()
    with lean(net, "sequential"):
        y = net(flnb.asarray(X)).sum()
        with flnb.no_grad():
            flnb.assign(net[2].weight, 0.0)
        told = r"'2.weight', float32\[16,16\], was read by the checkpointed Sequential and then written in place .*move"
        with pytest.raises(RuntimeError, match=told):
            y.backward()


def test_running_means_may_be_written_by_the_next_call() -> None:
    def run(recompute: tuple[str, ...]) -> tuple[Any, Any]:
        flnb.manual_seed(0)
        net, x = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm(16)), flnb.asarray(X)
        with lean(net, recompute):
            losses = [net(x * scale).square().sum() for scale in (1.0, 2.0)]
            for loss in losses:
                loss.backward()
        return gradients(net), [x.numpy().copy() for _, x in net.named_buffers()]

    for plain, again in zip(run(()), run(("sequential",)), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(plain, again, strict=True))


@pytest.mark.parametrize("train", [True, False])
def test_modes_are_those_of_the_forward_pass(train: bool) -> None:
    def run(recompute: tuple[str, ...]) -> list[Any]:
        flnb.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm(16), nn.Dropout(0.5), nn.Linear(16, 16)).train(train)
        with lean(net, recompute):
            loss = net(flnb.asarray(X)).square().sum()
            net.train(not train)
            loss.backward()
        assert all(part.training is not train for _, part in net.named_modules())
        return gradients(net)

    assert all(np.array_equal(a, b) for a, b in zip(run(()), run(("sequential",)), strict=True))


class Shared(nn.Module):
    def __init__(self) -> None:
        self.a = Counted()
        self.b = self.a
        self.listed = nn.ModuleList([Counted()])

    def forward(self, x: Any) -> Any:
        return self.listed[0](self.b(self.a(x)))


@pytest.mark.parametrize(
    ("recompute", "around", "ran"),
    [
        ("shared.b", None, (4, 1)),
        ("shared.listed.0", None, (2, 2)),
        ("shared.listed.0", "train", (2, 2)),
        ("train.shared.listed.0", "train", (2, 2)),
        ("train.shared.listed.0", None, (2, 2)),
    ],
)
def test_scopes_are_those_that_a_recording_names(recompute: str, around: str | None, ran: tuple[int, int]) -> None:
    net = Shared()
    with lean(net, recompute), flnb.record() as run, flnb.scope(around) if around else nullcontext():
        net(flnb.asarray(X)).sum().backward()
    assert (net.a.ran, net.listed[0].ran) == ran
    assert recompute.removeprefix("train.") in {
        context.scope.removeprefix("train.") for context in run.catalog.contexts.items
    }


def test_what_runs_again_is_in_the_scope_that_it_first_ran_in() -> None:
    """Also where a module inside has the number of the one that runs again, which is not one more of them."""
    nets = nn.Sequential(nn.Sequential(Counted(), nn.Tanh()))
    with lean(nets, "step.0"), flnb.record() as run, flnb.scope("step"):
        nets[0](flnb.asarray(X)).sum().backward()
    assert nets[0][0].ran == 2
    ops = run.table("op")
    scopes = {run.catalog.contexts.items[number].scope for number in ops["context"]}
    assert scopes <= {"step", "step.0", "step.0.0", "step.0.0.inner", "step.0.1"}


def test_modules_that_are_called_by_hand_have_scopes_of_their_own() -> None:
    net = nn.Sequential(Counted(), Counted())
    with lean(net, "1"):
        net[1](net[0](flnb.asarray(X))).sum().backward()
        assert [part.ran for part in net] == [1, 2]
        net(flnb.asarray(X)).sum().backward()
        assert [part.ran for part in net] == [2, 3]


@pytest.mark.parametrize(
    ("model", "options", "error", "told"),
    [
        (3, {"recompute": "linear"}, TypeError, r"expected a module or a list of modules, got int \(3\); pass the"),
        (None, {}, TypeError, r"expected a module or a list of modules, got NoneType \(None\)"),
        ([], {}, TypeError, "expected a module or a list of modules, got an empty list"),
        (nn.Linear, {}, TypeError, "expected a module or a list of modules, got type"),
        (nn.Linear(2, 2), {"recompute": [3]}, TypeError, r"scopes of modules as strings in recompute=, got int \(3\)"),
        (nn.Linear(2, 2), {"offload": 3}, TypeError, r"scopes of modules as strings in offload=, got int \(3\)"),
        (nn.Linear(2, 2), {"offload": "net"}, LookupError, "'net' is not a module of the model; its modules are"),
    ],
)
def test_errors(model: Any, options: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told), lean(model, **options):
        pass
