"""Clusters for notebooks: several ranks, on all of which a cell runs until it ends or is interrupted."""

from __future__ import annotations

import ast
import atexit
import sys
import threading
import traceback
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from importlib.util import find_spec
from io import TextIOBase
from typing import TYPE_CHECKING, Any

from flnb.dispatch.groups import current
from flnb.dispatch.recording import record
from flnb.distributed.failures import Failure, RankError
from flnb.distributed.ranks import run_threads

if TYPE_CHECKING:
    from collections.abc import Iterator


class Output:
    """Prints the output of ranks line by line, each line prefixed by its rank."""

    def __init__(self) -> None:
        self._shown: dict[tuple[int, str], int] = {}
        self.streams = {"stdout": sys.stdout, "stderr": sys.stderr}

    def show(self, rank: int, name: str, text: str, whole: bool) -> None:
        """Print those lines of a rank's stream that were not printed before.

        Args:
            rank: the rank.
            name: the name of the stream, "stdout" or "stderr".
            text: everything that the rank has written to the stream so far.
            whole: whether the rank has ended; then a last line without a newline is printed, too.
        """
        lines = text.split("\n")
        end = len(lines) if whole and lines[-1] else len(lines) - 1
        done = self._shown.get((rank, name), 0)
        for line in lines[done:end]:
            self.write(rank, line, name)
        self._shown[rank, name] = max(end, done)

    def write(self, rank: int, text: str, name: str = "stdout") -> None:
        """Print the text of a rank: the first line prefixed by the rank, the others indented."""
        head = f"rank {rank}: "
        print(head + text.replace("\n", "\n" + " " * len(head)), file=self.streams[name])

    def display(self, rank: int, content: dict[str, Any]) -> None:
        """Display a figure or other rich output of a rank, under a line with the rank's number."""
        from IPython.display import display

        self.write(rank, "")
        display(content["data"], metadata=content.get("metadata"), raw=True)  # type: ignore[no-untyped-call]


class Cluster:
    """Several ranks started from a notebook, each with its own variables, on which cells run.

    The ranks are MPI processes on this machine, started by ipyparallel (extras "parallel" and "mpi"). Without these
    extras, the ranks are threads of this process, and a message is printed. Processes divide the processors: each
    computes on an equal number of threads, unless OMP_NUM_THREADS is set. In IPython, this loads the extension "flnb":
    a cell that begins with ``%%ranks`` runs on all ranks. `flnb.dashboard` shows them live. Interrupting the cell
    raises KeyboardInterrupt on every rank, also in a collective call that other ranks have not made. After an interrupt
    or an error, the next cell gets a new communicator. There is one cluster at a time: creating a new one ends the
    previous one. A cluster also ends by `stop`, at the end of its ``with`` block, or with this program.

    Args:
        ranks: the number of ranks.
        kind: "mpi" for MPI processes, "threads", or None for MPI processes if they can be started and else threads.

    Attributes:
        size: the number of ranks.
        kind: "mpi" or "threads".
        recorded: the recordings of the last cell, even if the cell failed; None if it was not recorded.

    Raises:
        ImportError: ``kind`` is "mpi", and the extras are not installed.

    >>> import flnb
    >>> with flnb.distributed.Cluster(2, kind="threads") as cluster:
    ...     cluster.run("import flnb; total = flnb.distributed.all_reduce(flnb.ones(2))")
    ...     cluster["total"][1].tolist()
    2 ranks, threads of this process
    [2.0, 2.0]
    """

    active: Cluster | None = None
    """The cluster on which ``%%ranks`` runs cells."""

    def __init__(self, ranks: int = 2, kind: str | None = None) -> None:
        if kind not in (None, "mpi", "threads"):
            raise ValueError(f"Cluster(kind={kind!r}): expected 'mpi', 'threads' or None")
        if ranks < 1:
            raise ValueError(f"Cluster({ranks}): expected 1 rank or more")
        if Cluster.active is not None:
            Cluster.active.stop()
        self.recorded: Any = None
        reason = _missing() if kind is None else ""
        self.size, self.kind = ranks, "threads" if kind == "threads" or reason else "mpi"
        if self.kind == "mpi":
            from flnb.distributed.processes import Processes

            self._ranks: Any = Processes(ranks)
        else:
            self._ranks = Threads(ranks)
        Cluster.active = self
        if (ipython := sys.modules.get("IPython")) and (shell := ipython.get_ipython()):
            shell.extension_manager.load_extension("flnb")  # %%ranks, even without %load_ext flnb
        atexit.register(self.stop)
        print(f"{ranks} ranks, {self._ranks.name}{reason}")

    def run(self, source: str, *, record: bool = False, stacks: bool = False) -> Any:
        """Run code on all ranks, printing their output as it arrives; returns when all ranks have finished.

        Args:
            source: the code, as text.
            record: whether to record what every rank does.
            stacks: whether recordings have whole call stacks instead of one line for each op (see `flnb.record`).

        Returns:
            With ``record``, an object with all ranks' recordings, with times on one clock; its attribute
            ``collectives`` says which rank was late and why. Otherwise None.

        Raises:
            ValueError: ``stacks`` without ``record``.
            RankError: the code failed on some rank.
            KeyboardInterrupt: on Ctrl-C, after all ranks were interrupted.
        """
        if stacks and not record:
            raise ValueError("Cluster.run(stacks=True): expected record=True, too: stacks are stored in recordings")
        self.recorded = None
        failures, self.recorded = self._started().run(source, Output(), record, stacks)
        if failures:
            raise RankError(failures)
        return self.recorded

    def show_on(self, hub: Any, rank: int = 0) -> None:
        """Show the ranks live on a dashboard; `flnb.dashboard` calls this.

        Args:
            hub: the dashboard's `flnb.widgets.hub.Hub`.
            rank: the rank whose ops, memory and tape are shown, beside the collective calls of all ranks.
        """
        self._started().show_on(hub, rank)

    def _started(self) -> Any:
        if self._ranks is None:
            raise RuntimeError(
                f"this cluster was stopped; make a new one: cluster = flnb.distributed.Cluster({self.size})"
            )
        return self._ranks

    def __getitem__(self, name: str) -> list[Any]:
        """Return a variable's values on all ranks, as a list in rank order."""
        return self._started().pull(name)

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a variable on all ranks."""
        self._started().push(name, value)

    def stop(self) -> None:
        """End all ranks. If the ranks are MPI processes, also delete their temporary files."""
        atexit.unregister(self.stop)
        if Cluster.active is self:
            Cluster.active = None
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.stop()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Cluster of {self.size} ranks, {'stopped' if self._ranks is None else self._ranks.name}>"


def _missing() -> str:
    """Return why ranks cannot be MPI processes here, as the end of a sentence; "" if they can."""
    from flnb.distributed.launching import find_mpiexec

    for module, extra in (("ipyparallel", "parallel"), ("mpi4py", "mpi")):
        if find_spec(module) is None:
            return f": MPI processes need {module}, which pip install 'flnb[{extra}]' installs"
    try:
        find_mpiexec()
    except FileNotFoundError as error:
        return f": {error}"
    return ""


class Threads:
    """Runs the cells of a `Cluster` on threads: new threads for every cell, with variables that persist."""

    name = "threads of this process"

    def __init__(self, count: int) -> None:
        self._variables: list[dict[str, Any]] = [{"__name__": "__main__"} for _ in range(count)]
        self._cells = 0

    def run(self, source: str, output: Output, recorded: bool, stacks: bool) -> tuple[dict[int, Failure], Any]:
        """Run a cell on all ranks, and print their output as it arrives.

        Args:
            source: the cell.
            output: receives the output.
            recorded, stacks: whether to record the ranks, and with whole call stacks.

        Returns:
            A dict from each rank that failed to its error; and the recording if ``recorded``, else None.
        """
        import linecache

        self._cells += 1
        name = f"<cell {self._cells} of the ranks>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        tree = ast.parse(source, name)
        last = tree.body[-1].value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        body = compile(ast.Module(tree.body[: -1 if last else None], []), name, "exec")
        end = compile(ast.Expression(last), name, "eval") if last else None
        failures: dict[int, Failure] = {}

        def work() -> None:
            rank = current().rank
            variables = self._variables[rank]
            try:
                exec(body, variables)
                if end is not None and (value := eval(end, variables)) is not None:
                    output.write(rank, repr(value))
            except BaseException as error:
                text = "".join(traceback.format_exception(error)[2:])
                failures[rank] = Failure(type(error).__name__, str(error), text)
                raise

        recording = record("ranks", stacks=stacks) if recorded else nullcontext()
        with _by_rank(output), recording as run, suppress(Exception):  # the first error, which is in `failures`
            run_threads(len(self._variables), work)
        return dict(sorted(failures.items())), run

    def pull(self, name: str) -> list[Any]:
        """Return a variable's values on all ranks, in rank order."""
        without = [rank for rank, variables in enumerate(self._variables) if name not in variables]
        if without:
            raise RankError({rank: Failure("NameError", f"name {name!r} is not defined", "") for rank in without})
        return [variables[name] for variables in self._variables]

    def push(self, name: str, value: Any) -> None:
        """Set a variable on all ranks."""
        for variables in self._variables:
            variables[name] = value

    def show_on(self, hub: Any, rank: int) -> None:
        """Do nothing, because the dashboard already shows this process."""

    def stop(self) -> None:
        """Delete the ranks' variables."""
        self._variables.clear()


class _Lines(TextIOBase):
    """An output stream that splits each rank's text into lines and passes them to an `Output`."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._lock, self._texts = threading.Lock(), dict[int, str]()

    def write(self, text: str) -> int:
        communicator = current()
        if communicator.size == 1 and not threading.current_thread().name.startswith("rank "):
            return self._output.streams["stdout"].write(text)
        with self._lock:
            *lines, rest = (self._texts.get(communicator.rank, "") + text).split("\n")
            self._texts[communicator.rank] = rest
            for line in lines:
                self._output.write(communicator.rank, line)
        return len(text)

    def finish(self) -> None:
        """Print the unfinished last line of each rank."""
        for rank, text in sorted(self._texts.items()):
            if text:
                self._output.write(rank, text)


@contextmanager
def _by_rank(output: Output) -> Iterator[None]:
    """Inside a ``with`` block, begin each line that a rank prints with the rank's number."""
    lines = _Lines(output)
    with redirect_stdout(lines):
        yield
    lines.finish()
