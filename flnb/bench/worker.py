"""An object in a process of its own, whose methods are called over a pipe.

Contestants of one run then share neither memory nor threads, have their own environment (threads and the settings
of malloc are read once, when a process starts), and can still take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

__all__ = ["Worker", "WorkerError", "serve"]


class WorkerError(RuntimeError):
    """An error in a worker's process; the message names the process, the call, and the error there."""


class Worker:
    """A process with one object, made by ``target(**arguments)``; `call` calls its methods.

    Arguments and results are JSON values. The process ends with the block, or with `close`.

    >>> with Worker("counter", "collections:Counter", {"a": 2}) as worker:
    ...     worker.call("total")
    2

    Args:
        name: what errors call it.
        target: "module:class", importable there as it is here.
        arguments: of the class.
        environment: variables that are set for this process alone.

    Raises:
        WorkerError: the object could not be made, or later a method raised, or the process died.
    """

    def __init__(
        self, name: str, target: str, arguments: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from flnb.bench.worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            text=True,
        )
        assert self._process.stdin is not None  # for the type checker: both were asked for
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        try:
            self.call(target, **arguments)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, /, **arguments: Any) -> Any:
        """Call the object's method with these arguments and return its result."""
        try:
            self._requests.write(json.dumps([method, arguments]) + "\n")
            self._requests.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait()
            raise WorkerError(f"{self.name}: the process ended during {method!r}, with status {status}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {method!r} failed: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        """End the process; once is enough."""
        for pipe in (self._requests, self._answers):
            with suppress(BrokenPipeError):  # it died with something unread
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve() -> None:
    """Run a worker's process: the first line names the object to make, every further one a method to call."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    made: Any = None
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            if made is None:
                module, _, name = method.partition(":")
                made, result = getattr(import_module(module), name)(**arguments), None
            else:
                result = getattr(made, method)(**arguments)
            answer = {"result": result}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
