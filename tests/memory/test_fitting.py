"""Plans that make a step fit: what they predict is what happens, and gradients stay as they were."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
import flnb.nn as nn
from flnb.memory import Caching, ExactFit, Fit, HostDevice, MemoryManager, Native, lean
from flnb.memory_lab.lifetimes import Step

if TYPE_CHECKING:
    from pathlib import Path


class Residual(nn.Module):
    def __init__(self, features: int) -> None:
        self.norm = nn.LayerNorm(features)
        self.wide, self.narrow = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)

    def forward(self, x: Any) -> Any:
        return x + self.narrow(flnb.relu(self.wide(self.norm(x))))


def perceptron() -> tuple[nn.Module, Any]:
    parts = [nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()) for _ in range(6)]
    return nn.Sequential(*parts), flnb.random.normal((1024, 64))


def residual() -> tuple[nn.Module, Any]:
    return nn.Sequential(*[Residual(32) for _ in range(5)]), flnb.random.normal((1024, 32))


def convolutional() -> tuple[nn.Module, Any]:
    def block(channels: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm(8), nn.ReLU(), nn.Dropout(0.3))

    return nn.Sequential(block(3), block(8), block(8)), flnb.random.normal((8, 3, 24, 24))


def transformer() -> tuple[nn.Module, Any]:
    layers = [nn.TransformerEncoderLayer(32, 4, 128) for _ in range(4)]
    return nn.Sequential(*layers), flnb.random.normal((8, 32, 32))


MODELS = {make.__name__: make for make in (perceptron, residual, convolutional, transformer)}


def test_like_modules_cost_alike() -> None:
    """What is cheapest first does not depend on how long each happened to take."""
    net, x = perceptron()
    with flnb.record() as run:
        net(x).sum().backward()
    seconds = Step(run).seconds
    assert seconds("sequential.1") > 0
    assert len({seconds(f"sequential.{i}") for i in range(6)}) == 1


def step(make: Any, manager: MemoryManager, plan: Fit | None = None) -> tuple[Any, nn.Module]:
    """A recorded step of a model that is made the same each time."""
    flnb.manual_seed(0)
    with flnb.use_memory_manager(manager), flnb.record(grad_interval=None) as run:
        net, x = make()
        if plan is None:
            net(x).sum().backward()
        else:
            with plan.apply(net):
                net(x).sum().backward()
    return run, net


METHODS = [("recompute",), ("offload",), ("recompute", "offload")]


@pytest.mark.parametrize("kind", [Native, ExactFit, Caching])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_predicted_is_measured_and_gradients_are_the_same_to_the_last_bit(make: Any, kind: type) -> None:
    manager = kind(HostDevice("256MiB"))
    run, plain = step(make, manager)
    for share, methods in itertools.product((0.8, 0.3), METHODS):
        capacity = int(share * manager.stats()["peak_reserved"])
        plan = flnb.memory.fit(run, capacity, manager, methods, bandwidth="4GiB")
        assert plan.recompute == () or "recompute" in methods
        assert plan.offload == () or "offload" in methods
        assert plan.moving == plan.moved / (4 << 30)
        decided = {one.decision for one in plan.activations}
        assert decided <= {"keep", *(method for method in methods if getattr(plan, method))}
        away = sum(one.nbytes for one in plan.activations if one.decision == "offload")
        assert 2 * away <= plan.moved <= 4 * away
        assert plan.fits == (plan.peak <= capacity)
        assert plan.before == (manager.stats()["peak_reserved"], flnb.memory.trace(run).peak_live)
        again = kind(HostDevice("256MiB"))
        after, net = step(make, again, plan)
        assert after.table("transfer")["nbytes"].sum() == plan.moved
        assert again.stats()["peak_reserved"] == pytest.approx(plan.peak, rel=0.02)
        # the attention function's own variable holds its key until it returns: no event says so, and it is one block
        held = 8 * 32 * 32 * 4 if make is transformer and plan.offload else 0
        assert flnb.memory.trace(after).peak_live == pytest.approx(plan.peak_live, rel=0.02, abs=held)
        for x, y in zip(plain.parameters(), net.parameters(), strict=True):
            assert x.grad is not None
            assert y.grad is not None
            assert np.array_equal(x.grad.numpy(), y.grad.numpy())
        for (name, a), (_, b) in zip(plain.named_buffers(), net.named_buffers(), strict=True):
            assert np.array_equal(a.numpy(), b.numpy()), f"{name} was moved twice"


@pytest.mark.parametrize("name", ["asr-transformer", "resnet50"])
@pytest.mark.parametrize("methods", METHODS, ids=" and ".join)
def test_models_as_they_are_written(name: str, methods: tuple[str, ...]) -> None:
    """Their modules keep tensors in variables, pass masks on and read one tensor in several places."""
    recipe = flnb.models.get(name)

    def run(plan: Fit | None = None) -> tuple[Any, MemoryManager]:
        flnb.manual_seed(0)
        manager = Native(HostDevice("1GiB"))
        with flnb.use_memory_manager(manager), flnb.record(grad_interval=None) as run:
            net, batch = recipe.build("small"), recipe.batch("small", size=4)
            with nullcontext() if plan is None else plan.apply(net):
                recipe.loss(net, *batch).backward()
        return run, manager

    recorded, manager = run()
    plan = flnb.memory.fit(recorded, manager.stats()["peak_reserved"] // 2, manager, methods)
    assert plan.peak < plan.before[0]
    assert run(plan)[1].stats()["peak_reserved"] == pytest.approx(plan.peak, rel=0.02)


@pytest.mark.parametrize("methods", METHODS, ids=" and ".join)
def test_several_steps_with_an_optimizer(methods: tuple[str, ...]) -> None:
    def run(plan: Fit | None = None) -> tuple[Any, MemoryManager, Any]:
        flnb.manual_seed(0)
        manager = Native(HostDevice("256MiB"))
        with flnb.use_memory_manager(manager), flnb.record(grad_interval=None) as run:
            net, x = residual()
            optimizer = flnb.optim.Adam(net.parameters(), lr=0.01)
            for _ in range(3):
                with nullcontext() if plan is None else plan.apply(net):
                    net(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return run, manager, net

    recorded, manager, plain = run()
    plan = flnb.memory.fit(recorded, "4MiB", manager, methods)
    assert plan.peak < plan.before[0]
    _, again, net = run(plan)
    assert again.stats()["peak_reserved"] == pytest.approx(plan.peak, rel=0.02)
    for x, y in zip(plain.parameters(), net.parameters(), strict=True):
        assert np.array_equal(x.detach().numpy(), y.detach().numpy())


def test_what_fits_by_plan_fits_on_the_device() -> None:
    manager = Native(HostDevice("256MiB"))
    run, _ = step(residual, manager)
    capacity = int(0.7 * manager.stats()["peak_reserved"])
    plan = flnb.memory.fit(run, capacity, manager)
    assert plan.fits
    assert plan.recompute or plan.offload
    with pytest.raises(flnb.memory.OutOfMemoryError):
        step(residual, Native(HostDevice(capacity)))
    step(residual, Native(HostDevice(capacity)), plan)
    assert "fits in" in repr(plan)


def test_where_it_fits_nothing_is_changed() -> None:
    run, _ = step(perceptron, Native(HostDevice("256MiB")))
    plan = flnb.memory.fit(run, "256MiB", "native")
    assert plan.fits
    assert plan.recompute == ()
    assert (plan.peak, plan.peak_live) == plan.before


def test_keeping_recomputing_and_moving_each_have_a_place_in_one_step() -> None:
    """A mixture chosen by hand: its peak, its moves and its gradients are as predicted, too."""
    manager = Native(HostDevice("256MiB"))
    run, plain = step(transformer, manager)
    again, away = ["sequential.0"], ["sequential.1.self_attn", "sequential.2"]
    changed, nbytes = Step(run).changed(again, away)
    flnb.manual_seed(0)
    with flnb.use_memory_manager(Native(HostDevice("256MiB"))), flnb.record(grad_interval=None) as after:
        net, x = transformer()
        with lean(net, again, away):
            net(x).sum().backward()
    assert flnb.memory.trace(after).peak_live == pytest.approx(changed.peak_live, rel=0.02)
    assert after.table("transfer")["nbytes"].sum() == nbytes > 0
    for x, y in zip(plain.parameters(), net.parameters(), strict=True):
        assert np.array_equal(x.grad.numpy(), y.grad.numpy())


def test_costs_are_of_this_recording() -> None:
    manager = Native(HostDevice("256MiB"))
    run, _ = step(perceptron, manager)
    slow, quick = (flnb.memory.fit(run, "3.5MiB", manager, bandwidth=rate) for rate in ("1MiB", "1TiB"))
    assert (slow.recompute != (), slow.offload) == (True, ())  # moves cost too much
    assert (quick.recompute, quick.offload != ()) == ((), True)
    assert 0 < slow.seconds < run.seconds
    assert "recomputing takes" in repr(slow)
    assert "moving" in repr(quick)


def test_errors() -> None:
    with flnb.record() as run:
        assert flnb.zeros((1 << 20,)).size
    with pytest.raises(ValueError, match="no module of the run 'run' saved anything for a backward"):
        flnb.memory.fit(run, "1MiB")
    manager = Native(HostDevice("256MiB"))
    recorded, _ = step(perceptron, manager)
    with pytest.raises(ValueError, match="no method 'forget'; there are 'recompute', 'offload'"):
        flnb.memory.fit(recorded, "1MiB", methods=["forget"])
    with pytest.raises(ValueError, match="methods is empty; there are 'recompute', 'offload', give one or both"):
        flnb.memory.fit(recorded, "1MiB", methods=())
    with pytest.raises(TypeError, match=r"expected a recording .* or the path of a saved one, got int"):
        flnb.memory.fit(3, "1MiB")  # type: ignore[arg-type]
    plan = flnb.memory.fit(recorded, 1 << 20, manager)
    with pytest.raises(TypeError, match="expected a module or a list of modules, got NoneType"), plan.apply(None):
        pass


class Twice(nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        self.first = Residual(32)
        self.second = self.first
        self.last = Residual(32)

    def forward(self, x: Any) -> Any:
        return self.last(self.second(self.first(x)))


def around(net: Any, x: Any) -> Any:
    with flnb.scope("train"), flnb.scope("forward"):
        x = flnb.Variable(x)
        with flnb.scope("stem"):
            for _ in range(4):
                x = flnb.tanh(x)
        return net(x)


def by_hand(net: Any, x: Any) -> Any:
    return net.last(net.first(x))


def through(nets: Any, x: Any) -> Any:
    for net in nets:
        x = net(x)
    return x


def deep() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()) for _ in range(5)])


def in_variables(net: Any, x: Any) -> Any:
    first = net(x)
    second = net(0.5 * x)
    loss = first.sum() + second.sum()
    loss.backward()
    return loss.detach() + flnb.Variable(0.0)


USES: dict[str, tuple[Any, Any, str]] = {
    "in a scope of the user's": (Twice, around, "train.forward.twice"),
    "under two names": (Twice, lambda net, x: net(x), "twice."),
    "called by hand": (Twice, by_hand, ""),
    "on what has no gradient": (Twice, lambda net, x: net(0.5 * x), "twice."),
    "two forwards": (deep, lambda net, x: net(x).sum() + net(0.5 * x).sum(), "sequential"),
    "two results in variables": (deep, in_variables, "sequential"),
    "several of one scope": (lambda: [Residual(32) for _ in range(3)], through, "residual"),
}


@pytest.mark.parametrize("methods", METHODS, ids=" and ".join)
@pytest.mark.parametrize(("make", "call", "begins"), USES.values(), ids=USES)
def test_what_is_proposed_can_be_applied(make: Any, call: Any, begins: str, methods: tuple[str, ...]) -> None:
    def run(plan: Fit | None = None) -> tuple[Any, MemoryManager]:
        flnb.manual_seed(0)
        manager = Native(HostDevice("256MiB"))
        with flnb.use_memory_manager(manager), flnb.record(grad_interval=None) as run:
            nets, x = make(), flnb.random.normal((1024, 32))
            with nullcontext() if plan is None else plan.apply(nets):
                call(nets, x).sum().backward()
        return run, manager

    recorded, manager = run()
    plan = flnb.memory.fit(recorded, manager.stats()["peak_reserved"] // 3, manager, methods)
    assert plan.peak < plan.before[0]
    assert all(scope.startswith(begins) for scope in plan.recompute + plan.offload)
    assert run(plan)[1].stats()["peak_reserved"] == pytest.approx(plan.peak, rel=0.02)


def test_a_saved_run_and_one_method_as_a_text(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    manager = Native(HostDevice("256MiB"))
    run, _ = step(perceptron, manager)
    run.save(tmp_path / "run.flnb")
    plan = flnb.memory.fit(run, "3MiB", manager, ("recompute",))
    assert plan.recompute
    for source in (tmp_path / "run.flnb", str(tmp_path / "run.flnb")):
        assert flnb.memory.fit(source, "3MiB", manager, "recompute").recompute == plan.recompute


def test_modules_that_keep_only_what_others_gave_or_take_are_told() -> None:
    net = nn.Sequential(nn.Tanh(), nn.Tanh())
    with flnb.use_memory_manager(Native(HostDevice("64MiB"))), flnb.record() as run:
        x = flnb.Variable(np.ones((512, 512), np.float32))
        net[1](net[0](x)).sum().backward()
    with pytest.raises(ValueError, match=r"the modules of the run 'run' \(0, 1\) saved for backward, nothing .*around"):
        flnb.memory.fit(run, "1MiB")
