"""What ranks run in `test_training_mpi`: one function each, named on the command line."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import training

import flnb
from flnb import distributed, nn, optim
from flnb.dispatch.memory import drain
from flnb.dispatch.state import CATEGORIES

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9),
    "adam": lambda p: optim.Adam(p, lr=1e-2),
    "adamw": lambda p: optim.AdamW(p, lr=1e-2),
}


def equal() -> None:
    """Twenty Adam steps on parts of batches equal those of one process: with accumulation, on every tape."""
    ranks = distributed.size()
    runs: list[tuple[str, str, dict[str, Any]]] = [
        ("plain", "linked", {"bucket": 300}),
        ("accumulated", "linked", {"bucket": 300}),
        ("accumulated", "linked", {"deterministic": True}),
        ("unused", "linked", {"bucket": None}),
        *(("unused", tape, {"bucket": 300}) for tape in ("arena", "pruning", "prefused")),
    ]
    for kind, tape, options in runs:
        with distributed.use_communicator("single"):
            expected, _ = training.train(ranks, kind)
        losses, _ = training.train(ranks, kind, tape, **options)
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-12 * max(expected), err_msg=f"{kind} {tape}")


def sharded() -> None:
    """Every stage gives the bits of data parallel."""
    kinds: list[dict[str, Any]] = [{}, {"kind": "unused", "bucket": 300}, {"kind": "accumulated", "bucket": None}]
    for name, make in OPTIMIZERS.items():
        for dtype in ("float32", "float64"):
            for options in kinds:
                expected, *others = (training.sharded_training(s, make, dtype, **options) for s in range(4))
                for stage, found in enumerate(others, start=1):
                    for key, value in expected.items():
                        np.testing.assert_array_equal(found[key], value, err_msg=f"{name} {dtype} {options} {stage}")


def memory() -> None:
    """What a recording says that this rank stores is what a dry run in one process says, divided by the stage."""
    size, count, width = distributed.size(), 4, 160

    def train(stage: int) -> Any:
        module = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(count)])
        model: Any = distributed.Sharded(module, optim.Adam, stage=stage, bucket=None) if stage else module
        optimizer = model.optimizer if stage else optim.Adam(module.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            flnb.sum(model(flnb.ones((2, width)))).backward()
            optimizer.step()
        return model, optimizer

    with distributed.use_communicator("single"):
        whole = flnb.memory.dry_run(lambda: train(0)).whole.memory.timeline().by_category.max(axis=0)
    layer = width * width * 4
    for stage in (1, 2, 3):
        with flnb.record() as run:
            kept = train(stage)
            drain()
        timeline = run.memory.timeline().by_category
        for name, divided in {"parameter": stage == 3, "optimizer_state": True, "gradient": stage > 1}.items():
            column = CATEGORIES.index(name)
            like = "parameter" if name == "gradient" else name  # the pass itself makes more gradients than stay
            predicted = whole[CATEGORIES.index(like)] // (size if divided else 1)
            assert timeline[-1, column] == predicted, (stage, name, timeline[-1, column], predicted)
            if name == "parameter" and stage == 3:  # while it trains one layer is here besides, as it was
                assert timeline[:, column].max() <= whole[column] + layer  # not all wholes with all parts
                made = timeline[timeline[:, column].argmax() :, column]
                later = made[np.flatnonzero(made == predicted)[0] :]
                assert later.max() == predicted + layer, later.max()
        kept[0].close()
        del kept
        gc.collect()


def trained(model: Any, optimizer: Any, batches: Any) -> list[float]:
    """The losses of some steps."""
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = (model(flnb.asarray(batch)) ** 2).mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses


def set_all(net: nn.Module) -> nn.Module:
    """Set the parameters to float64 numbers that are the same on all ranks."""
    draw = np.random.default_rng(2)
    net.astype(flnb.float64)
    state = {k: draw.normal(size=v.shape) if v.ndim > 1 else v for k, v in net.state_dict().items()}
    net.load_state_dict({k: v * 0.0 if k.endswith("bias") else v for k, v in state.items()})
    return net


def layers() -> None:
    """Batch norm over ranks and divided linear layers are trained as in one process."""
    rank, size = distributed.rank(), distributed.size()
    data = np.random.default_rng(1).normal(size=(5, 8, 4))

    def normalized() -> nn.Module:
        return set_all(nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm(6), nn.Tanh(), nn.Linear(6, 1)))

    alone = normalized()
    expected = trained(alone, optim.Adam(alone.parameters(), lr=1e-2), data)
    net = normalized()
    model = distributed.DataParallel(distributed.SyncBatchNorm.convert(net))
    optimizer = optim.Adam(net.parameters(), lr=1e-2)
    losses = trained(model, optimizer, [np.split(batch, size)[rank] for batch in data])
    mean = distributed.all_reduce(losses).numpy() / size
    np.testing.assert_allclose(mean, expected, rtol=1e-6)  # the list is float32
    np.testing.assert_allclose(net[1].running_var.numpy(), alone[1].running_var.numpy(), rtol=1e-10)

    alone = set_all(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    up, down = distributed.ColumnLinear(4, 8).astype(flnb.float64), distributed.RowLinear(8, 2).astype(flnb.float64)
    for part, whole in ((up, alone[0]), (down, alone[2])):
        part.load_whole(whole.weight.data, whole.bias.data)
    divided = nn.Sequential(up, nn.Tanh(), down)
    expected = trained(alone, optim.Adam(alone.parameters(), lr=1e-2), data)
    losses = trained(divided, optim.Adam(divided.parameters(), lr=1e-2), data)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)


def uneven() -> None:
    """A rank with fewer batches joins the others, which are trained as one process by the average over those there."""
    rank, size = distributed.rank(), distributed.size()
    data = np.random.default_rng(1).normal(size=(size, 2 * size, 3, 4))
    alone = set_all(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)))
    optimizer = optim.Adam(alone.parameters(), lr=1e-2)
    for step in range(2 * size):
        there = [r for r in range(size) if step < 2 * size - 2 * r]
        optimizer.zero_grad()
        for r in there:
            ((alone(flnb.asarray(data[r, step])) ** 2).mean() / len(there)).backward()
        optimizer.step()
    for stage in (0, 1, 2):
        net = set_all(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)))
        optimizer = optim.Adam(net.parameters(), lr=1e-2)
        model: Any = distributed.Sharded(net, optimizer, stage=stage) if stage else distributed.DataParallel(net)
        stepping = model.optimizer if stage else optimizer
        with model.uneven(stepping.step):
            trained(model, stepping, data[rank, : 2 * size - 2 * rank])
        for key, value in alone.state_dict().items():
            np.testing.assert_allclose(model.state_dict()[key].numpy(), value.numpy(), rtol=1e-11)
        model.close()


def save() -> None:
    """Train a few steps in the stage on the command line, and write a checkpoint and the states beside it."""
    path, stage = sys.argv[2], int(sys.argv[3])
    net = training.Net()
    model = distributed.Sharded(net, OPTIMIZERS["adam"], stage=stage)
    for row in np.random.default_rng(3).normal(size=(3, 8, 6)):
        model.optimizer.zero_grad()
        (model(flnb.asarray(row), rare=True) ** 2).sum().backward()
        model.optimizer.step()
    distributed.save_checkpoint(path, model=model, optimizer=model.optimizer)


def load() -> None:
    """Load the checkpoint on this number of ranks: the states are those that one process reads."""
    path, stage = sys.argv[2], int(sys.argv[3])
    alone = training.Net()
    optimizer = OPTIMIZERS["adam"](alone.parameters())
    nn.load_checkpoint(path, model=alone, optimizer=optimizer)
    net = training.Net()
    model = distributed.Sharded(net, OPTIMIZERS["adam"], stage=stage)
    nn.load_checkpoint(path, model=model, optimizer=model.optimizer)
    for key, value in alone.state_dict().items():
        np.testing.assert_array_equal(model.state_dict()[key].numpy(), value.numpy())
    found = model.optimizer.state_dict()
    for key, value in optimizer.state_dict()["state"].items():
        np.testing.assert_array_equal(found["state"][key].numpy(), value.numpy())


if __name__ == "__main__":
    distributed.init()
    chosen = sys.argv[1]
    {f.__name__: f for f in (equal, sharded, memory, layers, uneven, save, load)}[chosen]()
