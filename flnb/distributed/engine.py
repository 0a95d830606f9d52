"""Functions that a notebook's kernel runs in the MPI processes of its `Cluster`.

Live telemetry is published only while a cell runs, because ipyparallel drops messages outside of a running request.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
import traceback
from contextlib import ExitStack, suppress
from typing import Any

from flnb_telemetry.joined import Message, RankSource
from ipyparallel.datapub import publish_data
from IPython import get_ipython

from flnb.dispatch.board import process_alive
from flnb.dispatch.groups import abandon, current
from flnb.dispatch.recording import record
from flnb.distributed import nanny
from flnb.distributed.ranks import init

_watched: dict[str, RankSource] = {}
_recording = ExitStack()


def begin(kernel: int, controller: int, folder: str) -> tuple[int, int, int]:
    """Make this process a rank, which ends when the kernel ends; return three numbers.

    The numbers are the rank, the id of this process, and the id of the parent process.

    Args:
        kernel: the process id of the notebook's kernel.
        controller: the process id of the ipyparallel controller.
        folder: the cluster's folder, which is deleted when the kernel has died.
    """
    rank = init("mpi").rank
    get_ipython().events.register("pre_run_cell", _cell_begins)
    get_ipython().events.register("post_run_cell", _cell_ended)
    get_ipython().set_custom_exc((KeyboardInterrupt,), _place)
    threading.Thread(target=_end_with, args=(kernel, controller, folder, rank), daemon=True).start()
    return rank, os.getpid(), os.getppid()


def prepare(broken: bool, number: int | None, record_to: str | None, stacks: bool) -> None:
    """Prepare this rank for a cell; runs on all ranks before the cell starts on any.

    Args:
        broken: whether an interrupt or error may have left collective calls unfinished; if so, a new communicator is
            made.
        number: the cell's number in the notebook, which tracebacks show; None outside of notebooks.
        record_to: the folder to which the recording of the cell is saved; None for no recording.
        stacks: whether the recording has whole call stacks.
    """
    if number is not None:
        get_ipython().execution_count = number
    if broken:
        init("mpi")
    elif (board := current().board) is not None:
        board.resume()
    if record_to is not None:
        _recording.callback(lambda: run.save(f"{record_to}/{current().rank}.flnb"))  # when it has ended
        run = _recording.enter_context(record("ranks", stacks=stacks))


def _cell_begins(_: Any) -> None:
    """Start to publish telemetry again, because a cell begins to run; `_cell_ended` pauses it."""
    if _watched:
        _watched["source"].resume()


def _cell_ended(result: Any) -> None:
    """Report the end of a cell to the dashboard and to the other ranks: this rank makes no more calls in the cell."""
    _recording.close()
    if _watched:
        _watched["source"].pause()
    communicator = current()
    error = result.error_before_exec or result.error_in_exec
    if error is not None:
        abandon(communicator, f"the cell failed with {type(error).__name__}")
    elif communicator.board is not None:
        communicator.board.end()


def watch(chosen: int) -> None:
    """Publish this rank's collective calls for the kernel's dashboard, and on the rank ``chosen`` all its telemetry."""
    source = _watched["source"] = RankSource(_publish, "ranks", frames=current().rank == chosen)
    source.start().pause()


def _publish(message: Message) -> None:
    publish_data({f"flnb {message['number']!s}": message})


def _place(shell: Any, kind: Any, error: Any, trace: Any, tb_offset: Any = None) -> None:
    """Show the line at which an interrupt stopped the cell, instead of a traceback; IPython calls this function."""
    frames = traceback.extract_tb(trace)
    frame = next((each for each in reversed(frames) if "ipykernel_" in each.filename), frames[-1])
    shell._showtraceback(kind, error, [f"line {frame.lineno}, {frame.line}"])


def remove_shared(folder: str) -> None:
    """Delete a cluster's folder, and the shared memory files that killed MPI processes have left behind."""
    nanny.remove_shared(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _end_with(kernel: int, controller: int, folder: str, rank: int) -> None:
    """Wait until the kernel has died, and end this process; rank 0 also ends the controller and deletes ``folder``.

    ``kernel`` and ``controller`` (of ipyparallel) are process ids; ``folder`` is the cluster's folder.
    """
    while process_alive(kernel) != "gone":
        time.sleep(1.0)
    if rank == 0:
        with suppress(ProcessLookupError):
            os.kill(controller, signal.SIGTERM)
        remove_shared(folder)
    os._exit(1)
