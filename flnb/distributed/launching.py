"""`flnb launch`: run a script on several ranks by mpiexec, and say afterwards which of them failed in which call."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

from flnb.dispatch.board import GAVE_UP, STATES, Board
from flnb.distributed.nanny import die_with_parent, remove_shared

__all__ = ["find_mpiexec", "launch", "shared_folder"]


def launch(ranks: int, script: Sequence[str], report: str | Path = "flight.json") -> int:
    """Run ``python script ...`` on so many ranks, and return the exit status: 0, or that of the rank that failed first.

    Args:
        ranks: how many processes, on this host.
        script: a path and the script's arguments.
        report: where to write, if a rank failed, the last calls of every rank.

    Raises:
        FileNotFoundError: no such script; or no mpiexec (extra "mpi").
    """
    if ranks < 1:
        raise ValueError(f"flnb launch: got {ranks} ranks, expected 1 or more")
    if not Path(script[0]).is_file():
        raise FileNotFoundError(f"flnb launch: no file {script[0]!r}; expected a Python script")
    _sweep()
    with tempfile.TemporaryDirectory(prefix=FOLDER, dir=shared_folder()) as folder, _locked(folder):
        environment = {**os.environ, "FLNB_FLIGHT": folder, "FLNB_RANKS": str(ranks)}
        command = [*find_mpiexec(), "-n", str(ranks), sys.executable, "-m", "flnb.distributed.nanny", *script]
        job = subprocess.Popen(command, env=environment, preexec_fn=die_with_parent)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: job.send_signal(number))
        code = job.wait()
        remove_shared(folder)
        shutil.rmtree(Path(tempfile.gettempdir(), f"ompi.{job.pid}"), ignore_errors=True)  # Open MPI's, if killed
        ends = _ends(folder)
        failed = [end for end in ends if end.status]
        status = failed[0].status if failed else code if code >= 0 else 128 - code
        if not status and not list(Path(folder).glob("joined_*")):
            _say(f"no rank called flnb.distributed.init(): each of the {ranks} processes ran the whole script alone")
        if status:
            _report(folder, failed, code, Path(report))
        return status


FOLDER = "flnb_flight_"
"""How the names of folders begin in which the processes of a job tell the launcher of themselves."""


class End(NamedTuple):
    """How a rank ended: when, its exit status, its number, and whether it was told to end or had been stopped."""

    time: float
    status: int
    rank: int
    told: bool
    stopped: bool


def _say(text: str) -> None:
    print(f"flnb launch: {text}", file=sys.stderr)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold a lock by which other launchers see that the folder is in use."""
    with Path(folder, "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep() -> None:
    """Remove what is left of jobs whose launcher was killed."""
    for folder in Path(shared_folder() or tempfile.gettempdir()).glob(f"{FOLDER}*"):
        try:
            with Path(folder, "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_shared(str(folder))
                shutil.rmtree(folder)
        except OSError:
            continue  # in use, just made, or of another user


def _ends(folder: str) -> list[End]:
    """How the ranks ended that have, the first of them first; one that is stopped was killed in the end."""
    found = {}
    for kind in ("ended", "stopped"):
        for path in Path(folder).glob(f"{kind}_*"):
            rank = int(path.name.partition("_")[2])
            moment, status, told = path.read_text().split()
            stopped = kind == "stopped"
            found[rank] = End(
                float(moment), 128 + signal.SIGKILL if stopped else int(status), rank, told != "0", stopped
            )
    return sorted(found.values())


def shared_folder() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def find_mpiexec() -> list[str]:
    """The command that starts MPI processes: that of FLNB_MPIEXEC, of this environment, or of the system."""
    if chosen := os.environ.get("FLNB_MPIEXEC"):
        return shlex.split(chosen)
    found = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if found is None:
        raise FileNotFoundError("flnb launch: no mpiexec; install an MPI with: pip install 'flnb[mpi]'")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" in version.stdout or "prte" in version.stdout:
        return [found, "--allow-run-as-root", "--oversubscribe"]
    return [found]


def _report(folder: str, failed: list[End], code: int, report: Path) -> None:
    """Write what the board holds, and name the rank that failed by itself, or first, on stderr."""
    boards: list[Any] = []
    for path in sorted(Path(folder).glob("board_*")):
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as memory:
            boards.append(Board(memory, 0, Board.size_of(memory), lambda _: "").history())
    where = _write(report, json.dumps({"ended": [end._asdict() for end in failed], "groups": boards}, indent=1))
    world = {row["rank"]: row for row in (boards[0] if boards else [])}
    own = [end for end in failed if end.stopped or not end.told]
    own = [end for end in own if end.stopped or world.get(end.rank, {}).get("state") != STATES[GAVE_UP]]
    for end in (own or failed)[:1]:
        how = f"was killed by {signal.Signals(end.status - 128).name}" if end.status > 128 else ""
        how = "was stopped (SIGSTOP)" if end.stopped else how or f"ended with status {end.status}"
        last = world.get(end.rank)
        did = f"; its last call was {last['sequence']}, {last['calls'].get(last['sequence'], '')}" if last else ""
        _say(f"rank {end.rank} {'failed' if own else 'was the first to give up'}: it {how}{did}{where}")
    if code < 0:
        _say(f"mpiexec was killed by {signal.Signals(-code).name}{where}")
    elif not failed:
        _say(f"mpiexec failed with status {code} before any rank ended{where}")


def _write(report: Path, text: str) -> str:
    """Write the report whole or not at all; returns where it is, for the end of a message."""
    aside = report.with_name(f".{report.name}.{os.getpid()}")
    try:
        aside.write_text(text)
        aside.replace(report)
    except OSError as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        return f"; {report} could not be written: {error}"
    return f"; the last calls of all ranks are in {report}"
