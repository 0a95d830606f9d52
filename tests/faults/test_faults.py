"""A sample of `python -m tests.faults`: each kind of fault once, under one MPI or the other, drawn with a seed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from flnb.distributed.launching import _sweep
from tests.faults import trial

pytest.importorskip("mpi4py", reason="mpi4py is not installed: no processes to start")

SEED = int(os.environ.get("FLNB_FAULTS_SEED", "12"))


def sample() -> list[tuple[str, str, bool]]:
    """Kind, engine, and whether on two hosts: both engines equally often."""
    draw = random.Random(SEED)
    kinds = [(kind, False) for kind in [*trial.KINDS, "mpiexec killed"]]
    kinds += [(kind, True) for kind in draw.sample(trial.HOSTS, 2)]
    draw.shuffle(kinds)
    engines = list(trial.engines())
    return [(kind, engines[i % len(engines)], hosts) for i, (kind, hosts) in enumerate(kinds)]


@pytest.mark.parametrize(("kind", "engine", "hosts"), sample())
def test_every_survivor_names_the_rank(kind: str, engine: str, hosts: bool, tmp_path: Path) -> None:
    trial.need(engine)
    before = trial.shared_files()
    if kind == "mpiexec killed":
        outcome = trial.kill_mpiexec(engine, tmp_path)
        assert outcome.status == 137
        assert "flnb launch: mpiexec was killed by SIGKILL; the last calls of all ranks are in" in outcome.stderr
    else:
        outcome = trial.attempt(engine, kind, hosts, tmp_path)
        assert trial.problems(kind, outcome) == []
    assert not trial.left_behind(before, tmp_path)


@pytest.mark.parametrize("engine", ["openmpi"])
def test_a_mismatch_on_another_host_is_told_at_the_end(engine: str, tmp_path: Path) -> None:
    trial.need(engine)
    outcome = trial.attempt(engine, trial.AT_END, True, tmp_path)
    assert outcome.status == 1
    assert "rank 2 ran all_reduce int32[65536], sum as call 2, rank 0 ran all_reduce float32[65536]" in outcome.stderr
    assert outcome.stderr.count("what the ranks received is wrong") == 3


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("no file system of one page can be made here")
    outcome = trial.fill_disk("mpich", tmp_path)
    assert outcome.status == 1
    assert "flight.json could not be written: [Errno 28] No space left on device" in outcome.stderr


def test_a_launcher_that_is_killed_leaves_nothing_once_another_runs(tmp_path: Path) -> None:
    before = trial.shared_files()
    job = subprocess.Popen(trial.command(3, trial.RANKS, "mpiexec killed", "one host", "2"), cwd=tmp_path)
    end = time.monotonic() + 60
    while len(list(tmp_path.glob("ready_*"))) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    job.kill()
    job.wait()
    while trial.processes(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert len(trial.shared_files() - before) > 1
    _sweep()
    assert not trial.shared_files() - before
    assert not trial.processes(tmp_path)


@pytest.mark.parametrize("engine", ["mpich", "openmpi"])
def test_a_script_without_init_is_told(engine: str, tmp_path: Path) -> None:
    trial.need(engine)
    (tmp_path / "script.py").write_text("import flnb\nassert flnb.distributed.size() == 1\n")
    done = run(engine, tmp_path)
    assert done.returncode == 0
    assert "no rank called flnb.distributed.init(): each of 3 processes ran the whole script alone" in done.stderr


def test_a_script_that_begins_mpi_itself_has_joined(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("from mpi4py import MPI\nimport flnb\nflnb.distributed.init()\n")
    done = run("mpich", tmp_path)
    assert done.returncode == 0
    assert "flnb launch" not in done.stderr


@pytest.mark.parametrize("engine", ["mpich", "openmpi"])
def test_a_rank_that_ends_before_init_is_named(engine: str, tmp_path: Path) -> None:
    trial.need(engine)
    (tmp_path / "script.py").write_text(
        "import os, flnb\nif os.environ['FLNB_RANK'] != '1':\n    flnb.distributed.init()\n"
    )
    done = run(engine, tmp_path)
    assert done.returncode == 1
    for rank in (0, 2):
        assert f"rank 1 has ended without calling flnb.distributed.init(); rank {rank} waits in it" in done.stderr


def test_an_mpiexec_of_another_library_is_told(tmp_path: Path) -> None:
    trial.need("openmpi")
    (tmp_path / "script.py").write_text("import flnb\nflnb.distributed.init()\n")
    other = {name: value for name, value in trial.environment("openmpi").items() if name != "FLNB_MPIEXEC"}
    before = trial.shared_files()
    done = run("openmpi", tmp_path, {**other, "TMPDIR": str(tmp_path)})
    assert done.returncode == 1
    assert "flnb launch started 3 ranks, but MPI knows 1: mpiexec does not belong to the library" in done.stderr
    assert "name the right mpiexec in FLNB_MPIEXEC" in done.stderr
    assert not trial.left_behind(before, tmp_path)


def run(engine: str, folder: Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Launch the script in a folder on three ranks."""
    return subprocess.run(
        trial.command(3, Path("script.py")), capture_output=True, text=True, timeout=120, cwd=folder,
        env=environment or trial.environment(engine), check=False,
    )  # fmt: skip
