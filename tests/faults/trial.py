"""Trials: three ranks under a real mpiexec, of which one has a fault; what the others say, when, and what is left."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
RANKS = Path(__file__).with_name("ranks.py")
SHARED = Path("/dev/shm")
OURS = ("mpich_shm", "sm_segment", "flnb_flight_", "flnb_board_")
WITHIN = 3.0
"""Seconds from the fault to the last survivor's word; a late rank is named so much after the timeout."""


class Kind(NamedTuple):
    """A fault of rank F: what every speaker says, who speaks, and the exit status of `flnb launch`.

    Rank R, the one after it, is to receive its messages.
    """

    words: tuple[str, ...]
    speakers: str
    status: int = 1
    timeout: float = 0.0


SURVIVORS, ALL, RECEIVER = "survivors", "all", "receiver"
F4, CALL = "float32[65536]", "all_reduce float32[65536], sum"
KINDS = {
    "killed": Kind(("rank F (process", f"has died; its last call was 1, {CALL}"), SURVIVORS, 137),
    "stopped": Kind(("rank F (process", "is stopped (SIGSTOP)"), SURVIVORS, 137),
    "raises": Kind((f"rank F has failed; its last call was 1, {CALL}",), SURVIVORS),
    "ends": Kind((f"rank F has ended; its last call was 1, {CALL}",), SURVIVORS),
    "late": Kind((f"rank F has not come: its last call was 1, {CALL}",), SURVIVORS, 1, 2.0),
    "other count": Kind(("rank F", "all_reduce float32[32768], sum", CALL), ALL),
    "other dtype": Kind(("rank F", "all_reduce int32[65536], sum", CALL), ALL),
    "other op": Kind(("rank F", f"broadcast {F4}, 0", CALL), ALL),
    "killed in a group": Kind(("rank F (process", "has died"), SURVIVORS, 137),
    "ends in a group": Kind(("rank F has ended; its last call was 1",), SURVIVORS),
    "message of other dtype": Kind((f"rank F sent int32[65536], rank R expected {F4}",), RECEIVER),
    "message of other count": Kind((f"rank F sent float32[32768], rank R expected {F4}",), RECEIVER),
    "ends before a message": Kind(("rank F has ended",), SURVIVORS),
}
HOSTS = ("killed", "stopped", "raises", "ends", "late", "other count", "other dtype", "other op", "killed in a group")
"""Faults that are tried on two pretended hosts as well; rank 2 is alone on its host."""


def engines() -> dict[str, dict[str, str] | None]:
    """Environment variables that choose each MPI; None: it is not installed."""
    place = Path(os.environ.get("FLNB_OPENMPI", ROOT / "output" / "openmpi"))
    openmpi = {
        "MPI4PY_LIBMPI": str(place / "lib" / "libmpi.so.40"),
        "FLNB_MPIEXEC": f"{place}/bin/mpiexec --allow-run-as-root --oversubscribe",
    }
    return {"mpich": {}, "openmpi": openmpi if (place / "bin" / "mpiexec").exists() else None}


AT_END = "other dtype at the end"
"""On two hosts: nothing follows the call in which the ranks differ, so each says it when it ends."""


def need(engine: str) -> None:
    """Skip the test without this MPI; on CI, where .ci/run installs it, fail."""
    if engines()[engine] is None:
        message = f"{engine} is not installed; see CONTRIBUTING.md"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


class Outcome(NamedTuple):
    """What happened: what each rank said and how many seconds after the fault, the exit status, stderr."""

    said: dict[int, tuple[float, str]]
    status: int
    stderr: str
    report: bool


def command(ranks: int, script: Path, *arguments: str) -> list[str]:
    """The command line that starts a script on so many ranks, as a user does."""
    return [sys.executable, "-m", "flnb.cli", "launch", "-n", str(ranks), str(script), *arguments]


def environment(engine: str) -> dict[str, str]:
    """Environment variables of a trial."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **(engines()[engine] or {})}


def attempt(engine: str, kind: str, hosts: bool, folder: Path, faulty: int = 2) -> Outcome:
    """Run a trial."""
    done = subprocess.run(
        command(3, RANKS, kind, "hosts" if hosts else "one host", str(faulty)), capture_output=True, text=True,
        timeout=120, cwd=folder, env=environment(engine), check=False,
    )  # fmt: skip
    fault = float((folder / "fault").read_text()) if (folder / "fault").exists() else 0.0
    said = {int(path.name[5:]): json.loads(path.read_text()) for path in sorted(folder.glob("said_*"))}
    told = {rank: (moment - fault, message) for rank, (moment, message) in said.items()}
    return Outcome(told, done.returncode, done.stderr, (folder / "flight.json").exists())


def problems(kind: str, outcome: Outcome, faulty: int = 2) -> list[str]:
    """What is not as it must be."""
    expected, receiver = KINDS[kind], (faulty + 1) % 3
    texts = [
        words.replace("rank F", f"rank {faulty}").replace("rank R", f"rank {receiver}") for words in expected.words
    ]
    speakers = {SURVIVORS: {0, 1, 2} - {faulty}, ALL: {0, 1, 2}, RECEIVER: {receiver}}[expected.speakers]
    found = [f"rank {rank} said nothing" for rank in speakers - set(outcome.said)]
    for rank in speakers & set(outcome.said):
        seconds, message = outcome.said[rank]
        found += [f"rank {rank} did not say {words!r}: {message}" for words in texts if words not in message]
        if seconds > expected.timeout + WITHIN:
            found.append(f"rank {rank} spoke after {seconds:.1f} s")
    if outcome.status != expected.status:
        found.append(f"exit status {outcome.status}, expected {expected.status}")
    if "flnb launch: rank " not in outcome.stderr or not outcome.report:
        found.append("flnb launch did not report")
    return found + ([outcome.stderr] if found else [])


def kill_mpiexec(engine: str, folder: Path) -> Outcome:
    """Kill mpiexec by SIGKILL when all ranks are at work."""
    job = subprocess.Popen(
        command(3, RANKS, "mpiexec killed", "one host", "2"), stderr=subprocess.PIPE, text=True, cwd=folder,
        env=environment(engine),
    )  # fmt: skip
    end = time.monotonic() + 60
    while len(list(folder.glob("ready_*"))) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    (mpiexec,) = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    os.kill(int(mpiexec), signal.SIGKILL)
    _, stderr = job.communicate(timeout=60)
    return Outcome({}, job.returncode, stderr, (folder / "flight.json").exists())


def fill_disk(engine: str, folder: Path) -> Outcome:
    """Let a rank fail where flight.json has no space: a file system of one page, which only this process sees."""
    words = " ".join(f"'{word}'" for word in command(3, RANKS, "raises", "one host", "2"))
    script = f"mount -t tmpfs -o size=4k none '{folder}' && cd '{folder}' && exec {words}"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=120, env=environment(engine),
        check=False,
    )  # fmt: skip
    return Outcome({}, done.returncode, done.stderr, False)


def shared_files() -> set[str]:
    """Files in shared memory that a job could leave, and nobody uses."""
    found = {path.name for path in SHARED.glob("*") if path.name.startswith(OURS) and not locked(path)}
    for maps in Path("/proc").glob("[0-9]*/maps") if found else ():
        try:
            text = maps.read_text()
        except OSError:
            continue
        found = {name for name in found if name not in text}
    return found


def locked(folder: Path) -> bool:
    """Whether a launcher works with this folder."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def left_behind(before: set[str], folder: Path, seconds: float = 10.0) -> set[str]:
    """Unused files in shared memory and processes in the folder that stay for some seconds."""
    end = time.monotonic() + seconds
    left = (shared_files() - before) | processes(folder)
    while left and time.monotonic() < end:
        time.sleep(0.2)
        left &= shared_files() | processes(folder)
    return left


def processes(folder: Path) -> set[str]:
    """Processes that run in a folder."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if path.resolve() == folder.resolve():
                found.add(f"process {path.parent.name}")
        except OSError:
            continue
    return found


def temporary() -> tempfile.TemporaryDirectory[str]:
    """A folder for a trial."""
    return tempfile.TemporaryDirectory(prefix="flnb_trial_")
