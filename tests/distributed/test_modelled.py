"""The communicator that models a link: times by the closed forms, a queue, late and failing ranks; and those forms."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from flnb_backends.comm.modelled import Modelled
from flnb_backends.comm.single import Single

import flnb
from flnb import distributed
from flnb.dispatch import communication
from flnb.distributed import Topology
from flnb.interface import CollectiveError

SLOW = {"latency": 0.02, "bandwidth": 1e6}


def wrap() -> Modelled:
    """A quick link, for the kit."""
    return Modelled(latency=1e-6, bandwidth=1e12)


def test_check_communicator_passes() -> None:
    report = flnb.testing.check_communicator(wrap, ranks=(1, 2, 3))
    assert report, str(report)


def timed(work: Any, ranks: int = 2, **settings: Any) -> list[tuple[float, Any]]:
    """What a function takes and returns on each rank."""

    def run() -> tuple[float, Any]:
        with distributed.use_communicator(Modelled(**settings)):
            began = time.perf_counter()
            found = work()
            return time.perf_counter() - began, found

    return distributed.run_threads(ranks, run)


def test_a_call_takes_what_the_closed_form_says() -> None:
    for seconds, total in timed(lambda: distributed.all_reduce(flnb.ones(25_000))[0].item(), 3, **SLOW):
        expected = 4 * 0.02 + 4 / 3 * 100_000 / 1e6  # 2(p-1) a + 2(p-1)/p nb
        assert total == 3.0
        assert expected <= seconds < expected + 0.5


def test_calls_queue_on_the_link_and_pass_by_themselves() -> None:
    """Four calls that were started together end one after the other, while this thread does something else."""

    def work() -> list[bool]:
        buffers = [np.ones(10_000, np.float32) for _ in range(4)]
        pending = [communication.start("all_reduce", buffer, "sum") for buffer in buffers]
        distributed.current().inner.barrier()  # type: ignore[attr-defined]
        time.sleep(4 * 0.08 + 0.05)
        return [one.test() for one in pending]

    assert [found for _, found in timed(work, **SLOW)] == [[True] * 4] * 2
    one_by_one = timed(lambda: [distributed.all_reduce(flnb.ones(10_000)) for _ in range(4)], **SLOW)
    assert all(seconds >= 4 * (2 * 0.02 + 0.04) for seconds, _ in one_by_one)


def test_the_transfer_begins_when_the_last_rank_comes() -> None:
    late = timed(lambda: distributed.barrier(), faults={(1, 1): 0.2}, latency=0.1, bandwidth=1e9)
    assert late[1][0] >= 0.3


def test_messages_take_their_time() -> None:
    def work() -> Any:
        if distributed.rank() == 0:
            return distributed.send(flnb.ones(100), to=1)
        return distributed.recv(flnb.zeros(100), source=0).sum().item()

    (seconds, none), (_, total) = timed(work, latency=0.1, bandwidth=1e9)
    assert (none, total) == (None, 100.0)
    assert seconds >= 0.1


def test_a_late_rank_is_seen_to_be_late() -> None:
    """It has neither begun the call nor written it on the board while it is late."""
    with flnb.record() as run:
        timed(lambda: [distributed.barrier() for _ in range(3)], faults={(1, 2): 0.2}, latency=0.0)
    begun = run.table("collective_begin")
    second = np.sort(begun["t"][begun["seq"] == 2])
    assert second[1] - second[0] >= 0.19e9
    with pytest.raises(CollectiveError, match="rank 1 has not come: its last call was 1, barrier"):
        distributed.run_threads(2, lambda: late_once(), timeout=0.2)


def late_once() -> None:
    """Two barriers, to the second of which rank 1 comes too late."""
    with distributed.use_communicator(Modelled(latency=0.0, faults={(1, 2): 1.0})):
        distributed.barrier()
        distributed.barrier()


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("raises", RuntimeError, "modelled: rank 1 fails before its call 2"),
        ("never comes", CollectiveError, "timed out after .* rank 1 has not come"),
    ],
)
def test_ranks_that_fail(fault: str, error: type[Exception], message: str) -> None:
    said: dict[int, str] = {}

    def work() -> None:
        with distributed.use_communicator(Modelled(latency=0.0, faults={(1, 2): fault})):
            distributed.barrier()
            try:
                distributed.barrier()
            except CollectiveError as error:
                said[distributed.rank()] = str(error)
                raise

    with pytest.raises(error, match=message):
        distributed.run_threads(3, work, timeout=0.3)
    assert all("rank 1 has" in said[rank] for rank in (0, 2))


def test_a_wrapper_continues_the_numbers_of_what_it_wraps() -> None:
    """The board still holds the calls that were made before: another call of the same number would be refused."""

    def work() -> float:
        distributed.barrier()
        distributed.broadcast(flnb.ones(3))
        with distributed.use_communicator(wrap()):
            return float(distributed.all_reduce(1.0).item())

    assert distributed.run_threads(2, work) == [2.0, 2.0]


def test_the_time_of_a_ring() -> None:
    """Patarasuk and Yuan: 2(p-1) steps of n/p bytes each."""
    link = Topology(latency=3.0, bandwidth=0.5)
    for ranks in (2, 3, 8):
        step = 3.0 + 2.0 * 240 / ranks
        assert link.seconds("all_reduce", 240, ranks) == pytest.approx(2 * (ranks - 1) * step)
        assert link.seconds("all_gather", 240, ranks) == pytest.approx((ranks - 1) * step)
        assert link.seconds("reduce_scatter", 240, ranks) == pytest.approx((ranks - 1) * step)


def test_the_time_of_halving_and_of_trees() -> None:
    """Thakur and others, section 4: Rabenseifner's all_reduce, and reduce by a tree with a broadcast by a tree."""
    halving = Topology(1.0, 1.0, "halving", reduction=4.0)
    assert halving.seconds("all_reduce", 80, 8) == pytest.approx(2 * 3 + 2 * 7 / 8 * 80 + 7 / 8 * 80 / 4)
    assert halving.seconds("reduce_scatter", 80, 8) == pytest.approx(3 + 7 / 8 * 80 * 1.25)
    tree = Topology(1.0, 1.0, "tree")
    assert tree.seconds("broadcast", 80, 8) == pytest.approx(3 * (1 + 80))
    assert tree.seconds("all_reduce", 80, 5) == pytest.approx(2 * 3 * (1 + 80))
    assert tree.seconds("barrier", 0, 9) == 4.0
    assert tree.seconds("all_reduce", 80, 1) == 0.0


def test_the_time_of_two_levels() -> None:
    """16 ranks on 4 hosts: a scatter and a gather within hosts, and a quarter of the bytes over 4 hosts."""
    inside, across = Topology(1.0, 10.0), Topology(5.0, 2.0)
    both = Topology(5.0, 2.0, per_host=4, host=inside)
    expected = 2 * inside.seconds("all_gather", 400, 4) + across.seconds("all_reduce", 100, 4)
    assert both.seconds("all_reduce", 400, 16) == pytest.approx(expected)
    assert both.seconds("all_reduce", 400, 4) == pytest.approx(inside.seconds("all_reduce", 400, 4))


def test_published_times_of_nccl_on_eight_nodes() -> None:
    """nccl-tests, all_reduce of 8 B on p3dn nodes of 8 ranks: 163.4, 319.4 and 631.3 us on 2, 4 and 8 nodes."""
    fitted = Topology(latency=0.0, bandwidth=1e10).fitted([(16, 8, 163.4e-6), (32, 8, 319.4e-6)])
    assert fitted.seconds("all_reduce", 8, 64) == pytest.approx(631.3e-6, rel=0.02)
    assert fitted.seconds("all_reduce", 8, 64) == pytest.approx(631.3e-6, rel=0.0005)


def test_a_fit_finds_the_link_that_made_the_times() -> None:
    link = Topology(2e-6, 3e9, overhead=5e-6)
    measured = [(p, n, link.seconds("all_reduce", n, p)) for p in (2, 4, 8) for n in (8, 1 << 12, 1 << 20)]
    found = Topology(0.0, 1.0).fitted(measured)
    assert found.latency == pytest.approx(2e-6)
    assert found.bandwidth == pytest.approx(3e9)
    assert found.overhead == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "star"}, "got algorithm 'star', expected one of ring, tree, halving"),
        ({"per_host": 4}, "got per_host=4 without host"),
        ({"bandwidth": 0.0}, "got bandwidth=0.0, expected bytes per second, more than 0"),
        ({"latency": -1}, "got latency=-1, expected seconds, 0 or more"),
        ({"reduction": -2.0}, "got reduction=-2.0, expected bytes per second, more than 0"),
    ],
)
def test_wrong_topologies_are_answered(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Topology(**{"latency": 1e-6, "bandwidth": 1e9, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"latency": "abc"}, "modelled: got latency='abc', expected seconds, such as 0.002"),
        (
            {"faults": {(1, 2): "bogus"}},
            r"got faults\[\(1, 2\)\]='bogus', expected seconds, .* 'raises', 'never comes'",
        ),
        ({"faults": {(1, 2): None}}, r"got faults\[\(1, 2\)\]=None, expected seconds"),
        ({"faults": {1: "raises"}}, r"got faults\[1\], expected a dict such as \{\(1, 2\): \"raises\"\}"),
        ({"faults": "bogus"}, "got faults='bogus', expected a dict"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Modelled(**settings)


def test_an_unknown_op_is_answered() -> None:
    with pytest.raises(ValueError, match="unknown op 'scan'; expected one of all_reduce"):
        Topology(1e-6, 1e9).seconds("scan", 8, 2)


def test_calls_are_those_of_the_wrapped_group() -> None:
    """Also if one rank has wrapped communicators more often before, alone: names of groups join the ranks' events."""
    for _ in range(2):
        communication.run("barrier", on=Modelled(inner=Alone()))
    with flnb.record() as run:
        timed(lambda: distributed.barrier(), latency=0.0)
    assert (run.collectives.begin > 0).all(axis=0).any()


class Alone(Single):
    """A rank that believes that there is another one."""

    size = 2
    name = "alone"


def test_parts_of_a_modelled_group_are_told_from_the_whole_in_recordings() -> None:
    def work() -> None:
        with distributed.use_communicator(Modelled(1e-4)) as modelled:
            part = modelled.split(distributed.rank() % 2, 0)
            with distributed.use_communicator(part):
                distributed.all_reduce(1.0)
            distributed.all_reduce(1.0)

    with flnb.record() as run:
        distributed.run_threads(4, work)
    calls = run.collectives
    assert calls.ranks == (0, 1, 2, 3)
    known = {(name.split("/")[-1] if "/" in name else "whole") for name in calls.group.tolist()}
    assert known == {"whole", "1.0", "1.1"}
    assert sorted((calls.begin > 0).sum(axis=0).tolist()) == [2, 2, 4, 4]


def test_several_buffers_at_once_take_as_long_as_one_of_their_size() -> None:
    link = Topology(1e-6, 1e9)
    assert link.seconds("all_reduce_multiple", 4096, 4) == link.seconds("all_reduce", 4096, 4)
