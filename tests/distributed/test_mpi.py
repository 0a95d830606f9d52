"""Processes under a real mpiexec: results, and every fault named by every survivor within three seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed: no processes to start")

SCRIPT = Path(__file__).with_name("scripts.py")
SHARED = Path("/dev/shm")


def launch(ranks: int, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script on so many ranks, as a user does."""
    command = [sys.executable, "-m", "flnb.cli", "launch", "-n", str(ranks), str(SCRIPT), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=folder, env=environment, check=False
    )


def left_behind() -> set[str]:
    """Files in shared memory that a job of ours could leave."""
    return {path.name for path in SHARED.glob("*") if path.name.startswith(("mpich_shm", "flnb_"))}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_check_communicator_passes_on_mpi(ranks: int, tmp_path: Path) -> None:
    done = launch(ranks, "kit", folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_of_parts_are_those_of_the_whole(ranks: int, tmp_path: Path) -> None:
    done = launch(ranks, "gradients", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_pipeline_of_processes_gives_the_gradients_of_one(tmp_path: Path) -> None:
    done = launch(3, "pipeline", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_asynchronous_ranks_lose_no_exchange(tmp_path: Path) -> None:
    done = launch(3, "asynchronous", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_processes_that_load_data_are_no_ranks(tmp_path: Path) -> None:
    done = launch(2, "prefetch", folder=tmp_path)
    assert done.returncode == 0, done.stderr


FAULTS = {
    "killed": (["rank 2 (process", "has died; its last call was 1, all_reduce float32[65536], sum"], 2, 137),
    "stopped": (["rank 2 (process", "is stopped (SIGSTOP)"], 2, 1),
    "raises": (["rank 2 has failed; its last call was 1"], 2, 1),
    "late": (["rank 2 has not come: its last call was 1"], 2, 1),
    "count": (["rank 2", "float32[32768]", "float32[65536]"], 3, 1),
    "dtype": (["rank 2", "int32[65536]", "float32[65536]"], 3, 1),
    "op": (["rank 2", "broadcast float32[65536], 0", "all_reduce float32[65536], sum"], 3, 1),
}
"""What every survivor says, how many survive, and the exit status of `flnb launch`."""


@pytest.mark.parametrize("kind", FAULTS)
def test_every_survivor_names_the_rank(kind: str, tmp_path: Path) -> None:
    before, began = left_behind(), time.monotonic()
    done = launch(3, "fault", kind, folder=tmp_path)
    words, survivors, status = FAULTS[kind]
    said = [line for line in done.stderr.splitlines() if line.startswith("flnb.interface.communicator.CollectiveError")]
    assert len(said) == survivors, done.stderr
    for line in said:
        assert all(word in line for word in words), line
    assert done.returncode == status, done.stderr
    assert "flnb launch: rank" in done.stderr
    flight = json.loads((tmp_path / "flight.json").read_text())
    (rows,) = flight["groups"]
    assert [row["rank"] for row in rows] == [0, 1, 2]
    assert rows[0]["calls"]["1"] == "all_reduce float32[65536], sum"
    assert left_behind() <= before
    assert time.monotonic() - began < 60
    assert not processes(tmp_path), "ranks are left behind"


def processes(folder: Path) -> list[int]:
    """Processes that run in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if path.resolve() == folder.resolve():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_the_first_failure_is_named_not_those_that_gave_up(tmp_path: Path) -> None:
    done = launch(3, "fault", "raises", folder=tmp_path)
    assert "ValueError: a mistake of the user" in done.stderr
    assert "flnb launch: rank 2 failed: it ended with status 1" in done.stderr


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "flight.json").mkdir()
    done = launch(2, "fault", "raises", folder=tmp_path)
    assert done.returncode == 1
    assert "flight.json could not be written" in done.stderr


def test_a_missing_script_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flnb.cli", "launch", "-n", "2", "nowhere.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "flnb launch: no file 'nowhere.py'; expected a Python script" in done.stderr
