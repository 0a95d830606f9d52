"""`flnb launch`: run a script on several ranks by mpiexec, and say afterwards which of them failed in which call."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from flnb.dispatch.board import GAVE_UP, STATES, Board

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
    with tempfile.TemporaryDirectory(prefix="flnb_flight_", dir=shared_folder()) as folder:
        environment = {**os.environ, "FLNB_FLIGHT": folder}
        command = [*find_mpiexec(), "-n", str(ranks), sys.executable, "-m", "flnb.distributed.nanny", *script]
        job = subprocess.Popen(command, env=environment)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: job.send_signal(number))
        status = job.wait()
        failed = sorted(
            (float(moment), int(code), int(path.name.removeprefix("ended_")))
            for path in Path(folder).glob("ended_*")
            for moment, code in [path.read_text().split()]
        )
        if not failed and not status:
            return 0
        _report(folder, failed, Path(report))
        return failed[0][1] if failed else status


def shared_folder() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def find_mpiexec() -> list[str]:
    """The command that starts MPI processes: of this environment, else of the system."""
    found = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if found is None:
        raise FileNotFoundError("flnb launch: no mpiexec; install an MPI with: pip install 'flnb[mpi]'")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" in version.stdout or "prte" in version.stdout:
        return [found, "--allow-run-as-root", "--oversubscribe"]
    return [found]


def _report(folder: str, failed: list[tuple[float, int, int]], report: Path) -> None:
    """Write what the board holds, and name the ranks that failed on stderr, the first of them first."""
    boards: list[Any] = []
    for path in sorted(Path(folder).glob("board_*")):
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as memory:
            size = len(memory) // Board.nbytes(1)
            boards.append(Board(memory, 0, size, lambda _: "").history())
    ended = [{"rank": rank, "status": code, "time": moment} for moment, code, rank in failed]
    text = json.dumps({"ended": ended, "groups": boards}, indent=1)
    aside = report.with_name(f".{report.name}.{os.getpid()}")
    try:
        aside.write_text(text)
        aside.replace(report)
        where = f"; the last calls of all ranks are in {report}"
    except OSError as error:
        where = f"; {report} could not be written: {error}"
    world = boards[0] if boards else []
    own = [end for end in failed if end[2] >= len(world) or world[end[2]]["state"] != STATES[GAVE_UP]]
    for _, code, rank in (own or failed)[:1]:
        how = f"was killed by {signal.Signals(code - 128).name}" if code > 128 else f"ended with status {code}"
        last = world[rank] if rank < len(world) else None
        did = f"; its last call was {last['sequence']}, {last['calls'].get(last['sequence'], '')}" if last else ""
        print(f"flnb launch: rank {rank} failed: it {how}{did}{where}", file=sys.stderr)
    if not failed:
        print(f"flnb launch: mpiexec failed before any rank ended{where}", file=sys.stderr)
