"""Ranks as threads: results against NumPy, gradients, faults that are named, and what each rank has of its own."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import distributed
from flnb.dispatch import communication
from flnb.interface import CollectiveError, Communicator

RANKS = [1, 2, 3, 4]


@pytest.mark.parametrize("ranks", RANKS)
def test_operations_agree_with_numpy(ranks: int) -> None:
    given = np.random.default_rng(0).normal(size=(ranks, ranks, 5))

    def work() -> list[Any]:
        x = flnb.asarray(given[distributed.rank()])
        return [
            distributed.all_reduce(x).numpy(),
            distributed.all_reduce(x, "max").numpy(),
            distributed.all_gather(x).numpy(),
            distributed.reduce_scatter(x).numpy(),
            distributed.broadcast(x, root=ranks - 1).numpy(),
        ]

    for rank, (total, most, gathered, part, sent) in enumerate(distributed.run_threads(ranks, work)):
        np.testing.assert_allclose(total, given.sum(axis=0), rtol=1e-14)
        np.testing.assert_array_equal(most, given.max(axis=0))
        np.testing.assert_array_equal(gathered, given)
        np.testing.assert_allclose(part, given.sum(axis=0)[rank], rtol=1e-14)
        np.testing.assert_array_equal(sent, given[-1])


def test_check_communicator_passes_on_threads() -> None:
    report = flnb.testing.check_communicator()
    assert report, str(report)


def test_check_communicator_finds_a_wrong_rank_order() -> None:
    class Reversed(Communicator):
        def __init__(self) -> None:
            self.inner = distributed.current()
            self.rank, self.size, self.board = self.inner.rank, self.inner.size, self.inner.board

        def all_gather(self, buffer: Any, out: Any) -> Any:
            return self.inner.all_gather(buffer, out[::-1].copy())

        def all_reduce(self, buffer: Any, op: str = "sum") -> Any:
            return self.inner.all_reduce(buffer, op)

    report = flnb.testing.check_communicator(Reversed, ranks=(2,))
    (row,) = [row for row in report.results if row.check == "all_gather keeps the order of ranks"]
    assert not row.passed
    assert "expected" in row.reason
    assert [row.passed for row in report.results if row.check.startswith("all_reduce gives")] == [True]


def test_a_rank_that_waits_for_a_message_is_told_of_another_call_that_it_made() -> None:
    def work() -> None:
        x = np.ones(2, np.float32)
        if distributed.rank() == 1:
            time.sleep(0.3)
            communication.run("broadcast", x, 0)
        begun = communication.start("all_reduce", x, "sum")
        communication.run("recv", x, 1, 0)
        begun.wait()

    said = "rank 0 ran all_reduce .* as call 1, rank 1 ran broadcast"
    messages = collect(work)
    assert any(re.search(said, each) for each in messages), messages


@pytest.mark.parametrize("ranks", [2, 3])
def test_gradients_are_those_of_one_process(ranks: int) -> None:
    """The loss sums over ranks what each computes of the others' values; the oracle does the same with one tensor."""
    given = np.random.default_rng(1).normal(size=(ranks, 4))
    weights = np.random.default_rng(2).normal(size=(ranks, ranks, 4))

    def work() -> Any:
        r = distributed.rank()
        x = flnb.Variable(given[r])
        gathered = distributed.all_gather(x)
        total = distributed.all_reduce(x * x)
        sent = distributed.broadcast(x, root=0)
        part = distributed.reduce_scatter(flnb.stack([x * float(i + 1) for i in range(ranks)]))
        loss = (gathered * flnb.asarray(weights[r])).sum() + (total * total).sum() + (sent**3).sum() + (part**2).sum()
        loss.backward()
        return x.grad.numpy()

    found = np.stack(distributed.run_threads(ranks, work))
    xs = flnb.Variable(given)
    total = (xs * xs).sum(axis=0)
    loss = (flnb.asarray(weights) * xs).sum() + ranks * (total * total).sum() + ranks * (xs[0] ** 3).sum()
    for i in range(ranks):
        loss = loss + ((xs.sum(axis=0) * float(i + 1)) ** 2).sum()
    loss.backward()
    np.testing.assert_allclose(found, xs.grad.numpy(), rtol=1e-12)


def test_another_call_is_named_on_every_rank() -> None:
    said: dict[int, str] = {}

    def work() -> None:
        r = distributed.rank()
        try:
            if r == 1:
                distributed.broadcast(flnb.ones(3))
            else:
                distributed.all_reduce(flnb.ones(3))
        except CollectiveError as error:
            said[r] = str(error)
            raise

    with pytest.raises(CollectiveError):
        distributed.run_threads(3, work)
    assert len(said) == 3
    for message in said.values():
        assert "rank 1" in message
        assert "broadcast float32[3], 0" in message
        assert "all_reduce float32[3], sum" in message


@pytest.mark.parametrize(("other", "text"), [((4,), "float32[4]"), ((3, "f8"), "float64[3]")])
def test_another_size_or_dtype_is_named(other: tuple[Any, ...], text: str) -> None:
    def work() -> None:
        given = np.zeros(*other) if distributed.rank() else np.zeros(3, np.float32)
        distributed.all_reduce(given if given.dtype == np.float64 and len(other) > 1 else given.astype(np.float32))

    with pytest.raises(CollectiveError, match=r"rank \d ran all_reduce") as caught:
        distributed.run_threads(2, work)
    assert text in str(caught.value)


def test_a_rank_that_fails_is_named_by_those_that_wait() -> None:
    said: list[str] = []

    def work() -> None:
        if distributed.rank() == 1:
            raise ValueError("a mistake of the user")
        try:
            distributed.all_reduce(flnb.ones(3))
        except CollectiveError as error:
            said.append(str(error))

    began = time.monotonic()
    with pytest.raises(ValueError, match="a mistake of the user") as caught:
        distributed.run_threads(3, work)
    assert "on rank 1 of 3" in caught.value.__notes__
    assert len(said) == 2
    assert all("rank 1 has failed; it has made no call" in message for message in said)
    assert time.monotonic() - began < 3.0


def test_a_late_rank_is_named_at_the_timeout() -> None:
    def work() -> None:
        if distributed.rank() == 1:
            time.sleep(1.5)
        distributed.barrier()

    with pytest.raises(CollectiveError, match=r"timed out after .* rank 1 has not come"):
        distributed.run_threads(2, work, timeout=0.3)


def test_a_communicator_that_failed_says_so() -> None:
    def work() -> str:
        try:
            distributed.all_reduce(flnb.ones(3 + distributed.rank()))
        except CollectiveError:
            pass
        with pytest.raises(CollectiveError, match="failed before and can no longer be used: rank"):
            distributed.barrier()
        return "told"

    assert distributed.run_threads(2, work) == ["told", "told"]


def test_ranks_have_steps_and_random_numbers_of_their_own() -> None:
    def work() -> tuple[list[int], float]:
        steps = []
        for _ in range(3):
            with flnb.step() as index:
                distributed.barrier()
            steps.append(index)
        return steps, flnb.random.normal((1,)).item()

    (one, a), (two, b) = distributed.run_threads(2, work)
    assert one == two == [0, 1, 2]
    assert a != b


def test_calls_are_events() -> None:
    with flnb.record() as run:
        distributed.run_threads(2, lambda: [distributed.all_reduce(flnb.ones(3)) for _ in range(5)])
    begun, ended = run.table("collective_begin"), run.table("collective")
    assert sorted(begun["seq"].tolist()) == sorted(ended["seq"].tolist()) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert (ended["t1"] >= ended["t0"]).all()
    assert len(set(ended["lane"].tolist())) == 2


def test_a_cell_run_again_replaces_the_communicator() -> None:
    def cell(factor: float) -> type[Communicator]:
        class Scaling(Communicator):
            def __init__(self) -> None:
                self.inner = distributed.current()
                self.rank, self.size, self.board = self.inner.rank, self.inner.size, self.inner.board

            def all_reduce(self, buffer: Any, op: str = "sum") -> Any:
                buffer *= factor
                return self.inner.all_reduce(buffer, op)

        Scaling.__qualname__ = "Scaling"
        return Scaling

    with distributed.use_communicator(cell(2.0)):
        assert distributed.all_reduce(flnb.ones(1)).item() == 2.0


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("all_reduce", (np.ones(3), "mean"), "got the reduction 'mean', expected one of sum, max, min"),
        ("broadcast", (np.ones(3), 1), "got root=1, expected a rank from 0 to 0"),
        ("send", (np.ones(3), 0, 0), "rank 0 cannot exchange with itself"),
        (
            "all_gather",
            (np.ones(3), np.ones(4)),
            r"must have 1 times the elements .* got float64\[4\] and float64\[3\]",
        ),
        ("all_reduce", (np.ones((3, 3)).T[:, :2], "sum"), r"the buffer of shape \(3, 2\) is not contiguous"),
    ],
)
def test_wrong_arguments_are_answered(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        communication.run(name, *arguments)


def test_non_contiguous_empty_and_scalar_tensors() -> None:
    x = flnb.asarray(np.arange(6.0).reshape(2, 3)).T
    np.testing.assert_array_equal(distributed.all_reduce(x).numpy(), x.numpy())
    assert distributed.all_reduce(flnb.zeros((0, 3))).shape == (0, 3)
    assert distributed.all_gather(flnb.asarray(3.0)).tolist() == [3.0]


def test_split_names_the_rank_that_does_not_come() -> None:
    def work() -> None:
        if distributed.rank() == 1:
            raise ValueError("a mistake of the user")
        distributed.current().split(0, 0)

    began = time.monotonic()
    with pytest.raises(ValueError, match="a mistake of the user"):
        distributed.run_threads(2, work, timeout=60.0)
    assert time.monotonic() - began < 5.0


def test_a_message_of_another_shape_or_dtype_is_an_error() -> None:
    def work() -> None:
        if distributed.rank() == 0:
            distributed.send([5.0], to=1)
        else:
            distributed.recv(flnb.zeros(2), source=0)

    with pytest.raises(CollectiveError, match=r"rank 0 sent float32\[1\], rank 1 expected float32\[2\]"):
        distributed.run_threads(2, work, timeout=2.0)


def test_the_kit_passes_on_forwarding_and_fails_without_a_board() -> None:
    class Boardless(distributed.Forwarding):
        def __init__(self) -> None:
            super().__init__()
            self.board = None

    assert flnb.testing.check_communicator(distributed.Forwarding, ranks=(1, 3))
    report = flnb.testing.check_communicator(Boardless, ranks=(2,))
    assert [row.check for row in report.results if not row.passed] == ["ranks see each other's calls on a board"]


def test_messages_with_different_tags_name_the_tag_that_did_not_come() -> None:
    def work() -> None:
        distributed.current().timeout = 0.5
        name, tag = ("send", 1) if distributed.rank() == 0 else ("recv", 2)
        communication.run(name, np.ones(2, np.float32), 1 - distributed.rank(), tag)

    said = "; ".join(collect(work))
    expected = "no message with tag 2 has come from rank 0; apart from messages, it has made no call"
    assert expected in said or "rank 1 has not received the message with tag 1; apart from messages, it" in said


def collect(work: Any) -> list[str]:
    """What two ranks say of a failure."""
    messages: list[str] = []

    def caught() -> None:
        try:
            work()
        except CollectiveError as error:
            messages.append(str(error))

    distributed.run_threads(2, caught)
    return messages
