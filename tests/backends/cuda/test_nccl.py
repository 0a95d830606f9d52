"""The communicator nccl: CuPy's own class over a stand-in of NCCL's library, a rank on each of two emulated devices."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import device_words

import flnb
from flnb import distributed, nn
from flnb.dispatch import communication, groups
from flnb.interface.communicator import Work

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice


@pytest.fixture
def two(cuda: EmulatedDevice) -> EmulatedDevice:
    if cuda.driver.devices() < 2:
        pytest.skip("ranks need two devices")
    return cuda


def joined() -> Any:
    from flnb_backends.comm.nccl import Nccl

    return Nccl()


def on_ranks(function: Any) -> Any:
    """Run a function on two ranks, each with a device of its own."""

    def rank() -> Any:
        with (
            flnb.use_backend(f"cuda:{distributed.rank()}"),
            contextlib.closing(joined()) as communicator,  # who waits for this rank learns that it does not come
            distributed.use_communicator(communicator),
        ):
            return function()

    return distributed.run_threads(2, rank)


def numbers(seed: int, shape: Any) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Fetched(Work):
    """A call on a device's arrays, which are copied to the host's when it has finished."""

    def __init__(self, backend: Any, work: Work, *pairs: tuple[Any, Any]) -> None:
        self.backend, self.work, self.pairs = backend, work, pairs

    def test(self) -> bool:
        if not self.work.test():
            return False
        for there, here in self.pairs:
            np.copyto(here, self.backend.to_numpy(there))
        return True


def uploading() -> Any:
    """A communicator that gives `Nccl` a device's arrays where the kit gives the host's."""

    class OnDevice(distributed.Forwarding):
        def __init__(self, inner: Any = None) -> None:
            self.backend = flnb.dispatch.state.current().parts["backend"].__class__(distributed.rank())
            with flnb.use_backend(self.backend):
                super().__init__(inner or joined())

        def there(self, buffer: Any) -> Any:
            return self.backend.from_numpy(buffer)

        def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
            if not self.backend.supports(buffer.dtype):  # bfloat16
                return self.inner.all_reduce(buffer, op)
            there = self.there(buffer)
            return Fetched(self.backend, self.inner.all_reduce(there, op), (there, buffer))

        def all_gather(self, buffer: Any, out: Any) -> Work:
            if not self.backend.supports(buffer.dtype):
                return self.inner.all_gather(buffer, out)
            to = self.there(out)
            return Fetched(self.backend, self.inner.all_gather(self.there(buffer), to), (to, out))

        def reduce_scatter(self, buffer: Any, out: Any, op: str = "sum") -> Work:
            if not self.backend.supports(buffer.dtype):
                return self.inner.reduce_scatter(buffer, out, op)
            to = self.there(out)
            return Fetched(self.backend, self.inner.reduce_scatter(self.there(buffer), to, op), (to, out))

        def broadcast(self, buffer: Any, root: int = 0) -> Work:
            if not self.backend.supports(buffer.dtype):
                return self.inner.broadcast(buffer, root)
            there = self.there(buffer)
            return Fetched(self.backend, self.inner.broadcast(there, root), (there, buffer))

        def split(self, color: int, key: int) -> Any:
            with flnb.use_backend(self.backend):
                return type(self)(self.inner.split(color, key))

    return OnDevice


def test_the_kit_of_communicators(two: EmulatedDevice) -> None:
    with flnb.use_backend("cuda"):
        report = flnb.testing.check_communicator(uploading(), ranks=(1, 2))
    assert report, report
    assert len(report.results) == 10


@pytest.mark.parametrize("order", ["eager", "lazy", "random"])
def test_tensors_never_pass_through_the_host(order: Any, two: EmulatedDevice) -> None:
    given = [numbers(rank, (2, 3)) for rank in range(2)]

    def calls() -> dict[str, Any]:
        rank = distributed.rank()
        x = flnb.asarray(given[rank])
        started = distributed.start_all_reduce(x)
        return {
            "sum": distributed.all_reduce(x.T),  # not contiguous
            "half": distributed.all_reduce(x.astype(flnb.float16)).astype(flnb.float32),
            "max": distributed.all_reduce(x, "max"),
            "gathered": distributed.all_gather(x.T),
            "scattered": distributed.reduce_scatter(x),
            "first": distributed.broadcast(x, root=1),
            "started": started.wait(),
            "several": distributed.all_reduce_multiple([x, x[0]], contiguous=True)[1],
            "alone": distributed.all_reduce_multiple([x])[0],
        }

    two.begin(order, seed=5)
    results = on_ranks(calls)
    assert two.count("bytes to the host") == 0
    total, halves = given[0] + given[1], [each.astype(np.float16).astype(np.float32) for each in given]
    for rank, found in enumerate(results):
        wanted = {
            "sum": total.T, "half": (halves[0] + halves[1]).astype(np.float16), "max": np.maximum(*given),
            "gathered": np.stack([each.T for each in given]), "scattered": total[rank], "first": given[1],
            "started": total, "several": total[0], "alone": total,
        }  # fmt: skip
        with flnb.use_backend(f"cuda:{rank}"):
            assert {y._spec.kind for y in found.values()} == {f"cuda:{rank}"}
            assert {name for name, y in wanted.items() if not np.array_equal(found[name].numpy(), y)} == set()


def test_calls_are_in_the_present_stream(two: EmulatedDevice) -> None:
    x = numbers(0, 1000)

    def work() -> Any:
        backend: Any = flnb.dispatch.state.current().backend
        given = flnb.asarray(x)
        with backend.stream() as stream:
            y = distributed.all_reduce(given * 2.0) + 1.0  # elsewhere it would be a race, which the device reports
        backend.wait_for(stream)
        return y.numpy()

    for seed in range(5):
        two.begin(seed=seed)
        for found in on_ranks(work):
            np.testing.assert_array_equal(found, x * 4 + 1)
        assert two.reports == []


def test_a_call_has_finished_when_the_device_has_done_it(two: EmulatedDevice) -> None:
    two.begin("lazy")
    with flnb.use_backend("cuda"), distributed.use_communicator(joined()):
        pending = communication.start("all_reduce", flnb.ones(3)._data, "sum")
        assert not pending.test()
        pending.wait()
        assert pending.test()


def test_gradients_messages_and_tensors_of_the_host(two: EmulatedDevice) -> None:
    def work() -> list[Any]:
        rank = distributed.rank()
        x = flnb.Variable(flnb.asarray([rank + 1.0]))
        distributed.all_reduce(x * x).sum().backward()
        if rank:
            distributed.send(flnb.asarray([7.0]), to=0)
        got = 7.0 if rank else distributed.recv(flnb.asarray([0.0]), source=1).item()
        with flnb.use_backend("numpy"):
            host = distributed.all_reduce([1.0, 2.0]).tolist()
        return [x.grad.item(), got, host]

    assert on_ranks(work) == [[4.0, 7.0, [2.0, 4.0]], [8.0, 7.0, [2.0, 4.0]]]


def test_recordings_show_calls_and_launches_but_no_copies_to_the_host(two: EmulatedDevice) -> None:
    def reduce() -> None:
        distributed.all_reduce(flnb.ones((16, 16)))

    with flnb.record(grad_interval=None) as run:
        on_ranks(reduce)
    task = run.devices.task
    assert not (task["route"] == device_words.TO_HOST).any()
    names = [run.catalog.kernels.items[number].name for number in task["kernel"][task["route"] == 0]]
    assert names.count("cupy nccl all_reduce") == 2
    ended = run.table("collective")
    assert [run.catalog.plans.items[number].op for number in ended["plan"]].count("all_reduce") == 2


def net() -> nn.Module:
    flnb.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def trained(model: nn.Module, rows: slice, passes: int) -> list[Any]:
    """The parameters after some steps with some rows of the batches; gradients of several passes add up."""
    optimizer = flnb.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        optimizer.zero_grad()
        for number in range(passes):
            batch = np.ascontiguousarray(numbers(step + 10 * number, (8, 6))[rows])
            (model(flnb.asarray(batch)) ** 2).mean().backward()
        optimizer.step()
    return [p.data for p in model.parameters()]


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("deterministic", [False, True])
def test_data_parallel_training_is_that_of_one_process(deterministic: bool, passes: int, two: EmulatedDevice) -> None:
    state = {name: value.numpy() for name, value in net().state_dict().items()}

    def model() -> nn.Module:
        made = net()
        made.load_state_dict({name: flnb.asarray(value) for name, value in state.items()})
        return made

    def rank_of_two() -> list[Any]:
        parallel = distributed.DataParallel(model(), "200B", deterministic)
        try:
            return trained(parallel, slice(distributed.rank() * 4, distributed.rank() * 4 + 4), passes)
        finally:
            parallel.close()

    alone = trained(model(), slice(None), passes)  # by NumPy
    two.begin()
    ranks = on_ranks(rank_of_two)
    assert two.count("bytes to the host") == 0
    first, second = ([y.numpy() for y in each] for each in ranks)
    for one, other, wanted in zip(first, second, alone, strict=True):
        assert np.array_equal(one, other)
        np.testing.assert_allclose(one, wanted.numpy(), rtol=0, atol=2e-6)


class Partly(nn.Module):
    """Uses one layer on rank 0 alone, and another one nowhere."""

    def __init__(self) -> None:
        self.norm, self.first, self.unused = nn.BatchNorm(3), nn.Linear(3, 2, bias=False), nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        return y.sum() if distributed.rank() else y.sum() + self.first(x).sum()


def test_buffers_and_parameters_that_not_all_ranks_use(two: EmulatedDevice) -> None:
    given = [numbers(rank, (4, 3)) for rank in range(2)]

    def work() -> Any:
        parallel = distributed.DataParallel(model := Partly(), None)
        parallel(flnb.asarray(given[distributed.rank()])).backward()
        parallel.close()
        assert model.unused.weight.grad is None
        return model.first.weight.grad.numpy(), [buffer.numpy() for _, buffer in model.named_buffers()]

    (gradient, first), (other, second) = on_ranks(work)
    np.testing.assert_allclose(gradient, np.tile(given[0].sum(0) / 2, (2, 1)), rtol=1e-6)
    assert np.array_equal(gradient, other)
    assert len(first) >= 2
    assert any(each.any() for each in first)
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_rank_that_gives_a_tensor_of_the_host_is_named(two: EmulatedDevice) -> None:
    said: list[str] = []

    def work() -> None:
        name = "numpy" if distributed.rank() else "cuda:0"
        with flnb.use_backend(name):
            try:
                distributed.all_reduce(flnb.ones(3))
            except Exception as error:  # NCCL's own, where the other rank ended first
                said.append(f"{type(error).__name__}: {error}")

    on_ranks(work)
    named = r"CollectiveError: .*(rank 1 ran all_reduce float32\[3\], sum|rank 0 ran .* on devices, sum)"
    assert [text for text in said if re.search(named, text, re.DOTALL)]


def test_errors_say_what_to_do(two: EmulatedDevice) -> None:
    with (
        flnb.use_backend("numpy"),
        pytest.raises(ValueError, match=r"'numpy', expected .* flnb.set_backend\('cuda:1'\)"),
    ):
        joined()

    def on_one_device() -> None:
        with flnb.use_backend("cuda:0"):
            joined()

    with pytest.raises(RuntimeError, match="INVALID_USAGE"):
        distributed.run_threads(2, on_one_device)


def test_after_an_error_calls_under_way_are_given_up(two: EmulatedDevice) -> None:
    def work() -> list[str]:
        called = []
        communicator: Any = distributed.current()
        communicator._engine = type(
            "Engine", (), {name: lambda _, n=name: called.append(n) for name in ("abort", "destroy")}
        )()
        communicator.close()
        groups.abandon(communicator, "a test says so")
        communicator.close()
        return list(called)

    assert on_ranks(work) == [["destroy", "abort"]] * 2


def test_without_nccl_the_error_names_what_to_install() -> None:
    program = "from flnb_backends.comm.nccl import Nccl\nNccl()"
    pytest.importorskip("cuda.pathfinder")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (
        "ImportError: nccl: CuPy finds no NCCL library; install it with `python -m pip install nvidia-nccl-cu13`"
        in done.stderr
    )
