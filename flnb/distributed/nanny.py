"""The parent of one rank, which mpiexec starts in its place: ``python -m flnb.distributed.nanny script.py ...``.

When a rank is killed, mpiexec kills all others at once, and none of them can say whom it waited for. A nanny that
outlives its rank for two seconds gives them that time. It passes signals on, dies with mpiexec, and takes its rank
along.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["watch"]

GRACE = 2.0
"""Seconds for the other ranks to speak after this one failed."""
PR_SET_PDEATHSIG = 1
RANK = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""Environment variables that hold the number of a rank, by the kind of mpiexec."""


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def watch(command: list[str]) -> int:
    """Run a rank as a child process; returns its exit status, 128 + the number of the signal that killed it."""
    _die_with_parent()
    rank = subprocess.Popen(command, close_fds=False, preexec_fn=_die_with_parent)  # MPI's descriptors are inherited
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: rank.send_signal(number))
    code = rank.wait()
    status = code if code >= 0 else 128 - code
    folder = os.environ.get("FLNB_FLIGHT")
    if status and folder:
        place = next((os.environ[name] for name in RANK if name in os.environ), "")
        Path(folder, f"ended_{place}").write_text(f"{time.time()} {status}")
    if status:
        time.sleep(GRACE)
    if status and folder:
        for names in Path(folder).glob("shared_*"):  # MPICH leaves these files when a job is killed
            for path in names.read_text().split():
                Path(path).unlink(missing_ok=True)
    return status


if __name__ == "__main__":
    os._exit(watch([sys.executable, *sys.argv[1:]]))
