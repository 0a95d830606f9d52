"""The current rank, and functions that start ranks and choose the communicator."""

from __future__ import annotations

import os
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from flnb_telemetry import bus

from flnb.dispatch import parts
from flnb.dispatch.board import FAILED
from flnb.dispatch.groups import abandon, current
from flnb.distributed.clocks import sync_hosts
from flnb.interface.communicator import Communicator
from flnb.random import Generator, use_generator

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

T = TypeVar("T")

STARTED_BY_MPI = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
"""The environment variables that make a process a rank."""


def init(communicator: str | type[Communicator] | Communicator | None = None) -> Communicator:
    """Join the ranks that were started together, for the rest of the session; every rank calls this once, early.

    Args:
        communicator: a communicator's name (such as "mpi"; `flnb doctor` lists all), class or instance. By default it
            is "mpi" in a process that mpiexec, Slurm or ipyparallel started, otherwise the active communicator.

    Returns:
        The communicator. Its attribute ``timeout`` is the number of seconds that a collective call waits for ranks that
        have not made the call.

    Raises:
        ImportError: the communicator is "mpi", and the extra "mpi" is not installed.

    >>> import flnb
    >>> flnb.distributed.init()
    <Single communicator 'single', rank 0 of 1>
    """
    if communicator is None:
        if current().size > 1 or not any(name in os.environ for name in STARTED_BY_MPI):
            return current()
        communicator = "mpi"
    joined = set_communicator(communicator)
    if joined.size > 1 and type(joined).recv is not Communicator.recv:
        sync_hosts()
    return joined


def rank() -> int:
    """Return the number of this rank, counted from 0.

    >>> import flnb
    >>> flnb.distributed.rank()
    0
    """
    return current().rank


def size() -> int:
    """Return the number of ranks.

    >>> import flnb
    >>> flnb.distributed.size()
    1
    """
    return current().size


def use_communicator(communicator: str | type[Communicator] | Communicator) -> AbstractContextManager[Communicator]:
    """Use another communicator, given by name, class or instance, inside a ``with`` block.

    Raises:
        TypeError: ``communicator`` is neither a name nor a class or an instance of `Communicator`.
        ValueError: the name or a setting is unknown.

    >>> import flnb
    >>> with flnb.distributed.use_communicator("single") as communicator:
    ...     communicator.size
    1
    """
    return parts.use_part("communicator", communicator)


def set_communicator(communicator: str | type[Communicator] | Communicator) -> Communicator:
    """Use another communicator for the rest of the session; returns it.

    Args:
        communicator: a communicator's name, class or instance. A name may be followed by settings:
            ``"modelled:latency=1e-4,bandwidth=1GiB"`` delays the calls of the active communicator, as a link with this
            latency (s) and bandwidth (bytes/s) would.

    Raises:
        TypeError: ``communicator`` is neither a name nor a class or an instance of `Communicator`.
        ValueError: the name or a setting is unknown.

    >>> import flnb
    >>> flnb.distributed.set_communicator("single").name
    'single'
    """
    return parts.set_part("communicator", communicator)


def run_threads(ranks: int, function: Callable[..., T], *arguments: Any, timeout: float = 300.0) -> list[T]:
    """Run a function on ranks that are threads of this process; returns their results in rank order.

    Each rank begins with the backend, memory manager and other parts that are active here. It counts its own training
    steps, and has its own random generator, seeded by the rank's number.

    Args:
        ranks: the number of ranks.
        function: the function, which is called as ``function(*arguments)`` on each rank.
        arguments: the function's arguments.
        timeout: the number of seconds that a collective call waits for other ranks.

    Raises:
        Exception: the first error that the function raised on any rank, with a note that names the rank.

    >>> import flnb
    >>> flnb.distributed.run_threads(3, flnb.distributed.rank)
    [0, 1, 2]
    """
    from flnb_backends.comm.threads import World

    world = World(ranks)
    results: list[Any] = [None] * ranks
    errors: list[tuple[int, BaseException]] = []

    communicators = [world.communicator(number) for number in range(ranks)]

    def work(number: int) -> None:
        communicator = communicators[number]
        communicator.timeout = timeout
        communicator.begin()
        try:
            with use_communicator(communicator), bus.own_steps(), use_generator(Generator(number)):
                results[number] = function(*arguments)
        except BaseException as error:
            errors.append((number, error))
            if communicator.board is not None:
                communicator.board.end(FAILED)
        finally:
            if communicator.board is not None:
                communicator.board.end()

    threads = [
        threading.Thread(target=copy_context().run, args=(work, number), name=f"rank {number}", daemon=True)
        for number in range(ranks)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:  # Ctrl-C: the ranks end at their next call
        for communicator in communicators:
            abandon(communicator, "the program that started this rank was interrupted")
        raise
    if errors:
        number, error = errors[0]
        error.add_note(f"on rank {number} of {ranks}")
        raise error
    return results
