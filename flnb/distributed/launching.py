"""`flnb launch`: runs a script on several ranks by mpiexec, and reports which rank failed in which call."""

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
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

from flnb.dispatch.board import GAVE_UP, INSIDE, OUTSIDE, STATES, Board
from flnb.distributed.nanny import die_with_parent, remove_shared


def launch(ranks: int, script: Sequence[str], report: str | Path = "flight.json") -> int:
    """Run ``python script ...`` on ``ranks`` ranks; returns the exit status, 0 or that of the first failed rank.

    Each line that a rank prints is shown with the rank's number in front. The ranks divide the processors: each gets an
    equal number of threads, at least one, unless OMP_NUM_THREADS is set.

    Args:
        ranks: the number of processes, all on this host.
        script: the path of the script, then the script's arguments.
        report: a JSON file that is written if a rank failed. It says how each rank ended and, for every group of ranks,
            the state and the last calls of each. If no rank failed, the file of an earlier launch is deleted.

    Raises:
        FileNotFoundError: the script does not exist, or there is no mpiexec (extra "mpi").
    """
    if ranks < 1:
        raise ValueError(f"flnb launch: got {ranks} ranks, expected 1 or more")
    if not Path(script[0]).is_file():
        raise FileNotFoundError(f"flnb launch: no file {script[0]!r}; expected a Python script")
    _sweep()
    report, signals = Path(report), list[tuple[float, int]]()
    with tempfile.TemporaryDirectory(prefix=FOLDER, dir=shared_folder()) as folder, _locked(folder):
        environment = {**os.environ, **thread_settings(ranks), "FLNB_FLIGHT": folder, "FLNB_RANKS": str(ranks)}
        command = [*find_mpiexec(), "-n", str(ranks), sys.executable, "-m", "flnb.distributed.nanny", *script]
        job = subprocess.Popen(command, env=environment, preexec_fn=die_with_parent)

        def pass_on(number: int, _: object) -> None:
            signals.append((time.time(), number))
            job.send_signal(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, pass_on)
        code = job.wait()
        remove_shared(folder)
        shutil.rmtree(Path(tempfile.gettempdir(), f"ompi.{job.pid}"), ignore_errors=True)  # Open MPI's, if killed
        ends = _ends(folder)
        ended = len(ends) == ranks or not signals  # mpiexec returns 0 when it is interrupted twice
        if ended and not code and not any(end.status for end in ends):
            with suppress(OSError):
                report.unlink(missing_ok=True)
            if not list(Path(folder).glob("joined_*")):
                _say(f"no rank called flnb.distributed.init(): each of {ranks} processes ran the whole script alone")
            return 0
        return _report(folder, ends, code, report, signals)


FOLDER = "flnb_flight_"
"""The prefix of the folders in which the processes of a job report to the launcher."""


class End(NamedTuple):
    """The end of a rank: time, exit status, number of the rank, and whether it had received a signal to end or stop."""

    time: float
    status: int
    rank: int
    signalled: bool
    stopped: bool

    @property
    def how(self) -> str:
        """Return in words how the rank ended, such as "was killed by SIGKILL"."""
        if self.stopped:
            return "was stopped (SIGSTOP)"
        killed = next((f"was killed by {each.name}" for each in signal.Signals if each == self.status - 128), "")
        return killed or f"ended with status {self.status}"


def _say(text: str) -> None:
    print(f"flnb launch: {text}", file=sys.stderr)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the lock of a launcher's folder during the block, to mark the folder as in use."""
    with Path(folder, "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep() -> None:
    """Delete folders left behind by launchers that were killed."""
    for folder in Path(shared_folder() or tempfile.gettempdir()).glob(f"{FOLDER}*"):
        try:
            if folder.lstat().st_uid != os.getuid():
                continue  # of another user, whose notes are not to be followed
            with Path(folder, "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_shared(str(folder))
                shutil.rmtree(folder)
        except OSError:
            continue  # in use, or just made


def _ends(folder: str) -> list[End]:
    """Return how the ranks of a job ended, the earliest first, from files in the launcher's ``folder``."""
    found = {}
    for kind in ("ended", "stopped"):
        for path in Path(folder).glob(f"{kind}_*"):
            rank = int(path.name.partition("_")[2])
            moment, status, signals = path.read_text().split()
            stopped = kind == "stopped"
            found[rank] = End(
                float(moment), 128 + signal.SIGKILL if stopped else int(status), rank, signals != "0", stopped
            )
    return sorted(found.values())


def shared_folder() -> str | None:
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def thread_settings(ranks: int) -> dict[str, str]:
    """Return the environment variables with which ranks on this machine divide its processors among their threads.

    Variables that the user has set are left out. If the user has set OMP_NUM_THREADS, the result is empty, because
    OpenBLAS obeys this variable, too.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = {"OMP_NUM_THREADS": str(max(1, processors // ranks))}
    blas = os.environ.get("OPENBLAS_NUM_THREADS")
    if blas is None or blas == os.environ.get("FLNB_LAB_THREADS"):  # which `flnb lab` has set for one process
        found["OPENBLAS_NUM_THREADS"] = found["OMP_NUM_THREADS"]
    return found


def find_mpiexec() -> list[str]:
    """Return the command that starts MPI processes: FLNB_MPIEXEC, or mpiexec of this environment or the system."""
    if chosen := os.environ.get("FLNB_MPIEXEC"):
        return shlex.split(chosen)
    found = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if found is None:
        raise FileNotFoundError("flnb launch: no mpiexec; install an MPI with: pip install 'flnb[mpi]'")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" in version.stdout or "prte" in version.stdout:
        # two ranks are bound to one core each by default, and could not use their share of the others
        return [found, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    return [found]


def _report(folder: str, ends: list[End], code: int, report: Path, signals: list[tuple[float, int]]) -> int:
    """Write the failure report and print on stderr which rank failed first; returns the job's exit status.

    Args:
        folder: the launcher's folder, with the boards of all groups.
        ends: how the ranks ended, the earliest first.
        code: the exit status of mpiexec.
        report: the path of the report.
        signals: pairs of the time and number of each signal that the launcher received.
    """
    boards: list[Any] = []
    for path in sorted(Path(folder).glob("board_*")):
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as memory:
            boards.append(Board(memory, 0, Board.size_of(memory), lambda _: "").history())
    world: list[Any] = boards[0] if boards else []
    gave_up = {row["rank"] for row in world if row["state"] == STATES[GAVE_UP]}
    failed = [end for end in ends if end.status]
    own = [end for end in failed if end.stopped or not (end.signalled or end.rank in gave_up)]
    own = [end for end in own if not signals or end.time < signals[0][0]]
    _complete(boards, ends)
    where = _write(report, json.dumps({"ended": [_shown(end) for end in ends], "groups": boards}, indent=1))
    if own:
        last = next((f"; {_last(row)}" for row in world if row["rank"] == own[0].rank), "")
        _say(f"rank {own[0].rank} failed: it {own[0].how}{last}{where}")
    elif signals:
        _say(f"interrupted by {signal.Signals(signals[0][1]).name}{_behind(world)}{where}")
    elif failed:
        left = [f"rank {end.rank} ended with status 0 while others waited for it" for end in ends if not end.status]
        first = f"rank {failed[0].rank} was the first to give up: it {failed[0].how}"
        _say(f"{'; '.join(left) or first}{_behind(world)}{where}")
    if code < 0:
        _say(f"mpiexec was killed by {signal.Signals(-code).name}{where}")
    elif not failed and not signals:
        _say(f"mpiexec failed with status {code} before any rank ended{where}")
    if signals and not own:
        return 128 + signals[0][1]
    return (own or failed)[0].status if failed else code if code >= 0 else 128 - code


def _shown(end: End) -> dict[str, Any]:
    """Return how a rank ended as a JSON object for `flight.json`."""
    return {
        "rank": end.rank, "time": end.time, "status": end.status, "how": end.how,
        "told_to_end_by_mpiexec": end.signalled,
    }  # fmt: skip


def _complete(boards: list[Any], ends: list[End]) -> None:
    """In the rows of all boards, set the state of each rank that died before it could write its state."""
    how = {end.rank: end.how for end in ends}
    for row in (row for rows in boards for row in rows):
        if row["state"] in STATES[OUTSIDE : INSIDE + 1] and row["rank"] in how:
            row["state"] = f"{row['state'].replace('is', 'was', 1)} when it {how[row['rank']]}"


def _last(row: dict[str, Any]) -> str:
    """Describe a rank's last collective call, as part of a sentence; ``row`` is the rank's row in the report."""
    seq = row["sequence"]
    return f"its last call was {seq}, {row['calls'].get(seq, '')}" if seq else "it has made no call"


def _behind(world: list[Any]) -> str:
    """Return, as the end of a sentence, which ranks had reached the last call and which had not; "" if all had.

    ``world`` has the row of each rank in the report.
    """
    newest = max((row["sequence"] for row in world), default=0)
    here = [row for row in world if row["sequence"] == newest]
    late = [f"rank {row['rank']} had not: {_last(row)}" for row in world if row["sequence"] < newest]
    came = ", ".join(f"rank {row['rank']}" for row in here)
    return f"; {came} had come to call {newest}, {here[0]['calls'].get(newest, '')}; {'; '.join(late)}" if late else ""


def _write(report: Path, text: str) -> str:
    """Write the report atomically; return the end of a message: the report's path, or why it could not be written."""
    aside = report.with_name(f".{report.name}.{os.getpid()}")
    try:
        aside.write_text(text)
        aside.replace(report)
    except OSError as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        return f"; {report} could not be written: {error}"
    return f"; the last calls of all ranks are in {report}"
