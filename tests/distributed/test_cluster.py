"""Ranks beside a program: cells run on all of them, are interrupted, fail, and leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import flnb
from flnb.distributed import Cluster, RankError
from flnb.distributed import cluster as module

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path("/dev/shm")
SUM = "import flnb\ntotal = flnb.distributed.all_reduce(flnb.ones(2)).tolist()"


@pytest.fixture(scope="module", params=["mpi", "threads"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if request.param == "mpi":
        pytest.importorskip("ipyparallel")
        pytest.importorskip("mpi4py")
    before = left_behind()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            patch.delenv(name, raising=False)
        made = Cluster(3, kind=request.param)
    with made:
        yield made
    assert_nothing_is_left(before)


def left_behind() -> set[str]:
    """Files in shared memory that no process uses, and processes, of clusters of this environment."""
    used, found = "", set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            used += "".join(line for line in (path / "maps").read_text().splitlines() if "/mpich_shm" in line)
        except OSError:
            continue
        if ("ipyparallel" in command or "flnb.distributed.nanny -m" in command) and sys.prefix in command:
            found.add(f"{path.name} {command}")
    files = [path.name for path in SHARED.glob("*") if path.name.startswith(("mpich_shm", "flnb_cluster"))]
    return found | {name for name in files if name not in used}


def assert_nothing_is_left(before: set[str]) -> None:
    """Other programs may begin and end meanwhile, and take a moment to clean up."""
    deadline = time.monotonic() + 15
    while rest := left_behind() - before:
        assert time.monotonic() < deadline, rest
        time.sleep(0.2)


def interrupt(arrivals: Path, ranks: int) -> dict[str, float]:
    """Ctrl-C half a second after each rank has made a file in a folder; the moment is in the dictionary then."""
    moment: dict[str, float] = {}

    def press() -> None:
        until = time.monotonic() + 60
        while len([*arrivals.iterdir()]) < ranks and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.5)
        moment["at"] = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    return moment


def test_cells_run_on_all_ranks_and_print_with_the_rank_in_front(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster["base"] = 10
    cluster.run("import flnb\nx = base + flnb.distributed.rank()\nprint('has', x)\nprint('a\\nb', end='')\nx * 2")
    assert cluster["x"] == [10, 11, 12]
    lines = capsys.readouterr().out.splitlines()
    for rank in range(3):
        of_rank = [line.removeprefix(f"rank {rank}: ") for line in lines if line.startswith(f"rank {rank}: ")]
        assert sorted(of_rank) == sorted([f"has {10 + rank}", "a", "b", str(20 + 2 * rank)])
    assert len(lines) == 12
    cluster.run(SUM)
    assert cluster["total"] == [[3.0, 3.0]] * 3


def test_processes_divide_the_processors(cluster: Cluster) -> None:
    if cluster.kind == "threads":
        pytest.skip("threads of one process share its pool of threads")
    cluster.run("import os; count = [os.environ.get(f'{name}_NUM_THREADS') for name in ('OMP', 'OPENBLAS')]")
    assert cluster["count"] == [[str(max(1, len(os.sched_getaffinity(0)) // 3))] * 2] * 3


def test_an_error_is_told_of_the_rank_that_made_it_and_the_ranks_go_on(cluster: Cluster) -> None:
    with pytest.raises(RankError) as caught:
        cluster.run("if flnb.distributed.rank() == 1:\n    1 / 0\nflnb.distributed.barrier()")
    first, *others = str(caught.value).splitlines()
    assert first == "rank 1: ZeroDivisionError: division by zero"
    assert all("CollectiveError" in line and "rank 1 has failed" in line for line in others)
    assert "1 / 0" in re.sub("\x1b.*?m", "", "\n".join(caught.value._render_traceback_()))
    cluster.run(SUM)
    assert cluster["total"] == [[3.0, 3.0]] * 3


def test_a_variable_that_a_rank_lacks_is_an_error_of_that_rank(cluster: Cluster) -> None:
    with pytest.raises(RankError, match=r"ranks 0, 1.*: NameError: name 'nope' is not defined"):
        cluster["nope"]


def test_ranks_that_wait_for_one_whose_cell_has_ended_are_told(cluster: Cluster) -> None:
    began = time.monotonic()
    with pytest.raises(RankError, match="rank 0 has ended"):
        cluster.run("if flnb.distributed.rank():\n    flnb.distributed.barrier()")
    assert time.monotonic() - began < 10
    cluster.run("if flnb.distributed.rank() == 2:\n    import time\n    time.sleep(0.5)\n" + SUM)
    assert cluster["total"] == [[3.0, 3.0]] * 3, "a cell that begins late on one rank is no error"


def test_an_interrupt_reaches_ranks_that_are_stuck_and_they_go_on(cluster: Cluster, tmp_path: Path) -> None:
    moment = interrupt(tmp_path, 3)
    with pytest.raises(KeyboardInterrupt) as caught:
        cluster.run(
            f"import flnb, time\nopen(f'{tmp_path}/{{flnb.distributed.rank()}}', 'w').close()\n"
            "if flnb.distributed.rank():\n    flnb.distributed.barrier()\nelse:\n    time.sleep(8)"
        )
    assert time.monotonic() - moment["at"] < 2
    if cluster.kind == "mpi":
        assert str(caught.value) == "rank 0: line 6, time.sleep(8)\nranks 1, 2: line 4, flnb.distributed.barrier()"
    cluster.run(SUM)
    assert cluster["total"] == [[3.0, 3.0]] * 3


def test_a_cell_that_python_cannot_read_is_an_error(cluster: Cluster) -> None:
    with pytest.raises((RankError, SyntaxError), match=r"SyntaxError|syntax"):
        cluster.run("x = = 1")
    cluster.run(SUM)


def test_ranks_are_recorded_on_one_clock(cluster: Cluster) -> None:
    run = cluster.run(
        "import flnb, time\nfor _ in range(6):\n    with flnb.step():\n        with flnb.scope('data.take'):\n"
        "            time.sleep(0.1 if flnb.distributed.rank() == 2 else 0.005)\n"
        "        flnb.distributed.all_reduce(flnb.ones(2))",
        record=True,
    )
    worst = run.collectives.who()[0]
    assert (worst["rank"], worst["scope"], len(run.collectives)) == (2, "data.take", 6)
    assert flnb.plot.collectives(run).layout.title.text == "Collective calls of ranks"
    assert cluster.run("1;") is None
    with pytest.raises(RankError):
        cluster.run("flnb.distributed.all_reduce(flnb.ones(2))\nif flnb.distributed.rank():\n    1 / 0", record=True)
    assert len(cluster.recorded.collectives) == 1, "also of a cell that failed"


def test_recordings_of_ranks_have_whole_call_stacks_on_request(cluster: Cluster) -> None:
    source = "import flnb\ndef inner():\n    return flnb.exp(flnb.ones(2))\ninner();"
    for stacks in (False, True):
        run = cluster.run(source, record=True, stacks=stacks)
        for one in [run] if cluster.kind == "threads" else run.values():
            places = [one.catalog.contexts.items[context].line for context in one.table("op")["context"].tolist()]
            assert len(places) >= 2
            for place in places:
                assert re.findall(r":(\d): ", place) == (["3", "4"] if stacks else ["3"])
            assert one.meta["stacks"] == stacks
    with pytest.raises(ValueError, match=r"Cluster\.run\(stacks=True\): expected record=True, too"):
        cluster.run(source, stacks=True)


class Board:
    """A dashboard's hub: its source of frames."""

    source: Any = None

    def follow(self, source: Any) -> None:
        self.source = source


def test_calls_of_processes_are_joined_in_the_kernel_while_they_run(cluster: Cluster) -> None:
    if cluster.kind == "threads":
        pytest.skip("the dashboard follows the threads of its own process")
    hub = Board()
    cluster.show_on(hub, 1)
    seen: list[Any] = []
    watching = threading.Event()

    def look() -> None:
        while not watching.wait(0.1):
            seen.append(hub.source.frame(keyframe=True)[0])

    thread = threading.Thread(target=look)
    thread.start()
    cluster.run(
        "import flnb, time\nfor _ in range(15):\n    with flnb.step():\n        with flnb.scope('data.take'):\n"
        "            time.sleep(0.1 if flnb.distributed.rank() == 2 else 0.005)\n"
        "        flnb.distributed.all_reduce(flnb.ones(2))"
    )
    watching.set()
    thread.join()
    assert any(0 < frame.get("collectives", {"rows": 0})["rows"] < 15 for frame in seen), "while the cell runs"
    frame = hub.source.frame(keyframe=True)[0]
    found = frame["collectives"]
    assert found["rows"] == 15, "the last calls are there when the cell has ended"
    assert (found["late"][0]["rank"], found["late"][0]["scope"]) == (2, "data.take")
    assert [each["process"] for each in found["ranks"]] == list(cluster._ranks.pids)
    assert frame["run"]["name"] == "ranks"


def test_all_calls_of_a_cell_are_shown_once_it_has_ended(cluster: Cluster) -> None:
    if cluster.kind == "threads":
        pytest.skip("the dashboard follows the threads of its own process")
    cluster.run(SUM)
    hub = Board()
    cluster.show_on(hub, 0)
    cluster.run(SUM)
    for calls in (40, 30, 1):  # a rank ends at once after its last call
        ends = len(hub.source.collectives.window.table("collective")["t1"])
        rows = hub.source.frame(keyframe=True)[0]["collectives"]["rows"]
        cluster.run(f"for _ in range({calls}):\n    flnb.distributed.all_reduce(flnb.ones(2))")
        assert hub.source.frame(keyframe=True)[0]["collectives"]["rows"] == rows + calls
        assert len(hub.source.collectives.window.table("collective")["t1"]) == ends + 3 * calls


def test_a_rank_that_died_is_named_and_the_next_cell_says_what_to_do() -> None:
    pytest.importorskip("ipyparallel")
    pytest.importorskip("mpi4py")
    before = left_behind()
    with Cluster(3, kind="mpi") as cluster:
        with pytest.raises(RankError) as caught:
            cluster.run(
                "import flnb, os, signal\nif flnb.distributed.rank() == 2:\n"
                "    os.kill(os.getpid(), signal.SIGKILL)\nflnb.distributed.barrier()"
            )
        first, *others = str(caught.value).splitlines()
        assert first.startswith("rank 2: its process ")
        assert first.endswith("has died")
        assert len(others) == 2
        assert all("rank 2 (process " in line for line in others)
        with pytest.raises(RuntimeError, match=r"rank 2 \(process \d+\) died; make new ones"):
            cluster.run(SUM)
    assert_nothing_is_left(before)


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_nothing_is_left_of_a_program_that_ends_without_stop(how: str) -> None:
    pytest.importorskip("ipyparallel")
    pytest.importorskip("mpi4py")
    before = left_behind()
    end = "os.kill(os.getpid(), signal.SIGKILL)" if how == "kill" else "sys.exit(0)"
    program = f"import flnb, os, signal, sys\nflnb.distributed.Cluster(2, kind='mpi')\n{end}"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False, capture_output=True)
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 0), done.stderr
    assert_nothing_is_left(before)


def test_without_ipyparallel_ranks_are_threads_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with Cluster(2) as cluster:
        assert cluster.kind == "threads"
    reason = "MPI processes need ipyparallel, which pip install 'flnb[parallel]' installs"
    assert capsys.readouterr().out == f"2 ranks, threads of this process: {reason}\n"


def test_a_new_cluster_ends_the_one_before() -> None:
    first = Cluster(2, kind="threads")
    with Cluster(2, kind="threads"), pytest.raises(RuntimeError, match=r"was stopped; make a new one: .*Cluster\(2\)"):
        first.run("1")
    assert Cluster.active is None
    with pytest.raises(ValueError, match=r"Cluster\(kind='mpl'\): expected 'mpi', 'threads' or None"):
        Cluster(2, kind="mpl")


def test_the_magic_runs_a_cell_on_the_active_cluster() -> None:
    pytest.importorskip("IPython")
    from flnb.magics import Magics

    if Cluster.active is not None:
        Cluster.active.stop()
    magics: Any = Magics(None)
    with pytest.raises(RuntimeError, match=r"no ranks run; start some with: cluster = flnb\.distributed\.Cluster\(4\)"):
        magics.ranks("", "1")
    with Cluster(2, kind="threads") as cluster:
        magics.ranks("", "import flnb\nx = flnb.distributed.rank()")
        assert cluster["x"] == [0, 1]
        for line in ("all", "--stacks", "--record all"):
            with pytest.raises(ValueError, match=f"%%ranks: got '{line}'; expected nothing, --record or --record --st"):
                magics.ranks(line, "1")
