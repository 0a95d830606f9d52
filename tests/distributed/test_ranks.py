"""Recordings of several ranks: one clock, one file."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import intern, schema
from flnb_telemetry.formats.parquet import RunFileError
from flnb_telemetry.ranks import Ranks

import flnb
from flnb import cli, distributed
from tests.distributed.test_mpi import launch

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000


def recording(rank: int, calls: list[tuple[float, float]], host: str = "a", **meta: Any) -> flnb.telemetry.Recording:
    """A recording by hand: begin and end of each call in ms."""
    run = flnb.telemetry.Recording(f"run {rank}")
    group = intern.groups.id_of(intern.GroupInfo("by hand", rank, 2, host, 10 + rank))
    plan = intern.plans.id_of(intern.Plan("barrier", "communication", (), "uint8", 0)) << schema.PLAN_SHIFT
    rows = []
    for seq, (begin, end) in enumerate(calls, start=1):
        t0, t1 = round(begin * MS), round(end * MS)
        rows.append((schema.COLLECTIVE_BEGIN | plan, t0, seq, group, 0, 0, -1, 0))
        rows.append((schema.COLLECTIVE | plan, t0, t1, seq, group, 0, -1, 0))
        rows.append((schema.WAIT | plan, t0, t1, seq, group, 0, 0, 0))
    run.feed(1, np.array(rows, np.int64).reshape(-1, schema.WORDS))
    run.end, run.state, run.meta = run.start + 1, "finished", {"rank": rank, "host": host} | meta
    return run


def test_ranks_of_one_host_share_a_clock() -> None:
    ranks = Ranks([recording(1, [(13, 20)]), recording(0, [(10, 20)])])
    assert list(ranks) == [0, 1]
    assert ranks.offsets == ranks.bounds == {0: 0, 1: 0}
    assert ranks.collectives.late_ns.tolist() == [3 * MS]
    assert ranks[1].table("collective")["t0"].tolist() == [13 * MS]


def test_one_rank_alone_says_of_how_many_it_is_and_not_who_was_late() -> None:
    alone, _ = runs = [recording(rank, [(10 + rank, 20)]) for rank in range(2)]
    assert repr(alone.collectives).splitlines() == [
        "rank 0 of 2, 0 steps: 1 barrier", "who was late is unknown: merge the others, by flnb merge or "
        "flnb.telemetry.Ranks",
    ]  # fmt: skip
    assert "rank 0 of 2" in alone.collectives._repr_html_()
    whole = Ranks(runs).collectives
    assert (whole.size, whole.partial) == (2, "")
    assert repr(whole).startswith("2 ranks, 0 steps: 1 barrier\n")


def test_a_measured_offset_moves_times_and_not_the_recording() -> None:
    other = recording(1, [(1013, 1020)], "b", clock_offset=-1000 * MS, clock_bound=7)
    ranks = Ranks([recording(0, [(10, 20)]), other])
    assert (ranks.offsets[1], ranks.bounds[1]) == (-1000 * MS, 7)
    assert ranks.collectives.late_ns.tolist() == [3 * MS]
    assert ranks.collectives.bounds == (0, 7)
    assert ranks[1].table("collective")["t0"].tolist() == [1013 * MS]


def test_the_best_measurement_of_the_recording_goes_before_that_at_its_beginning() -> None:
    other = recording(1, [(1013, 1020)], "b", clock_offset=-900 * MS, clock_bound=50)
    syncs = [(schema.CLOCK_SYNC, 1, 0, -999 * MS, 40, 0, 0, 0), (schema.CLOCK_SYNC, 2, 0, -1000 * MS, 20, 0, 0, 0)]
    other.feed(1, np.array(syncs, np.int64))
    assert Ranks([recording(0, [(10, 20)]), other]).offsets[1] == -1000 * MS


def test_clocks_of_hosts_without_measurement_are_found_from_their_calls() -> None:
    """Nobody leaves a barrier before all have come: the truth is -1000 ms, known to 0.5 ms by two calls."""
    first = [(10, 20), (30, 31)]
    other = [(1019.5, 1020.5), (1024, 1031)]
    ranks = Ranks([recording(0, first), recording(1, other, "b")])
    # end of each rank not before begin of the other: from 10 - 1020.5, 30 - 1031; 20 - 1019.5, 31 - 1024
    assert (ranks.offsets[1], ranks.bounds[1]) == (round(-1000.25 * MS), round(0.75 * MS))
    with pytest.raises(ValueError, match="no calls in common: their clocks cannot be compared"):
        Ranks([recording(0, first), recording(1, [], "b")])


def test_a_measurement_that_the_calls_contradict_is_not_used() -> None:
    """The clock has drifted by 50 ms since it was compared."""
    other = recording(1, [(1060, 1070)], "b", clock_offset=-1000 * MS, clock_bound=7)
    ranks = Ranks([recording(0, [(10, 20)]), other])
    assert (ranks.offsets[1], ranks.bounds[1]) == (-1050 * MS, 10 * MS)


def test_wrong_recordings_are_answered() -> None:
    with pytest.raises(ValueError, match="'run 0' and 'run 0' are both of rank 0"):
        Ranks([recording(0, []), recording(0, [])])
    with pytest.raises(ValueError, match="got no recordings"):
        Ranks([])
    with flnb.record("plain") as run:
        flnb.ones(2)
    with pytest.raises(ValueError, match="'plain' does not say of which rank it is"):
        Ranks([run])
    with flnb.record("threads") as run:
        distributed.run_threads(2, distributed.barrier)
    with pytest.raises(ValueError, match="of the ranks 0, 1, threads of one process"):
        Ranks([run])
    ranks = Ranks([recording(0, []), recording(1, [])])
    with pytest.raises(KeyError, match="no rank 7 in this run; it has 0, 1"):
        ranks[7]
    with pytest.raises(AttributeError, match=r"has no 'ops'; take the recording of one rank, such as run\[0\].ops"):
        ranks.ops  # noqa: B018


def test_a_merged_file_holds_all_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Ranks([recording(0, [(10, 20)]), recording(1, [(13, 20)])]).save(tmp_path / "all.flnb")
    again = flnb.load_run(tmp_path / "all.flnb")
    assert isinstance(again, Ranks)
    assert again.collectives.late_ns.tolist() == [3 * MS]
    assert "barrier" in repr(again)
    assert again._repr_html_()
    assert cli.main(["export", str(tmp_path / "all.flnb"), "--to", "html"]) == 0
    assert '"collectives":' in (tmp_path / "all.html").read_text()
    assert cli.main(["export", str(tmp_path / "all.flnb"), "--to", "csv"]) == 2
    assert "all.flnb has the ranks 0, 1; only --to html, and --to svg --view" in capsys.readouterr().err
    shown = flnb.view(tmp_path / "all.flnb")
    content, _ = next(shown.answers.frames[0].frames())
    assert [one["rank"] for one in content["collectives"]["ranks"]] == [0, 1]
    with zipfile.ZipFile(tmp_path / "all.flnb") as whole, zipfile.ZipFile(tmp_path / "cut.flnb", "w") as archive:
        for name in ("manifest.json", "rank-0.flnb"):
            archive.writestr(name, whole.read(name))
        archive.writestr("rank-1.flnb", whole.read("rank-1.flnb")[:-100])
    with pytest.raises(RunFileError, match="damaged or no flnb run"):
        flnb.load_run(tmp_path / "cut.flnb")


def test_merge_overwrites_nothing_and_names_ranks_that_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(tmp_path / f"run-{rank}.flnb") for rank in (0, 1)]
    for rank, path in enumerate(paths):
        run = recording(rank, [(10, 20)])
        run.meta["ranks"] = 2
        run.save(path)
    before = (tmp_path / "run-0.flnb").read_bytes()
    assert cli.main(["merge", *paths]) != 0
    assert "exists; the first argument is the file to write" in capsys.readouterr().err
    assert (tmp_path / "run-0.flnb").read_bytes() == before
    assert cli.main(["merge", str(tmp_path / "all.flnb"), paths[0]]) == 0
    assert "no recording of rank 1" in "".join(capsys.readouterr())


@pytest.mark.parametrize(("cause", "scope"), [("data", "data.take"), ("module", "dataparallel.module.1")])
def test_merge_of_real_ranks_names_the_late_one(cause: str, scope: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: no processes to start")
    done = launch(2, "recorded", cause, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "flnb.cli", "merge", "run.flnb", "run-0.flnb", "run-1.flnb"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    ranks = flnb.load_run(tmp_path / "run.flnb")
    assert [ranks[rank].meta["rank"] for rank in ranks] == [0, 1]
    calls = ranks.collectives
    assert (calls.who()[0]["rank"], calls.who()[0]["scope"]) == (1, scope)
    assert calls.steps.tolist() == list(range(4))
    assert set(calls.holds[calls.bucket >= 0]) == {"0, 1.linear · 4 params"}
    assert calls.lost_ns[1] > 4 * 50 * MS
    assert calls.lost_ns[0] < calls.lost_ns[1] / 2
    command[3:] = ["view", "run.flnb"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert scope in done.stdout


def test_clocks_without_rank_0_are_those_of_the_first_rank() -> None:
    runs = []
    for rank, offset in ((1, 1000), (2, 5000)):
        with flnb.record() as run:
            pass
        run.meta.update(rank=rank, ranks=3, host=f"host {rank}", process=rank, clock_offset=offset, clock_bound=10)
        runs.append(run)
    ranks = flnb.telemetry.Ranks(runs)
    assert ranks.offsets == {1: 0, 2: 4000}
    assert ranks.bounds == {1: 0, 2: 20}
