"""Live views of several processes joined in one."""

from __future__ import annotations

import json
import os
import threading
import time
from multiprocessing.connection import Listener
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import intern, pump, schema
from flnb_telemetry.joined import JoinedLive, Message, RankSource
from flnb_telemetry.live.collectives import ROWS

import flnb
from flnb import distributed, nn
from tests.distributed.test_live_collectives import columns
from tests.distributed.test_mpi import launch

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000


def message(rank: int, number: int, calls: list[tuple[int, float, float]], **more: Any) -> Message:
    """A message by hand: calls of a rank of three as (sequence number, begin, end) in ms; end 0: not ended."""
    rows = []
    for seq, begin, end in calls:
        rows.append((schema.COLLECTIVE_BEGIN, round(begin * MS), seq, 0, 0, 0, -1, 0))
        if end:
            rows.append((schema.COLLECTIVE, round(begin * MS), round(end * MS), seq, 0, 0, -1, 0))
            rows.append((schema.WAIT, round(begin * MS), round(end * MS), seq, 0, 0, 0, 0))
    tables = {
        "plan": [["all_reduce", "communication", [3], "float32", 12, 0, [], 0]],
        "context": [["", 0]],
        "group": [["mpi", rank, 3, f"host {rank}", 50 + rank]],
    }
    found: Message = {
        "type": "flnb.rank", "number": number, "name": "by hand", "state": "recording", "rank": rank, "ranks": 3,
        "host": f"host {rank}", "process": 50 + rank, "now": time.perf_counter_ns(), "start": 0, "events": 1,
        "offset": 0, "bound": 0, "states": "{}", "tables": json.dumps(tables),
        "rows": np.array(rows, np.int64).tobytes(), "lanes": np.zeros(len(rows), np.int32).tobytes(),
    }  # fmt: skip
    return found | more


def section(joined: JoinedLive) -> tuple[dict[str, Any], dict[str, Any]]:
    content, buffer = joined.frame(keyframe=True)
    json.dumps(content, allow_nan=False)
    return content["collectives"], columns(content, buffer)


def test_messages_of_ranks_are_joined_on_one_clock() -> None:
    joined = JoinedLive()
    joined.receive(message(0, 1, [(1, 10, 31)]))
    joined.receive(message(1, 1, [(1, 1030, 1031)], offset=-1000 * MS, bound=5000))
    joined.receive(message(2, 1, [(1, 12, 31)]))
    about, cols = section(joined)
    assert [(one["rank"], one["host"], one["bound_ns"]) for one in about["ranks"]] == [
        (0, "host 0", 0), (1, "host 1", 5000), (2, "host 2", 0),
    ]  # fmt: skip
    assert about["rows"] == 1
    assert (cols["begin"] - cols["begin"][0]).tolist() == [0, 20, 2]
    assert cols["late_rank"].tolist() == [1]
    assert cols["late"].tolist() == [19.0]
    assert about["groups"] == ["mpi"]
    assert about["ops"] == ["all_reduce"]


def test_messages_may_come_late_in_another_order_or_not_at_all() -> None:
    joined = JoinedLive()
    joined.receive(message(0, 2, [(2, 20, 21)]))
    joined.receive(message(2, 5, [(2, 20, 21), (3, 30, 0)]))
    joined.receive(message(0, 1, [(1, 10, 11)]))
    about, cols = section(joined)
    assert cols["seq"].tolist() == [1, 2, 3]
    assert np.isnan(cols["last"]).all(), "rank 1 has not been heard of"
    assert np.isnan(cols["end"].reshape(2, 3)[1]).tolist() == [True, False, True]
    assert joined.ranks[0]["number"] == 2
    # the call that is open since 30 ms: of its three ranks one was never heard of
    assert [row["rank"] for row in about["stuck"]["rows"]] == [0, 1, 2]
    assert [row["state"] for row in about["stuck"]["rows"]] == ["has not come", "has not come", "waits"]
    assert about["stuck"]["rows"][1]["last"] == "none"


def test_a_rank_that_begins_anew_counts_its_messages_from_one() -> None:
    joined = JoinedLive()
    joined.receive(message(0, 9, [], state="finished"))
    joined.receive(message(0, 1, [], state="recording", start=5))
    assert joined.ranks[0]["number"] == 1
    assert joined.state == "recording"


def test_what_other_ranks_know_of_one_that_died_is_shown() -> None:
    joined = JoinedLive()
    for rank in range(3):
        joined.receive(message(rank, 1, [(1, 10, 11)]))
    joined.receive(message(0, 2, [(2, 20, 0)], states='{"2": "rank 2 (process 52) has died"}'))
    joined.receive(message(1, 2, [(2, 20, 0)]))
    about, _ = section(joined)
    assert about["stuck"]["rows"][2]["state"] == "rank 2 (process 52) has died"
    assert "rank 2 has not come" in about["stuck"]["text"]


def test_a_joined_view_is_bounded() -> None:
    joined = JoinedLive()
    for number in range(1, 120):
        calls = [(1000 * number + i, 1e3 * number + i, 1e3 * number + i + 0.5) for i in range(1000)]
        joined.receive(message(0, number, calls))
    window = joined.collectives.window
    assert sum(len(window.table(kind)["lane"]) for kind in ("collective_begin", "collective", "wait")) <= ROWS
    began = time.process_time()
    about, _ = section(joined)
    assert time.process_time() - began < 3
    assert about["rows"] <= 2000


def test_the_view_of_the_chosen_rank_is_passed_on() -> None:
    joined = JoinedLive(rank=0)

    def work() -> None:
        with flnb.scope("data"):
            time.sleep(0.05)
        distributed.all_reduce(flnb.ones(3))

    with RankSource(joined.receive, "digits"):
        distributed.run_threads(2, work)
    content, buffer = joined.frame(keyframe=False)
    assert content["keyframe"]
    assert content["run"]["name"] == "digits"
    assert content["run"]["state"] == "finished"
    assert columns(content, buffer)["seq"].tolist() == [1]
    code, at, count = content["arrays"]["op.count"]
    assert np.frombuffer(buffer, {"f64": np.float64}[code], count, at).sum() > 0
    again, more = joined.frame(keyframe=False)
    assert not again["keyframe"]
    assert len(more) < len(buffer)


def test_a_transport_that_fails_ends_the_messages_and_not_the_program(caplog: pytest.LogCaptureFixture) -> None:
    def send(_: Message) -> None:
        raise OSError("no such place")

    with RankSource(send):
        y = flnb.ones(3) * 2.0
        time.sleep(0.3)
    assert y.tolist() == [2.0] * 3
    assert "this rank's live view stopped" in caplog.text
    assert pump.session is None


def test_ids_of_other_processes_are_translated() -> None:
    def work() -> None:
        model = distributed.DataParallel(nn.Sequential(nn.ReLU(), nn.Linear(3, 3, bias=False)))
        model(flnb.ones((1, 3))).sum().backward()
        model.close()

    joined = JoinedLive()
    intern.contexts.id_of(intern.Context("only here", 0))
    with RankSource(joined.receive, frames=False):
        distributed.run_threads(2, work)
    about, cols = section(joined)
    held = dict(zip(cols["bucket"].tolist(), cols["holds"].tolist(), strict=True))
    assert [about["names"][held[bucket]] for bucket in (-1, 0)] == ["", "1.weight"]
    assert [info.name for info in joined.catalog.groups.items[1:]]
    assert "only here" not in {context.scope for context in joined.catalog.contexts.items}


def test_two_processes_under_mpiexec(tmp_path: Path) -> None:
    """A rank that is slow in its data is named, with the reason, while the program runs."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: no processes to start")
    joined = JoinedLive()
    path = str(tmp_path / "socket")
    seen: list[dict[str, Any]] = []

    def hear(connection: Any) -> None:
        try:
            while True:
                joined.receive(connection.recv())
        except EOFError:
            pass

    with Listener(path, "AF_UNIX") as listener:

        def accept() -> None:
            for _ in range(2):
                threading.Thread(target=hear, args=(listener.accept(),), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        os.environ["FLNB_TEST_SOCKET"] = path
        try:
            runner = threading.Thread(target=lambda: seen.append({"done": launch(2, "live", folder=tmp_path)}))
            runner.start()
            deadline, about = time.monotonic() + 60, None
            while time.monotonic() < deadline and runner.is_alive():
                time.sleep(0.2)
                content, _ = joined.frame(keyframe=True)
                about = content.get("collectives")
                if about and about["late"] and about["late"][0]["scope"] == "data.take":
                    break
            runner.join()
        finally:
            del os.environ["FLNB_TEST_SOCKET"]
    assert seen[0]["done"].returncode == 0, seen[0]["done"].stderr
    assert about is not None
    assert (about["late"][0]["rank"], about["late"][0]["scope"]) == (1, "data.take")
    assert {one["process"] for one in about["ranks"]} != {os.getpid()}
