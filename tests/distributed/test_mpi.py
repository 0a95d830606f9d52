"""Processes under a real mpiexec; faults are in `tests/faults`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flnb_backends.comm import mpi

from tests.faults import trial

pytest.importorskip("mpi4py", reason="mpi4py is not installed: no processes to start")

SCRIPT = Path(__file__).with_name("scripts.py")


def launch(ranks: int, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script on so many ranks, as a user does."""
    command = [sys.executable, "-m", "flnb.cli", "launch", "-n", str(ranks), str(SCRIPT), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=folder, env=environment, check=False
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_check_communicator_passes_on_mpi(ranks: int, tmp_path: Path) -> None:
    done = launch(ranks, "kit", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_check_communicator_passes_on_open_mpi(tmp_path: Path) -> None:
    trial.need("openmpi")
    command = trial.command(4, SCRIPT, "kit")
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=trial.environment("openmpi"),
        check=False,
    )
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


def test_the_first_failure_is_named_not_those_that_gave_up(tmp_path: Path) -> None:
    done = launch(3, "fault", folder=tmp_path)
    assert "ValueError: a mistake of the user" in done.stderr
    assert "flnb launch: rank 2 failed: it ended with status 1" in done.stderr


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "flight.json").mkdir()
    done = launch(2, "fault", folder=tmp_path)
    assert done.returncode == 1
    assert "flight.json could not be written" in done.stderr


def test_a_missing_script_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flnb.cli", "launch", "-n", "2", "nowhere.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "flnb launch: no file 'nowhere.py'; expected a Python script" in done.stderr


def test_a_fork_of_a_rank_is_no_rank(tmp_path: Path) -> None:
    done = launch(2, "fork", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_sums_of_many_booleans_do_not_overflow() -> None:
    assert mpi._wide(np.ones(3, np.bool_)).dtype.itemsize > 1, "256 ranks"


def test_closed_groups_leave_room_for_others(tmp_path: Path) -> None:
    done = launch(2, "splits", folder=tmp_path)
    assert done.returncode == 0, done.stderr
