"""Distributed training under a real mpiexec: equality with one process, bits, memory, checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed: no processes to start")

SCRIPT = Path(__file__).with_name("steps.py")


def launch(ranks: int, *arguments: str, folder: Path) -> None:
    """Run the script on so many ranks, which must end well."""
    command = [sys.executable, "-m", "flnb.cli", "launch", "-n", str(ranks), str(SCRIPT), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("what", ["equal", "sharded", "layers", "uneven"])
def test_training_equals_that_of_one_process(what: str, ranks: int, tmp_path: Path) -> None:
    launch(ranks, what, folder=tmp_path)


def test_memory_is_what_a_dry_run_predicts(tmp_path: Path) -> None:
    launch(2, "memory", folder=tmp_path)


def test_checkpoints_load_on_another_number_of_ranks(tmp_path: Path) -> None:
    launch(4, "save", "last.safetensors", "3", folder=tmp_path)
    for ranks in (1, 2, 3):
        launch(ranks, "load", "last.safetensors", "3", folder=tmp_path)
