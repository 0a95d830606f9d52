"""What `flnb launch` says of ranks that failed, ended early or were interrupted, and what it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flnb.distributed import launching

pytest.importorskip("mpi4py", reason="mpi4py is not installed: no processes to start")

COMMAND = [sys.executable, "-m", "flnb.cli", "launch", "-n", "2", "script.py"]
BEGIN = """
import os, signal, sys, time
import numpy as np
from flnb import distributed
from flnb.dispatch import communication
rank = distributed.init().rank
distributed.current().timeout = 2.0
"""


def launch(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script on two ranks."""
    (folder / "script.py").write_text(BEGIN + script)
    return subprocess.run(COMMAND, capture_output=True, text=True, timeout=60, cwd=folder, check=False)


def last(done: subprocess.CompletedProcess[str]) -> str:
    """What the launcher said."""
    return next(line for line in done.stderr.splitlines() if line.startswith("flnb launch: "))


@pytest.mark.parametrize("own", [True, False])
def test_notes_of_what_to_remove_are_not_followed_elsewhere(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody may write where folders of launchers lie: a planted one must not have files of the user deleted."""
    monkeypatch.setattr(launching, "shared_folder", lambda: str(tmp_path))
    kept = tmp_path / "precious"
    kept.write_text("data")
    planted = tmp_path / "flnb_flight_planted"
    planted.mkdir()
    (planted / "lock").touch()
    (planted / "shared_1").write_text(f"{kept}\n/dev/shm/mpich_shm_/../..{kept}")
    link = Path(f"/dev/shm/mpich_shm_{os.getpid()}_link")
    link.symlink_to(tmp_path)
    (planted / "shared_2").write_text(str(link / "precious"))
    if not own:
        monkeypatch.setattr(os, "getuid", lambda: 1 + planted.stat().st_uid)
    try:
        launching._sweep()
    finally:
        link.unlink()
    assert kept.read_text() == "data"
    assert planted.exists() == (not own)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"OMP": "4", "OPENBLAS": "4"}),
        ({"OMP": "7"}, {}),
        ({"OPENBLAS": "7"}, {"OMP": "4"}),
        ({"OPENBLAS": "7", "OMP": "2"}, {}),
        ({"OPENBLAS": "6", "FLNB_LAB": "6"}, {"OMP": "4", "OPENBLAS": "4"}),
    ],
    ids=["unset", "OMP", "OPENBLAS", "both", "lab"],
)
def test_ranks_divide_the_processors_unless_the_user_has_set_threads(
    given: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP", "OPENBLAS", "FLNB_LAB"):
        kept = "FLNB_LAB_THREADS" if name == "FLNB_LAB" else f"{name}_NUM_THREADS"
        monkeypatch.delenv(kept, raising=False)
        if name in given:
            monkeypatch.setenv(kept, given[name])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(13)), raising=False)
    wanted = {f"{name}_NUM_THREADS": count for name, count in expected.items()}
    assert launching.thread_settings(3) == wanted
    assert set(launching.thread_settings(99).values()) <= {"1"}


def test_a_launched_rank_has_its_share_of_threads(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS'])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        COMMAND, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment, check=False
    )
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert sorted(done.stdout.splitlines()) == [f"rank {rank}: {share} {share}" for rank in range(2)], done.stderr


def test_the_status_is_that_of_the_rank_that_ended_while_others_waited(tmp_path: Path) -> None:
    done = launch("distributed.barrier()\nif rank == 1:\n    sys.exit(3)\ndistributed.barrier()\n", tmp_path)
    assert done.returncode == 3
    assert last(done).startswith("flnb launch: rank 1 failed: it ended with status 3; its last call was 1, barrier;")


def test_a_rank_that_ended_without_an_error_while_others_waited_is_named(tmp_path: Path) -> None:
    done = launch("distributed.barrier()\nif rank == 1:\n    sys.exit()\ndistributed.barrier()\n", tmp_path)
    assert done.returncode == 1
    assert last(done).startswith(
        "flnb launch: rank 1 ended with status 0 while others waited for it; rank 0 had come to call 2, barrier; "
        "rank 1 had not: its last call was 1, barrier;"
    )


def test_a_rank_that_fails_before_any_call_has_made_none(tmp_path: Path) -> None:
    done = launch("if rank == 1:\n    raise ValueError('a mistake')\ndistributed.barrier()\n", tmp_path)
    assert last(done).startswith("flnb launch: rank 1 failed: it ended with status 1; it has made no call; ")


def test_an_interrupt_is_told_with_who_waited_for_whom(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        BEGIN + "distributed.current().timeout = 60\ndistributed.barrier()\nopen(f'ready_{rank}', 'w').close()\n"
        "if rank == 1:\n    time.sleep(60)\ndistributed.barrier()\n"
    )
    job = subprocess.Popen(COMMAND, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True)
    end = time.monotonic() + 30
    while len(list(tmp_path.glob("ready_*"))) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does
    _, stderr = job.communicate(timeout=30)
    assert job.returncode == 130
    assert (
        "flnb launch: interrupted by SIGINT; rank 0 had come to call 2, barrier; rank 1 had not: "
        "its last call was 1, barrier; the last calls of all ranks are in flight.json"
    ) in stderr


def test_the_report_says_how_each_rank_ended_and_is_never_an_old_one(tmp_path: Path) -> None:
    launch("distributed.barrier()\nif rank == 1:\n    os.kill(os.getpid(), 11)\ndistributed.barrier()\n", tmp_path)
    report = json.loads((tmp_path / "flight.json").read_text())
    assert report["ended"][0]["rank"] == 1
    assert report["ended"][0]["how"] == "was killed by SIGSEGV"
    assert report["groups"][0][1]["state"] == "was between calls when it was killed by SIGSEGV"
    assert launch("distributed.barrier()\n", tmp_path).returncode == 0
    assert not (tmp_path / "flight.json").exists()


def test_each_line_of_output_begins_with_the_rank_that_printed_it(tmp_path: Path) -> None:
    done = launch("print('one\\ntwo', rank)\nsys.stderr.write(f'no end {rank}')\n", tmp_path)
    assert sorted(done.stdout.splitlines()) == ["rank 0: one", "rank 0: two 0", "rank 1: one", "rank 1: two 1"]
    assert sorted(done.stderr.splitlines()) == ["rank 0: no end 0", "rank 1: no end 1"]
