"""What ranks run in `test_mpi`: one function each, named on the command line."""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Client
from typing import Any

import numpy as np
from flnb_telemetry.joined import RankSource

import flnb
from flnb import distributed, nn
from flnb.dispatch import communication


def kit() -> None:
    """The conformance kit on MPI."""
    report = flnb.testing.check_communicator()
    assert report, str(report)


def gradients() -> None:
    """A training step on parts of a batch gives the gradients of the whole batch."""
    rank, size = distributed.rank(), distributed.size()
    draw = np.random.default_rng(0)
    x, w = draw.normal(size=(4 * size, 5)), draw.normal(size=(5, 3))
    weights = flnb.Variable(w)
    part = flnb.asarray(x[4 * rank : 4 * rank + 4])
    distributed.all_reduce((flnb.tanh(part @ weights) ** 2).sum()).backward()
    total = distributed.all_reduce(weights.grad) / size
    whole = flnb.Variable(w)
    (flnb.tanh(flnb.asarray(x) @ whole) ** 2).sum().backward()
    np.testing.assert_allclose(total.numpy(), whole.grad.numpy(), rtol=1e-12)


def fork() -> None:
    """A process that a rank forks may end, by an error or as it should, and the rank goes on."""
    for status in (None, "an error of the fork"):
        if distributed.rank() == 0:
            child = os.fork()
            if not child:
                sys.stderr.close()
                sys.exit(status)
            os.waitpid(child, 0)
            time.sleep(0.5)  # the other rank looks
        assert distributed.all_reduce(1.0).item() == 2.0


def splits() -> None:
    """Groups that are closed can be made again and again: MPI has 2048 communicators."""
    for number in range(1100):
        part = distributed.current().split(0 if number < 3 else distributed.rank(), distributed.rank())
        communication.run("barrier", on=part)
        part.close()


class Sizes(flnb.data.Dataset):
    """Item i is (i, the number of ranks that the process which loads it sees)."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[int, int]:
        from mpi4py import MPI

        return index, MPI.COMM_WORLD.size


def asynchronous() -> None:
    """Every rank adds one to the center, its rank + 1 times; none is lost, with either place of the center."""
    for controller in (None, 0):
        net = nn.Linear(40, 30)
        for p in net.parameters():
            flnb.assign(p.data, 0.0)
        center = distributed.ASGD(net, controller=controller)
        for _ in range(distributed.rank() + 1):
            for p in net.parameters():
                flnb.assign(p.data, p.data + 1.0)
            center.step()
        center.finish()
        for p in net.parameters():
            np.testing.assert_array_equal(p.data.numpy(), sum(range(1, distributed.size() + 1)))


def pipeline() -> None:
    """Two layers on each rank give the gradients of all layers in one process."""
    rank, size = distributed.rank(), distributed.size()
    draw = np.random.default_rng(0)
    weights = [nn.Parameter(draw.normal(size=(5, 5))) for _ in range(2 * size)]
    x, target = draw.normal(size=(8, 5)), draw.normal(size=(8, 5))

    class Stage(nn.Module):
        def __init__(self, some: list[nn.Parameter]) -> None:
            self.some = some

        def forward(self, x: Any) -> Any:
            for w in self.some:
                x = flnb.tanh(x @ w)
            return x

    def loss(y: Any, t: Any) -> Any:
        return ((y - t) ** 2).mean()

    whole = Stage([nn.Parameter(w.data) for w in weights])
    expected = loss(whole(flnb.asarray(x)), flnb.asarray(target))
    expected.backward()
    got = distributed.Pipeline(Stage(weights[2 * rank : 2 * rank + 2]), 4).step(x, target, loss)
    np.testing.assert_allclose(got, expected.item(), rtol=1e-12)
    for mine, reference in zip(weights[2 * rank : 2 * rank + 2], whole.some[2 * rank :], strict=False):
        np.testing.assert_allclose(mine.grad.numpy(), reference.grad.numpy(), rtol=1e-10, atol=1e-14)


def prefetch() -> None:
    """Worker processes of a rank that load MPI are no ranks; the rank goes on as one."""
    before = dict(os.environ)
    loader = flnb.data.PrefetchDataset(Sizes(), workers=1, processes=True)
    assert list(loader) == [(0, 1), (1, 1), (2, 1)]
    loader.close()
    assert dict(os.environ) == before
    assert distributed.all_reduce([1.0]).tolist() == [distributed.size()]


def fault() -> None:
    """The last rank fails instead of making the second call of the others."""
    x = distributed.all_reduce(flnb.ones(1 << 16))
    if distributed.rank() == distributed.size() - 1:
        raise ValueError("a mistake of the user")
    distributed.all_reduce(x)


class Slow(nn.Module):
    """A layer that sleeps where it is told to."""

    def __init__(self, seconds: float) -> None:
        self.linear, self.seconds = nn.Linear(8, 8), seconds

    def forward(self, x: Any) -> Any:
        """The layer."""
        time.sleep(self.seconds)
        return self.linear(x)


def slow(steps: int, cause: str) -> None:
    """Training steps in which rank 1 takes long for its data, or for its second layer."""
    seconds = 0.1 * distributed.rank()
    net = nn.Sequential(nn.Linear(8, 8), Slow(seconds if cause == "module" else 0.0))
    model = distributed.DataParallel(net)
    for _ in range(steps):
        with flnb.step():
            with flnb.scope("data"), flnb.scope("take"):
                time.sleep(seconds if cause == "data" else 0.0)
            model(flnb.ones((4, 8))).sum().backward()
    model.close()


def recorded() -> None:
    """Each rank saves its own recording."""
    with flnb.record("digits") as run:
        slow(4, sys.argv[2])
    run.save(f"run-{distributed.rank()}.flnb")


def live() -> None:
    """Messages of a live view go to a socket."""
    connection = Client(os.environ["FLNB_TEST_SOCKET"])
    with RankSource(connection.send, "live", frames=distributed.rank() == 0):
        slow(12, "data")


if __name__ == "__main__":
    distributed.init()
    globals()[sys.argv[1]]()
