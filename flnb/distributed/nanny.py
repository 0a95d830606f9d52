"""Parent process of one rank, run by mpiexec in the rank's place: ``python -m flnb.distributed.nanny script.py``.

If mpiexec started the ranks itself, it would kill all ranks as soon as one is killed, and no rank could report for
which rank it waited. So mpiexec starts nannies, and a nanny runs for two more seconds after its rank has failed. A
nanny also records how its rank ended, forwards signals to the rank, and kills the rank if mpiexec ends. Under `flnb
launch` it writes the rank's number before each line that the rank prints.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from flnb_backends.comm.mpi import SHARED

GRACE = 2.0
"""Seconds that the other ranks have to report after this one has failed."""
PR_SET_PDEATHSIG = 1
RANK = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
"""The environment variables in which different kinds of mpiexec pass the number of a rank."""


def die_with_parent() -> None:
    """On Linux, have the kernel kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _follow(parent: int, rank: subprocess.Popen[bytes]) -> None:
    """Kill the rank and exit when mpiexec has ended, on systems without `die_with_parent`."""
    while os.getppid() == parent:
        time.sleep(GRACE / 2)
    rank.kill()
    os._exit(1)


def watch(command: list[str]) -> int:
    """Run a rank as a child process; returns its exit status, 128 + signal number if a signal killed it."""
    die_with_parent()
    parent, place = os.getppid(), next((os.environ[name] for name in RANK if name in os.environ), "")
    environment = {**os.environ, "FLNB_RANK": place}
    pipe = subprocess.PIPE if place and int(os.environ.get("FLNB_RANKS", 0)) > 1 else None
    rank = subprocess.Popen(  # with MPI's files
        command, close_fds=False, preexec_fn=die_with_parent, env=environment, stdout=pipe, stderr=pipe
    )
    streams = [(each, to) for each, to in ((rank.stdout, 1), (rank.stderr, 2)) if each is not None]
    readers = [threading.Thread(target=_relay, args=(each, to, place), daemon=True) for each, to in streams]
    for reader in readers:
        reader.start()
    signals: list[int] = []

    def pass_on(number: int, _: object) -> None:
        signals.append(number)
        rank.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    if sys.platform != "linux":
        threading.Thread(target=_follow, args=(parent, rank), daemon=True).start()
    while True:
        _, ended = os.waitpid(rank.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(ended):
            break
        _note(f"stopped_{place}", 0, [])
    code = rank.returncode = os.waitstatus_to_exitcode(ended)
    status = code if code >= 0 else 128 - code
    _note(f"ended_{place}", status, signals)
    for reader in readers:
        reader.join(GRACE)  # a process that the rank has left may hold the other end
    folder = os.environ.get("FLNB_FLIGHT", "")
    if status or Path(folder, f"parted_{place}").exists():  # without MPI's end, for which mpiexec kills the others too
        time.sleep(GRACE)
        if folder:
            remove_shared(folder)
    return status


def _relay(stream: IO[bytes], to: int, place: str) -> None:
    """Forward a rank's output line by line, each line after "rank N: "; a carriage return also ends a line.

    Args:
        stream: the rank's output.
        to: the file descriptor to write to.
        place: the rank's number as text.
    """
    head, rest = f"rank {place}: ".encode(), b""
    while chunk := os.read(stream.fileno(), 1 << 16):
        *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        _write(to, b"".join(head + line + b"\n" for line in lines))
    if rest:
        _write(to, head + rest + b"\n")


def _write(to: int, text: bytes) -> None:
    """Write all bytes to a file descriptor; output to a closed pipe is dropped."""
    with suppress(OSError):
        while text:
            text = text[os.write(to, text) :]


def _note(name: str, status: int, signals: list[int]) -> None:
    """Record for `flnb launch` when and how the rank ended.

    Args:
        name: the name of the file to write.
        status: the rank's exit status.
        signals: the numbers of the signals that the nanny has forwarded to the rank.
    """
    if folder := os.environ.get("FLNB_FLIGHT"):
        aside = Path(folder, f".{name}")
        aside.write_text(f"{time.time()} {status} {len(signals)}")
        aside.replace(Path(folder, name))


def remove_shared(folder: str) -> None:
    """Delete shared memory files that killed MPI processes have left behind; files in ``folder`` list their paths."""
    for names in Path(folder).glob("shared_*"):
        for path in names.read_text().split():
            in_place = path.startswith(SHARED) and os.path.dirname(path) == os.path.dirname(SHARED[0])
            if in_place:  # nothing else, whoever has written the note
                Path(path).unlink(missing_ok=True)


if __name__ == "__main__":
    os._exit(watch([sys.executable, *sys.argv[1:]]))
