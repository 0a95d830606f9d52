"""Objects in processes of their own, whose methods are called through a pipe.

So the candidates of a benchmark share neither memory nor threads, and yet take turns. Each has its own environment
variables, because the number of threads and the settings of malloc are read only when a process starts.
"""

from __future__ import annotations

import multiprocessing
import os
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection


class WorkerError(RuntimeError):
    """An error in a worker's process; the message names the process, the method, and the error there."""


class Worker:
    """A process that holds one object, ``target(**arguments)``, whose methods are called by `call`.

    The process ends with the ``with`` block, or by `close`.

    Args:
        name: the worker's name in errors.
        target: the class, written "module:class", which the new process can import.
        arguments: keyword arguments of the class.
        environment: environment variables of the new process, in addition to those of this one.

    Raises:
        WorkerError: the object could not be made; or, later, a method raised an error or the process died.

    >>> from flnb.bench import Worker
    >>> with Worker("counter", "collections:Counter", {"a": 2}) as worker:
    ...     worker.call("total")
    2
    """

    def __init__(
        self, name: str, target: str, arguments: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(theirs,), daemon=True)
        with patch.dict(os.environ, environment or {}):
            self._process.start()
        theirs.close()
        try:
            self.call(target, **arguments)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, /, **arguments: Any) -> Any:
        """Call a method of the object with keyword arguments and return its result; both are pickled."""
        try:
            self._pipe.send((method, arguments))
            error, result = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            status = self._process.exitcode
            raise WorkerError(f"{self.name}: the process ended during {method!r}, with status {status}") from None
        if error:
            raise WorkerError(f"{self.name}: {method!r} failed: {error}")
        return result

    def close(self) -> None:
        """End the process; may be called twice."""
        self._pipe.close()
        self._process.join(10)
        self._process.kill()
        self._process.join()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(pipe: Connection) -> None:
    """Run a worker's process: the first request names the class of the object, each further one a method to call."""
    os.dup2(2, 1)  # what libraries print must not mix with the benchmark's results
    made: Any = None
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            method, arguments = pipe.recv()
            result = error = None
            try:
                if made is None:
                    module, _, name = method.partition(":")
                    made = getattr(import_module(module), name)(**arguments)
                else:
                    result = getattr(made, method)(**arguments)
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
            pipe.send((error, result))
