"""Ranks of a `Cluster` as MPI processes, started and controlled through ipyparallel."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnb_telemetry.extras import require
from flnb_telemetry.joined import JoinedLive
from flnb_telemetry.ranks import Ranks
from IPython import get_ipython

from flnb.dispatch.board import process_alive
from flnb.distributed import engine
from flnb.distributed.failures import Failure, Interrupted, RankError
from flnb.distributed.launching import find_mpiexec, shared_folder, thread_settings

if TYPE_CHECKING:
    from flnb.distributed.cluster import Output

POLL = 0.05
"""Seconds between two reads of the ranks' output."""
PATIENCE = 1.0
"""Seconds to wait for interrupted ranks; a rank in compiled code is interrupted when that code returns to Python."""
HEARTS = ["--HeartMonitor.period=500", "--HeartMonitor.max_heartmonitor_misses=120"]
"""Heartbeats every 0.5 s instead of 3 s, because an engine is ready after two; they do not detect dead ranks."""


class Processes:
    """Runs the cells of a `Cluster` in MPI processes, each of which has an IPython engine.

    Attributes:
        pids: the process id of each rank.

    Raises:
        ImportError: ipyparallel or mpi4py is not installed.
        FileNotFoundError: there is no mpiexec.
        RuntimeError: the processes did not start; the message contains the end of their output.
    """

    name = "MPI processes"

    def __init__(self, count: int) -> None:
        require("mpi4py", "mpi", "a cluster of MPI processes")
        ipp = require("ipyparallel", "parallel", "a cluster of MPI processes")
        mpiexec = find_mpiexec()
        self._live: JoinedLive | None = None
        self._hub: Any = None
        self._client: Any = None
        self.pids: tuple[int, ...] = ()
        self._nannies: tuple[int, ...] = ()
        self._folder = tempfile.mkdtemp(prefix="flnb_cluster_", dir=shared_folder())
        environment = {"FLNB_FLIGHT": self._folder, **thread_settings(count)}
        self._cluster = ipp.Cluster(
            engines=_launcher(mpiexec, environment), profile_dir=self._folder, load_profile=False, delay=0,
            controller_args=HEARTS, log_level=logging.CRITICAL,
        )  # fmt: skip
        try:
            self._cluster.start_cluster_sync(n=count)
            self._client = self._cluster.connect_client_sync()
            self._client.wait_for_engines(count, timeout=60, interactive=False)
            controller = self._cluster.controller.pid
            begun = self._client[:].apply_sync(engine.begin, os.getpid(), controller, self._folder)
        except BaseException as error:
            log = "".join(path.read_text()[-2000:] for path in Path(self._folder, "log").glob("ipengine*"))
            self.stop()
            if isinstance(error, Exception):
                raise RuntimeError(f"the {count} MPI processes of the cluster did not start: {error}\n{log}") from error
            raise
        of_rank = {rank: (*pids, target) for target, (rank, *pids) in zip(self._client.ids, begun, strict=True)}
        self.pids, self._nannies, targets = zip(*[of_rank[rank] for rank in range(count)], strict=True)
        self._view = self._client[list(targets)]
        self._last: Any = None
        self._broken = False
        self._dead: list[int] = []

    def run(self, source: str, output: Output, recorded: bool, stacks: bool) -> tuple[dict[int, Failure], Any]:
        """Run a cell on all ranks, and print their output as it arrives.

        Args:
            source: the cell.
            output: receives the output.
            recorded, stacks: whether to record the ranks, and with whole call stacks.

        Returns:
            A dict from each rank that failed to its error; and the recordings of the ranks if ``recorded``, else
            None.
        """
        if self._dead:
            died = ", ".join(f"rank {rank} (process {self.pids[rank]})" for rank in self._dead)
            raise RuntimeError(
                f"the ranks have ended, because {died} died; make new ones: "
                f"cluster = flnb.distributed.Cluster({len(self.pids)})"
            )
        if self._broken:
            self._wait(self._last, output)  # a rank may still be busy with the cell that was interrupted
        shell = get_ipython()
        folder = tempfile.mkdtemp(dir=self._folder) if recorded else None
        self._view.apply(engine.prepare, self._broken, shell and shell.execution_count, folder, stacks).get()
        self._broken = False
        if self._hub is not None and self._hub.source is not self._live:  # a recording of the kernel's was shown
            self._hub.follow(self._live)
        self._last = result = self._view.execute(source, silent=False, block=False)
        try:
            self._wait(result, output)
        except KeyboardInterrupt:
            places = self._interrupt(result)
            self._show(result, output)
            raise Interrupted(places) from None
        found = {}
        for rank, each in enumerate(result.split()):
            if rank in self._dead:
                found[rank] = Failure("", f"its process {self.pids[rank]} has died", "")
            elif (error := each.exception()) is not None:
                found[rank] = Failure(error.ename, error.evalue, error.traceback)
        self._broken = bool(found)
        return found, Ranks(sorted(Path(folder).iterdir())) if folder and not self._dead else None

    def pull(self, name: str) -> list[Any]:
        """Return a variable's values on all ranks, in rank order."""
        result = self._view.pull(name, block=False)
        result.wait()
        errors = {rank: each.exception() for rank, each in enumerate(result.split())}
        if any(errors.values()):
            raise RankError({rank: Failure(e.ename, e.evalue, e.traceback) for rank, e in errors.items() if e})
        return result.get()

    def push(self, name: str, value: Any) -> None:
        """Set a variable on all ranks."""
        self._view.push({name: value}, block=True)

    def show_on(self, hub: Any, rank: int) -> None:
        """Show the collective calls of all ranks live on a dashboard, and all telemetry of the rank ``rank``."""
        if self._live is None:
            self._live = JoinedLive(rank=rank)
            self._view.apply_sync(engine.watch, rank)
        if self._hub is not hub:
            self._hub = hub
            hub.follow(self._live)

    def stop(self) -> None:
        """End all processes, also those that are running a cell, and delete their files."""
        for nanny in self._nannies:  # its rank dies with it, and mpiexec ends
            with suppress(ProcessLookupError):
                os.kill(nanny, signal.SIGKILL)
        if self._client is not None:
            self._client.close()
        with suppress(Exception):  # what is gone already is an error here
            self._cluster.stop_cluster_sync()
        self._cluster.shutdown_atexit = False
        engine.remove_shared(self._folder)

    def _wait(self, result: Any, output: Output) -> None:
        """Wait until all ranks have finished a cell and their output is shown."""
        while not result.wait(POLL):
            self._show(result, output)
            busy = [rank for rank, each in enumerate(result.split()) if not each.ready()]
            self._dead = [rank for rank in busy if process_alive(self.pids[rank]) == "gone"]
            if self._dead == busy:
                break
        if not self._dead:
            result.wait_for_output(PATIENCE)
        self._show(result, output)

    def _show(self, result: Any, output: Output) -> None:
        """Print the ranks' new output, and pass their telemetry to the dashboard."""
        for rank, data in enumerate(result.metadata):
            for name in ("stdout", "stderr"):
                output.show(rank, name, data[name] or "", data["completed"] is not None)
            if data["execute_result"]:
                output.write(rank, data["execute_result"]["data"].get("text/plain", ""))
                data["execute_result"] = None
            while data["outputs"]:
                output.display(rank, data["outputs"].pop(0))
            for key in list(data["data"]):  # filled by another thread
                message = data["data"].pop(key)
                if self._live is not None and key.startswith("flnb "):
                    self._live.receive(message)

    def _interrupt(self, result: Any) -> dict[int, str]:
        """Raise KeyboardInterrupt on busy ranks; returns the line where each was, by rank."""
        self._broken = True
        busy = {rank: each for rank, each in enumerate(result.split()) if not each.ready()}
        for rank in busy:
            with suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGINT)
        if result.wait(PATIENCE):
            result.wait_for_output(PATIENCE)
        return {rank: _place(each) for rank, each in busy.items()}


def _place(result: Any) -> str:
    """Return the line where a rank was interrupted, as text."""
    if not result.ready():
        return "goes on; the next cell waits for it"
    return getattr(result.exception(), "traceback", None) or "had ended the cell"


def _launcher(mpiexec: list[str], environment: dict[str, str]) -> type:
    """Return an ipyparallel launcher class that starts each rank under a nanny, so that errors can name dead ranks.

    Args:
        mpiexec: the command that starts MPI processes.
        environment: environment variables to set for the ranks.
    """
    from ipyparallel.cluster.launcher import MPIEngineSetLauncher

    class Launcher(MPIEngineSetLauncher):  # type: ignore[misc]
        """Starts one nanny process per rank by mpiexec."""

        program = property(lambda self: self.engine_cmd)  # without "--mpi": flnb begins MPI itself

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.mpi_cmd = mpiexec
            self.engine_cmd = [sys.executable, "-m", "flnb.distributed.nanny", "-m", "ipyparallel.engine"]
            self.environment = environment
            self.engine_args = ["--IPEngine.enable_nanny=False"]  # it takes a process more per rank

    return Launcher
