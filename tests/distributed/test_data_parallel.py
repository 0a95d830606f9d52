"""Data parallel training equals that of one process on the whole batch."""

from __future__ import annotations

import gc
import importlib.util
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import distributed, nn
from flnb.autograd.arrivals import listen, listeners, unlisten
from flnb.distributed.buckets import joined

spec = importlib.util.spec_from_file_location("training", Path(__file__).with_name("training.py"))
assert spec is not None
assert spec.loader is not None
training = importlib.util.module_from_spec(spec)
spec.loader.exec_module(training)

OPTIONS: dict[str, dict[str, Any]] = {
    "one bucket": {},
    "small buckets": {"bucket": 300},
    "inline": {"bucket": None},
    "deterministic": {"deterministic": True},
}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", ["plain", "accumulated", "unused"])
@pytest.mark.parametrize("options", OPTIONS)
def test_twenty_adam_steps_equal_one_process(ranks: int, kind: str, options: str) -> None:
    expected, parameters = training.train(ranks, kind)
    for losses, found in distributed.run_threads(ranks, lambda: training.train(ranks, kind, **OPTIONS[options])):
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-12 * max(expected))
        for a, b in zip(found, parameters, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-9)
    assert not listeners


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", ["accumulated", "unused"])
@pytest.mark.parametrize("tape", ["arena", "pruning", "prefused"])
def test_every_tape(tape: str, kind: str, ranks: int) -> None:
    expected, _ = training.train(ranks, kind)
    for losses, _ in distributed.run_threads(ranks, lambda: training.train(ranks, kind, tape, bucket=300)):
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-12 * max(expected))


def test_a_parameter_that_no_rank_used_keeps_no_gradient() -> None:
    def work() -> tuple[bool, bool]:
        net = training.Net()
        model = distributed.DataParallel(net)
        model(flnb.ones((2, 6), dtype=flnb.float64), rare=distributed.rank() == 0).sum().backward()
        model.close()
        return net.unused.grad is None, net.rare.grad is None

    assert distributed.run_threads(2, work) == [(True, False), (True, False)]


def test_buckets_are_sent_while_the_pass_goes_on() -> None:
    """The first collective begins before the last op of the backward pass."""

    def work() -> None:
        net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
        model = distributed.DataParallel(net, bucket="20KiB")
        loss = model(flnb.ones((32, 64))).sum()
        loss.backward()
        model.close()

    with flnb.record() as run:
        distributed.run_threads(2, work)
    begun, ops = run.table("collective_begin"), run.table("op")
    for lane in set(begun["lane"].tolist()):
        mine = begun["t"][begun["lane"] == lane]
        last_op = ops["t0"][ops["lane"] == lane].max()
        assert (mine[-8:] < last_op).sum() >= 4


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (0, ["b.out.bias", "b.out.weight", "b.head.bias", "b.head.weight", "a.bias", "a.weight"]),
        (48, ["b.out · 2 params", "b.head · 2 params", "a · 2 params"]),
        (96, ["b.head, b.out · 4 params", "a · 2 params"]),
        (100, ["b.head, b.out · 4 params", "a · 2 params"]),
        (110, ["a … b.out · 5 params", "a.weight"]),
    ],
)
def test_buckets_say_what_they_hold(most: int, expected: list[str]) -> None:
    net = nn.Sequential(a=nn.Linear(3, 3), b=nn.Sequential(head=nn.Linear(3, 3), out=nn.Linear(3, 3)))
    assert [bucket.holds for bucket in joined(net.named_parameters(), most, 1)] == expected


def test_a_recording_that_begins_after_the_model_was_made_has_the_names_in_buckets() -> None:
    runs, stack = [], ExitStack()

    def work() -> None:
        model = distributed.DataParallel(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
        distributed.barrier()
        if distributed.rank() == 0:
            runs.append(stack.enter_context(flnb.record()))
        distributed.barrier()
        model(flnb.ones((1, 3))).sum().backward()
        distributed.barrier()
        if distributed.rank() == 0:
            stack.close()
        model.close()

    distributed.run_threads(2, work)
    calls = runs[0].collectives
    assert calls.holds[calls.bucket == 0].tolist() == ["0, 1 · 4 params"]
    assert set(calls.holds[calls.bucket < 0]) == {""}


def test_a_wait_for_a_bucket_is_told_of_that_bucket_and_measures_its_bandwidth() -> None:
    def work() -> None:
        model = distributed.DataParallel(nn.Linear(128, 128, bias=False))
        for _ in range(3):
            loss = model(flnb.ones((1, 128))).sum()
            time.sleep(0.1 * distributed.rank())
            loss.backward()
        model.close()

    with flnb.record() as run:
        distributed.run_threads(2, work)
    calls = run.collectives
    buckets = calls.bucket == 0
    assert (calls.waited[0, buckets] > 10e6).all()
    assert (calls.gb_s[buckets] > 0).all()


def test_ranks_begin_with_the_parameters_of_rank_0() -> None:
    def work() -> Any:
        net = nn.Linear(3, 2)
        distributed.DataParallel(net).close()
        return net.weight.detach().numpy().copy()

    first, *others = distributed.run_threads(3, work)
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_leaves_are_told_once_with_their_whole_gradient() -> None:
    a, b = flnb.Variable([1.0, 2.0]), flnb.Variable([3.0, 4.0])
    heard: list[tuple[int, list[float]]] = []

    class Listening:
        def __init__(self) -> None:
            self.leaves = {a._node[2], b._node[2]}

        def began(self, first: bool) -> None:
            heard.append((int(first), []))

        def arrived(self, leaf: Any, gradient: Any) -> None:
            assert leaf[3] is None, "the gradient is told before .grad is set"
            heard.append((leaf[2], gradient.tolist()))

        def ended(self) -> None:
            heard.append((0, a.grad.tolist()))

    listening = Listening()
    listen(listening)
    try:
        ((a * b).sum() + (a * 2.0).sum()).backward()
    finally:
        unlisten(listening)
    assert heard[0] == (1, [])
    assert sorted(heard[1:-1]) == sorted([(a._node[2], [5.0, 6.0]), (b._node[2], [1.0, 2.0])])
    assert heard[-1] == (0, [5.0, 6.0])


def test_models_in_one_pass_exchange_in_one_order() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)

        def forward(self, x: Any, both: bool) -> Any:
            return self.a(x) + self.b(x) if both else self.a(x)

    def work() -> Any:
        one, other = distributed.DataParallel(Two()), distributed.DataParallel(Two())
        x = flnb.ones((1, 2))
        (other(x, True).sum() * 10.0 + one(x, distributed.rank() == 0).sum()).backward()
        return [p.grad.tolist()[0][0] for model in (one, other) for p in model.module.parameters()]

    assert distributed.run_threads(2, work) == [[1.0, 0.5, 10.0, 10.0]] * 2


def averaged(change: Any, ranks: int = 2) -> list[Any]:
    """The gradient of a weight on every rank, of the losses 1 x, 2 x, ..., after ``change(net, model)``."""

    def work() -> Any:
        net = nn.Linear(2, 1, bias=False)
        model = distributed.DataParallel(net)
        change(net, model)
        model(flnb.ones((1, 2)) * (distributed.rank() + 1.0)).sum().backward()
        model.close()
        return net.weight.grad.tolist()

    return distributed.run_threads(ranks, work)


def test_hooks_of_leaves_change_what_is_exchanged() -> None:
    assert averaged(lambda net, model: net.weight.register_hook(lambda g: g * 10.0)) == [[[15.0, 15.0]]] * 2


def test_a_pass_that_failed_leaves_nothing_behind() -> None:
    def fail(net: Any, model: Any) -> None:
        y = model(flnb.ones((1, 2)))
        y.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            y.sum().backward()
        net.zero_grad()

    assert averaged(fail) == [[[1.5, 1.5]]] * 2


def test_a_parameter_that_is_frozen_later() -> None:
    def work() -> Any:
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
        model = distributed.DataParallel(net)
        net[0].weight.requires_grad = False
        model(flnb.ones((1, 2))).sum().backward()
        model.close()
        return net[0].weight.grad, net[1].weight.grad is not None

    assert distributed.run_threads(2, work) == [(None, True)] * 2


def test_a_model_that_is_dropped_is_not_kept() -> None:
    def work() -> None:
        distributed.DataParallel(nn.Linear(2, 1))

    distributed.run_threads(2, work)
    gc.collect()
    assert not listeners


def test_averages_in_half_precision_do_not_overflow() -> None:
    def work() -> Any:
        net = nn.Linear(1, 1, bias=False).astype(flnb.float16)
        model = distributed.DataParallel(net)
        (model(flnb.ones((1, 1), dtype=flnb.float16)) * 40000.0).sum().backward()
        model.close()
        return net.weight.grad.item()

    assert distributed.run_threads(2, work) == [40000.0, 40000.0]


def test_a_strided_parameter() -> None:
    def work() -> Any:
        net = nn.Linear(4, 1, bias=False)
        net.weight.data = (flnb.arange(8.0) + distributed.rank())[::2].reshape((1, 4))
        distributed.DataParallel(net).close()
        return net.weight.tolist()

    assert distributed.run_threads(2, work) == [[[0.0, 2.0, 4.0, 6.0]]] * 2


def test_buffers_are_those_of_the_first_rank_after_every_pass() -> None:
    def work() -> Any:
        net = nn.Sequential(nn.BatchNorm(1), nn.BatchNorm(1))
        net[1].count = flnb.asarray([distributed.rank()])
        model = distributed.DataParallel(net)
        flnb.assign(net[1].count, distributed.rank() + 4)
        model(flnb.asarray([[1.0], [3.0]]) * (distributed.rank() + 1.0)).sum().backward()
        model.close()
        return round(net[0].running_mean.item(), 4), round(net[1].running_var.item(), 4), net[1].count.item()

    first, *others = distributed.run_threads(3, work)
    assert first == (0.2, 1.1, 4)
    assert others == [first] * 2


def test_states_are_those_of_the_module() -> None:
    net = nn.Linear(2, 1)
    model = distributed.DataParallel(net)
    assert list(model.state_dict()) == ["weight", "bias"]
    model.load_state_dict({"weight": np.ones((1, 2)), "bias": np.zeros(1)})
    assert net.weight.tolist() == [[1.0, 1.0]]


def test_a_parameter_that_is_unfrozen_or_converted_later() -> None:
    def work() -> Any:
        net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
        net[0].weight.requires_grad = False
        model = distributed.DataParallel(net)
        x = flnb.ones((1, 2)) * (distributed.rank() + 1.0)
        model(x).sum().backward()
        net.zero_grad()
        net[0].weight.requires_grad = True
        net.load_state_dict({"0.weight": np.eye(2), "1.weight": np.ones((1, 2))})
        model(x).sum().backward()
        found = [net[0].weight.grad.tolist(), net[1].weight.grad.tolist()]
        net.astype(flnb.float64)
        model(x.astype(flnb.float64)).sum().backward()
        return *found, net[1].weight.grad.dtype.name, net[1].weight.grad.tolist()

    expected = [[1.5, 1.5], [1.5, 1.5]], [[1.5, 1.5]], "float64", [[1.5, 1.5]]
    assert distributed.run_threads(2, work) == [expected] * 2


def test_a_model_made_on_other_ranks_is_an_error() -> None:
    def early() -> None:
        with distributed.use_communicator("single"):
            model = distributed.DataParallel(nn.Linear(2, 1))
        model(flnb.ones((1, 2)))

    def alone() -> None:
        model = distributed.DataParallel(nn.Linear(2, 1))
        loss = model(flnb.ones((1, 2))).sum()
        with distributed.use_communicator("single"):
            loss.backward()

    with pytest.raises(RuntimeError, match=r"made on 1 ranks and is used on 2; make it after flnb.distributed.init"):
        distributed.run_threads(2, early)
    with pytest.raises(RuntimeError, match="made on 2 ranks and is used on 1"):
        distributed.run_threads(2, alone)
