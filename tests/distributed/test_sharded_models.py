"""Sharded around models, wrappers and parameters of many kinds."""

from __future__ import annotations

import gc
import pickle
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import bus

import flnb
from flnb import distributed, nn, optim
from flnb.autograd.arrivals import listeners
from flnb.dispatch.memory import drain
from flnb.dispatch.state import CATEGORIES
from flnb.distributed.divided import divisions


class Tied(nn.Module):
    """A model with a shared weight and a module that is called twice; ``again`` runs its blocks again in backward."""

    def __init__(self, again: bool = False) -> None:
        self.again = again
        self.embedding = nn.Embedding(12, 8)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0) for _ in range(2)])
        self.out = nn.Linear(8, 12, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, indices: Any) -> Any:
        x = self.embedding(indices)
        for block in [*self.blocks, self.blocks[0]]:
            x = flnb.checkpoint(block)(x) if self.again else block(x)
        return self.out(x)


def tied(stage: int, around: Any, dtype: str, again: bool) -> Any:
    """Losses and states of four steps of `Tied`, on this rank."""
    flnb.manual_seed(0)
    net = Tied(again).astype(dtype)
    model: Any
    if stage:
        model = distributed.Sharded(net, partial(optim.AdamW, lr=1e-2), stage=stage, bucket="1KiB")
    else:
        model = distributed.DataParallel(net, bucket="1KiB", deterministic=True)
    optimizer = model.optimizer if stage else optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for row in np.random.default_rng(0).integers(0, 12, size=(4, 3, 5, 6)):
        mine = flnb.asarray(row[distributed.rank()])
        optimizer.zero_grad()
        with around(net):
            loss = flnb.cross_entropy(model(mine).reshape(-1, 12), mine.reshape(-1))
            loss.backward()
        optimizer.step()
        with flnb.no_grad():
            losses += [loss.item(), model(mine).sum().item()]
    return losses, {name: value.numpy().tolist() for name, value in model.state_dict().items()}


AROUND: dict[str, Any] = {
    "nothing": (lambda net: nullcontext(), "float64", False),
    "checkpoint": (lambda net: nullcontext(), "float64", True),
    "half": (lambda net: nullcontext(), "float16", False),
    "autocast": (lambda net: flnb.autocast("O1"), "float32", False),
    "lean": (flnb.memory.lean, "float64", False),
    "offload": (lambda net: flnb.memory.offload(min_bytes=1), "float64", False),
    "arena": (lambda net: flnb.use_tape("arena"), "float64", True),
    "prefused": (lambda net: flnb.use_tape("prefused"), "float64", False),
}


@pytest.mark.parametrize("name", AROUND)
def test_stages_agree_on_a_transformer(name: str) -> None:
    expected, *others = (distributed.run_threads(3, tied, stage, *AROUND[name], timeout=60) for stage in range(4))
    for found in others:
        assert found == expected


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Sequential(nn.Conv2d(16, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3)), (2, 16, 7, 7)),
        (lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.WeightNorm(nn.Linear(64, 64))), (3, 64)),
        (lambda: nn.TransformerEncoderLayer(64, 4, 256), (2, 4, 64)),
    ],
)
def test_nothing_whole_stays_between_forward_and_backward(make: Any, shape: tuple[int, ...]) -> None:
    def parameters(manager: Any) -> int:
        drain()
        return sum(b.requested for b in manager.ledger.live.values() if CATEGORIES[b.category] == "parameter")

    def work() -> list[int]:
        with flnb.use_memory_manager("caching") as manager:
            model = distributed.Sharded(make(), optim.Adam, stage=3, bucket=None)
            found = [parameters(manager)]
            y = model(flnb.ones(shape))
            found.append(parameters(manager))
            y.sum().backward()
            found.append(parameters(manager))
            model.close()
            return found

    for rank in distributed.run_threads(2, work):
        assert len(set(rank)) == 1
        assert rank[0] > 0


class Failing(nn.Module):
    """Uses its weight twice; ``fails`` makes the backward pass fail in between."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(flnb.eye(2))

    def forward(self, x: Any, fails: bool = False) -> Any:
        half_way = x @ self.weight
        if fails:
            half_way.register_hook(lambda g: 1 / 0)
        return half_way @ self.weight


def test_a_step_after_a_pass_that_failed_uses_new_values() -> None:
    def work() -> Any:
        x = flnb.ones((1, 2))
        model = distributed.Sharded(Failing(), partial(optim.SGD, lr=0.25), stage=3)
        model(x).sum().backward()  # the gradient of (x w) w is 2
        with model.gathered(), pytest.raises(RuntimeError, match="leave that block before the step"):
            model.optimizer.step()
        with pytest.raises(ZeroDivisionError):
            model(x, fails=True).sum().backward()
        model.optimizer.step()
        return model(x).tolist()

    alone = np.eye(2) - 0.5
    assert distributed.run_threads(2, work) == [(np.ones((1, 2)) @ alone @ alone).tolist()] * 2


def test_weights_loaded_in_half_precision_replace_the_master_weights() -> None:
    def work(stage: int) -> Any:
        net = nn.Linear(2, 1, bias=False).half()
        model = distributed.Sharded(net, partial(optim.SGD, lr=1.0), stage=stage)
        for value in (1.0, 5.0):
            model.load_state_dict({"weight": np.full((1, 2), value)})
            model.optimizer.zero_grad()
            model(flnb.ones((1, 2), dtype="float16")).sum().backward()
            model.optimizer.step()
        return model.state_dict()["weight"].tolist()

    for stage in (1, 2, 3):
        assert distributed.run_threads(2, work, stage) == [[[4.0, 4.0]]] * 2


def test_copies_and_closed_models_are_plain() -> None:
    def work(stage: int) -> Any:
        net = nn.Sequential(nn.Linear(2, 2))
        model = distributed.Sharded(net, optim.Adam, stage=stage)
        with model.gathered():
            copied = deepcopy(net)
            pickled = pickle.loads(pickle.dumps(net[0].weight))
        same = copied(flnb.eye(2)).tolist() == model(flnb.eye(2)).tolist()
        model.close()
        kinds = [type(p).__name__ for p in (copied[0].weight, pickled, net[0].weight)]
        (net(flnb.eye(2)) - copied(flnb.eye(2))).sum().backward()
        optim.clip_grad_norm([*net.parameters(), *copied.parameters()], 1.0)
        return same, kinds

    for stage in (1, 2, 3):
        assert distributed.run_threads(2, work, stage) == [(True, ["Parameter"] * 3)] * 2


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_optimizer_that_was_given_is_used_through_the_model(stage: int) -> None:
    def work() -> tuple[float, float, list[int]]:
        net = nn.Linear(2, 2)
        optimizer = optim.SGD(net.parameters(), lr=1.0)
        model = distributed.Sharded(net, optimizer, stage=stage)
        for call in (optimizer.step, optimizer.zero_grad, optimizer.state_dict):
            with pytest.raises(RuntimeError, match=r"given to Sharded.*model.optimizer.step"):
                call()
        model.optimizer.lr *= 0.5
        schedule = optim.Schedule(model.optimizer, lambda n: 0.5**n)
        schedule.step()
        return optimizer.lr, model.optimizer.lr, [part.steps for part in model.optimizer.parts()]

    assert distributed.run_threads(2, work) == [(0.25, 0.25, [0])] * 2


def test_small_shards_are_updated_together() -> None:
    def work(stage: int) -> int:
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model = distributed.Sharded(net, optim.Adam, stage=stage)
        model(flnb.ones((1, 4))).sum().backward()
        model.optimizer.step()
        return sum(len(vector.members) for part in model.optimizer.parts() for vector in part._gathered)

    for stage in (1, 2, 3):
        assert distributed.run_threads(2, work, stage) == [4, 4]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_model_that_is_dropped_is_not_kept(stage: int) -> None:
    def work() -> None:
        model = distributed.Sharded(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), optim.Adam, stage=stage)
        model(flnb.ones((1, 2))).sum().backward()
        model.optimizer.step()

    gc.collect()
    before = len(divisions), len(listeners)
    distributed.run_threads(2, work)
    gc.collect()
    assert (len(divisions), len(listeners)) == before


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_parameter_that_changes_after_it_was_divided(stage: int) -> None:
    def work() -> Any:
        net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
        model = distributed.Sharded(net, partial(optim.SGD, lr=1.0), stage=stage)
        with model.gathered():
            if stage < 3:
                net[0].weight.data = flnb.zeros((2, 2)) + 2.0  # other memory
                net[1].weight.data = flnb.zeros((1, 2)) + 2.0
            net.load_state_dict({"0.weight": np.eye(2), "1.weight": np.full((1, 2), 2.0)})
        model(flnb.zeros((1, 2))).sum().backward()
        model.optimizer.step()  # by zero
        model.optimizer.zero_grad()
        net[0].weight.requires_grad = False
        model(flnb.ones((1, 2))).sum().backward()
        model.optimizer.step()
        found = {name: value.tolist() for name, value in model.state_dict().items()}
        net[0].weight.requires_grad = True
        with pytest.raises(RuntimeError, match=r"'0.weight' \(2, 2\) was converted, or set to require"):
            model(flnb.ones((1, 2)))
        return found

    assert distributed.run_threads(2, work) == [{"0.weight": [[1.0, 0.0], [0.0, 1.0]], "1.weight": [[1.0, 1.0]]}] * 2


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_graph_that_is_kept_over_a_step_is_an_error(stage: int) -> None:
    def work() -> None:
        model = distributed.Sharded(Failing(), partial(optim.SGD, lr=1.0), stage=stage)
        y = model(flnb.ones((1, 2))).sum()
        y.backward(retain_graph=True)
        model.optimizer.step()
        with pytest.raises(RuntimeError, match="written"):
            y.backward()

    distributed.run_threads(2, work)


@pytest.mark.parametrize("stage", [1, 2])
def test_a_parameter_that_is_given_memory_in_another_order(stage: int) -> None:
    def work() -> Any:
        net = nn.Linear(2, 2, bias=False)
        model = distributed.Sharded(net, partial(optim.SGD, lr=1.0), stage=stage)
        net.weight.data = flnb.asarray([[1.0, 2.0], [3.0, 4.0]]).T
        model(flnb.ones((1, 2))).sum().backward()
        model.optimizer.step()
        return net.weight.tolist()

    assert distributed.run_threads(2, work) == [[[0.0, 2.0], [1.0, 3.0]]] * 2


def test_recordings_have_the_gradients_that_were_taken() -> None:
    def work(stage: int) -> None:
        model = distributed.Sharded(nn.Linear(2, 1), optim.Adam, stage=stage)
        bus.want_grad_stats = True
        model(flnb.ones((1, 2))).sum().backward()

    for stage in (1, 2, 3):
        with flnb.record() as run:
            distributed.run_threads(2, work, stage)
        measured = run.table("grad_stat")["node"]
        assert (measured < 0).sum() >= 2, stage
