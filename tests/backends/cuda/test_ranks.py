"""Ranks on the cuda backend: tensors travel through pinned memory of the host, and recordings show both ways."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import device_words

import flnb
from flnb import distributed, nn

if TYPE_CHECKING:
    from pathlib import Path

    from flnb.testing.cuda import EmulatedDevice


def on_ranks(function: Any) -> Any:
    with flnb.use_backend("cuda"):
        return distributed.run_threads(2, function)


def numbers(seed: int, shape: Any) -> Any:
    return flnb.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def test_every_call_gives_what_numpy_adds_up(cuda: EmulatedDevice) -> None:
    given = [numbers(rank, (2, 3)).numpy() for rank in range(2)]

    def calls() -> dict[str, Any]:
        rank = distributed.rank()
        x = flnb.asarray(given[rank])
        started = distributed.start_all_reduce(x)
        found = {
            "sum": distributed.all_reduce(x.T),  # not contiguous
            "max": distributed.all_reduce(x, "max"),
            "gathered": distributed.all_gather(x),
            "scattered": distributed.reduce_scatter(x),
            "first": distributed.broadcast(x, root=1),
            "started": started.wait(),
            "several": distributed.all_reduce_multiple([x, x[0]], contiguous=True)[1],
            "alone": distributed.all_reduce_multiple([x])[0],
        }
        distributed.send(x, to=1 - rank) if rank else None
        found["received"] = x if rank else distributed.recv(x, source=1)
        assert {y.device for y in found.values()} == {x.device}
        assert {y._spec.kind for y in found.values()} == {"cuda:0"}
        return {name: y.numpy() for name, y in found.items()}

    total = given[0] + given[1]
    for rank, found in enumerate(on_ranks(calls)):
        wanted = {
            "sum": total.T, "max": np.maximum(*given), "gathered": np.stack(given), "scattered": total[rank],
            "first": given[1], "started": total, "several": total[0], "alone": total, "received": given[1],
        }  # fmt: skip
        assert {name for name, y in wanted.items() if not np.array_equal(found[name], y)} == set()


def test_gradients_flow_through(cuda: EmulatedDevice) -> None:
    def slope() -> Any:
        x = flnb.Variable(flnb.asarray([distributed.rank() + 1.0]))
        total = distributed.all_reduce(x * x).sum()
        total.backward()
        return x.grad.numpy().tolist()

    assert on_ranks(slope) == [[4.0], [8.0]]  # 2 x, once for each rank's copy of the sum


def test_transfers_are_recorded_with_their_bytes(cuda: EmulatedDevice) -> None:
    x = np.ones((16, 16), np.float32)

    def reduce() -> None:
        distributed.all_reduce(flnb.asarray(x))

    with flnb.use_backend("cuda"), flnb.record(grad_interval=None) as run:
        distributed.run_threads(2, reduce)
        flnb.sync()
    task = run.devices.task
    for route, times in (
        (device_words.TO_DEVICE, 4),
        (device_words.TO_HOST, 2),
    ):
        mine = task["route"] == route
        assert task["nbytes"][mine].tolist() == [x.nbytes] * times
        assert task["pinned"][mine].all()


def net() -> nn.Module:
    flnb.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm(16), nn.Tanh(), nn.Linear(16, 3))


def trained(model: nn.Module, rows: slice) -> list[Any]:
    """The parameters after some steps with some rows of the batches."""
    optimizer = flnb.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        batch = np.random.default_rng(step).normal(size=(8, 6)).astype(np.float32)
        optimizer.zero_grad()
        (model(flnb.asarray(np.ascontiguousarray(batch[rows]))) ** 2).mean().backward()
        optimizer.step()
    return [p.data.numpy() for p in model.parameters()]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("bucket", ["25MiB", None])
def test_data_parallel_training_is_that_of_one_process(
    deterministic: bool, bucket: str | None, cuda: EmulatedDevice
) -> None:
    plain = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    state = {name: value.numpy() for name, value in plain.state_dict().items()}

    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        made.load_state_dict({name: flnb.asarray(value) for name, value in state.items()})
        return made

    def rank_of_two() -> list[Any]:
        parallel = distributed.DataParallel(model(), bucket, deterministic)
        try:
            return trained(parallel, slice(distributed.rank() * 4, distributed.rank() * 4 + 4))
        finally:
            parallel.close()

    alone = trained(model(), slice(None))  # by NumPy
    first, second = on_ranks(rank_of_two)
    for one, other, wanted in zip(first, second, alone, strict=True):
        assert np.array_equal(one, other)
        np.testing.assert_allclose(one, wanted, rtol=0, atol=1e-6)


def test_buffers_are_those_of_the_first_rank(cuda: EmulatedDevice) -> None:
    def statistics() -> Any:
        parallel = distributed.DataParallel(net())
        trained(parallel, slice(distributed.rank() * 4, distributed.rank() * 4 + 4))
        parallel.close()
        return [buffer.numpy() for _, buffer in parallel.module.named_buffers()]

    first, second = on_ranks(statistics)
    assert len(first) >= 2
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    assert any(one.any() for one in first)


def test_sharded_says_that_it_needs_the_hosts_memory(cuda: EmulatedDevice) -> None:
    with flnb.use_backend("cuda"):
        layer = nn.Linear(2, 1)
        with pytest.raises(TypeError, match="got a backend whose buffers are on a device, expected one whose buffers"):
            distributed.Sharded(layer, flnb.optim.SGD(layer.parameters(), lr=0.1))
    with flnb.use_backend("meta"), pytest.raises(TypeError, match="the active backend 'meta' cannot"):
        distributed.all_reduce(flnb.ones(3))


PROGRAM = """
from flnb.testing.cuda import emulate
device = emulate()
import flnb
from flnb import distributed
distributed.init("mpi")
flnb.set_backend("cuda")
rank = distributed.rank()
y = distributed.all_reduce(flnb.asarray([rank + 1.0, 1.0]))
assert y._spec.kind == "cuda:0" and y.tolist() == [3.0, 2.0], y
assert distributed.all_gather(flnb.asarray(rank)).tolist() == [0, 1]
assert device.count("bytes to the host") > 0 and not device.reports
print("rank", rank, "is right")
"""


@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_processes_with_mpi(cuda: EmulatedDevice, tmp_path: Path) -> None:
    path = tmp_path / "ranks.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "flnb.cli", "launch", "-n", "2", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.count("is right") == 2
