"""What the events of communication say: rank, group, bucket, and how long the program stood still."""

from __future__ import annotations

import io
import time
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
from flnb import distributed, nn
from flnb.dispatch.communication import start, start_multiple
from flnb.interface import Communicator, Work
from flnb.interface.communicator import Done

if TYPE_CHECKING:
    from pathlib import Path


def test_events_name_the_rank_where_ranks_are_threads() -> None:
    with flnb.record() as run:
        distributed.run_threads(3, lambda: distributed.all_reduce(flnb.ones(2)))
    ended = run.table("collective")
    infos = [run.catalog.groups.items[number] for number in ended["group"].tolist()]
    assert sorted(info.rank for info in infos) == [0, 1, 2]
    assert {(info.size, info.name.partition(" ")[0]) for info in infos} == {(3, "threads")}
    assert infos[0].host
    assert infos[0].process


def test_groups_of_one_name_are_numbered_alike_on_all_ranks() -> None:
    def work() -> None:
        distributed.barrier()

    with flnb.record() as run:
        distributed.run_threads(2, work)
        distributed.run_threads(2, work)
    names = [run.catalog.groups.items[number].name for number in run.table("collective")["group"].tolist()]
    assert len(set(names)) == 2
    assert all(names.count(name) == 2 for name in names)


def test_a_split_group_has_a_name_of_its_own() -> None:
    def work() -> str:
        split = distributed.current().split(distributed.rank() % 2, 0)
        return split.group_name

    first, second, third = distributed.run_threads(3, work)
    assert first == third
    assert first.startswith("threads ")
    assert (first[-4:], second[-4:]) == ("/1.0", "/1.1")


def test_a_wait_is_an_event_and_an_asynchronous_call_is_not() -> None:
    def work() -> None:
        if distributed.rank() == 1:
            time.sleep(0.05)
        distributed.barrier()
        buffer = flnb.ones(4)
        pending = start("all_reduce", buffer._data, "sum")
        time.sleep(0.05)
        assert pending.test()
        pending.wait()

    with flnb.record() as run:
        distributed.run_threads(2, work)
    waits = run.table("wait")
    long = waits["t1"] - waits["t0"] > 30e6
    (rank,) = [run.catalog.groups.items[number].rank for number in waits["group"][long].tolist()]
    assert rank == 0
    assert waits["seq"][long].tolist() == [1]


def test_blocking_calls_are_exposed_on_all_ranks_and_overlap_with_nothing() -> None:
    """Also on the rank that comes last, and finds the call complete because its own thread has computed the sum."""

    def work() -> None:
        for _ in range(6):
            with flnb.step():
                distributed.all_reduce(flnb.ones(1 << 20))
                distributed.barrier()

    with flnb.record() as run:
        distributed.run_threads(2, work)
    calls = run.collectives
    assert (calls.waited == calls.end - calls.begin).all()
    assert (calls.asked == calls.begin).all()
    assert calls.overlap[~np.isnan(calls.overlap)].max() == 0.0
    whole = sum((calls.end - calls.begin)[:, calls.step == step].sum() for step in calls.steps)
    assert calls.exposed_ns.sum() == whole


def test_an_engine_that_copies_the_result_when_it_is_asked_makes_the_program_stand_still() -> None:
    class Copying(Work):
        def test(self) -> bool:
            time.sleep(0.02)
            return True

    class Lazy(Communicator):
        def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
            return Copying()

    with distributed.use_communicator(Lazy), flnb.record() as run:
        start("all_reduce", np.ones(3), "sum").wait()
    waits = run.table("wait")
    assert (waits["t1"] - waits["t0"]).max() > 15e6  # on a busy machine the start may be a wait, too


def test_several_buffers_that_are_summed_as_they_are_started_are_a_wait() -> None:
    class Working(Communicator):
        def all_reduce_multiple(self, buffers: Any, op: str = "sum") -> Work:
            time.sleep(0.02)
            return Done()

    with distributed.use_communicator(Working), flnb.record() as run:
        start_multiple([np.ones(3), np.ones(2)], "sum").wait()
    waits = run.table("wait")
    assert (waits["t1"] - waits["t0"]).max() > 15e6


def test_buckets_are_numbered_and_files_keep_the_groups(tmp_path: Path) -> None:
    def work() -> None:
        model = distributed.DataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), bucket=None)
        model(flnb.ones((2, 8))).sum().backward()
        model.close()

    with flnb.record() as run:
        distributed.run_threads(2, work)
    buckets = run.table("collective_begin")["bucket"]
    assert sorted(buckets[buckets >= 0].tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    run.save(tmp_path / "run.flnb")
    again = flnb.load_run(tmp_path / "run.flnb")
    groups = again.table("collective_begin")["group"].tolist()
    assert groups == run.table("collective_begin")["group"].tolist()
    held = again.collectives.holds[again.collectives.bucket >= 0].tolist()
    assert held == ["1.bias", "1.weight", "0.bias", "0.weight"]
    assert again.catalog.groups.items[groups[0]] == run.catalog.groups.items[groups[0]]


def test_a_file_from_before_buckets_were_described_opens(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with flnb.record() as run:
        distributed.run_threads(2, distributed.barrier)
    run.save(tmp_path / "run.flnb")
    with zipfile.ZipFile(tmp_path / "run.flnb") as new, zipfile.ZipFile(tmp_path / "old.flnb", "w") as old:
        for name in new.namelist():
            buffer = io.BytesIO(new.read(name))
            if name == "collective_begin.parquet":
                without = parquet.read_table(buffer).drop_columns(["name"])
                parquet.write_table(without, buffer := io.BytesIO())
            old.writestr(name, buffer.getvalue())
    assert flnb.load_run(tmp_path / "old.flnb").collectives.holds.tolist() == [""]


def test_an_engine_that_works_before_it_returns_makes_the_program_stand_still() -> None:
    class Working(Communicator):
        def all_reduce(self, buffer: Any, op: str = "sum") -> Work:
            time.sleep(0.02)
            return Done()

    with distributed.use_communicator(Working), flnb.record() as run:
        start("all_reduce", np.ones(3), "sum").wait()
    waits = run.table("wait")
    assert (waits["t1"] - waits["t0"]).max() > 15e6
