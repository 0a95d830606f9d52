"""Asynchronous training: each rank steps on its own and occasionally exchanges parameters with a shared center.

No rank waits for the others' steps. The center is one copy of all parameters. It is either in memory that the ranks of
a host share, or in the memory of one rank, the controller, to which the others send messages.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import tempfile
from collections.abc import Iterator
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.withblock import with_block

from flnb.dispatch.communication import run, start, wait_any
from flnb.dispatch.groups import current
from flnb.interface.communicator import CollectiveError
from flnb.ops.elementwise import assign

if TYPE_CHECKING:
    from flnb.dispatch.communication import Pending
    from flnb.nn.module import Module

HEADER, DATA = 7001, 7002
"""The tags of messages: requests of a rank to the controller, and parameters."""
EXCHANGE, DONE = 1, 2
PATH = 512
"""The number of bytes in which the host's name and the file's path are sent."""


class _Shared:
    """The center's parameters in a file mapped into the memory of all ranks of a host, with a lock.

    The file has no name in any folder, so the system deletes it once no rank has it open.
    """

    def __init__(self, values: Any) -> None:
        place, made = np.zeros(PATH, np.uint8), ""
        try:
            if current().rank == 0:
                folder = os.environ.get("FLNB_FLIGHT") or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
                handle, made = tempfile.mkstemp(prefix="flnb_center_", dir=folder)
                with open(handle, "wb") as file:
                    values.tofile(file)  # a full disk is found here, not by a signal later
                    file.truncate(max(1, values.nbytes))
                text = f"{socket.gethostname()}\0{made}".encode()
                place[: len(text)] = np.frombuffer(text, np.uint8)
            run("broadcast", place, 0)
            host, path = place.tobytes().rstrip(b"\0").decode().split("\0")
            reached = np.array([host == socket.gethostname() and os.path.exists(path)], np.uint8)
            if reached[0]:
                self._handle = os.open(path, os.O_RDWR)  # a lock belongs to whoever opened the file, be it a thread
            run("all_reduce", reached, "min")
        finally:
            if made:
                os.unlink(made)
        if not reached[0]:
            raise CollectiveError(
                f"not all ranks share the memory of host {host!r}: pass controller=0 to store the center on rank 0"
            )
        self.values = np.frombuffer(mmap.mmap(self._handle, max(1, values.nbytes)), values.dtype, values.size)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            os.close(handle)

    @with_block
    def locked(self) -> Iterator[None]:
        """Lock the shared parameters during a ``with`` block; if the rank dies, the system frees the lock."""
        began, timeout = monotonic(), current().timeout
        try:
            while not self._try_lock():
                sleep(0)
                if monotonic() - began > timeout:
                    raise CollectiveError(
                        f"rank {current().rank} has waited {timeout:.0f} s for the lock of the shared parameters (the "
                        f"center), which another rank holds"
                    )
            yield
        finally:  # also after an interrupt as the lock was got; unlocking what another holds does nothing
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class _Asynchronous:
    """Base of asynchronous training: this rank's module, its step count, and its access to the center parameters."""

    def __init__(self, module: Module, every: int = 1, controller: int | None = None) -> None:
        if every < 1:
            raise ValueError(f"{type(self).__name__}: got every={every}, expected 1 or more steps")
        here = current()
        if controller is not None and not 0 <= controller < here.size:
            raise ValueError(
                f"{type(self).__name__}: got controller={controller}, expected a rank from 0 to {here.size - 1}"
            )
        self.module, self.every, self.controller = module, every, controller
        self._parameters = module.parameters()
        if not self._parameters:
            raise ValueError(f"{type(self).__name__}: the module {type(module).__name__} has no parameters")
        self._steps = 0
        values = self._flat()
        run("broadcast", values, controller or 0)
        self._write(values)
        self._old = values
        self._center: Any = None
        self._shared: _Shared | None = None
        self._finished: set[int] = set()
        self._asked: dict[int, tuple[Any, Pending]] = {}  # of each rank that may ask the controller: its next message
        if controller is None:
            self._shared = _Shared(values)
        elif here.rank == controller:
            self._center = values.copy()

    def _flat(self) -> Any:
        """Return all parameters of the module as one flat NumPy array of their common dtype."""
        return np.concatenate([p.data.numpy().reshape(-1) for p in self._parameters])

    def _write(self, values: Any) -> None:
        """Set the module's parameters from one flat array."""
        begin = 0
        for p in self._parameters:
            assign(p.data, values[begin : begin + p.size].reshape(p.shape))
            begin += p.size

    def step(self) -> None:
        """Count one optimizer step, and exchange parameters if ``every`` steps have passed since the last exchange.

        The controller also answers requests of the other ranks.
        """
        if self._shared is None and current().rank == self.controller:
            self._listen()
            for rank in [rank for rank, (_, pending) in self._asked.items() if pending.test()]:
                self._answer(rank)
        self._steps += 1
        if self._steps % self.every == 0:
            self.exchange()

    def exchange(self) -> None:
        """Exchange this rank's parameters with the shared center, by the rule of the subclass.

        Raises:
            CollectiveError: the controller has died, or the center stayed locked for longer than the communicator's
                timeout.
        """
        mine = self._flat()
        message = self._message(mine)
        if self._shared is not None:
            with self._shared.locked():
                answer = self._meet(self._shared.values, message)
        elif current().rank == self.controller:
            answer = self._meet(self._center, message)
        else:
            answer = np.empty_like(message)
            run("send", np.array([EXCHANGE]), self.controller, HEADER)
            run("send", message, self.controller, DATA)
            run("recv", answer, self.controller, DATA)
        self._write(self._answered(mine, answer))

    def finish(self) -> None:
        """Wait until all ranks call this method, then set every rank's module to the center's parameters.

        Meanwhile the controller, if there is one, still answers the other ranks' requests.

        Raises:
            CollectiveError: a rank has died.
        """
        here = current()
        if self._shared is not None:
            run("barrier")
            self._write(self._shared.values)
            run("barrier")
            return
        if here.rank == self.controller:
            self._listen()
            while waiting := {
                rank: pending for rank, (_, pending) in self._asked.items() if rank not in self._finished
            }:
                self._answer(wait_any(waiting))
            self._asked, self._finished = {}, set()
            values = self._center.copy()
        else:
            run("send", np.array([DONE]), self.controller, HEADER)
            values = np.empty_like(self._old)
        run("broadcast", values, self.controller)
        self._write(values)

    def _listen(self) -> None:
        """Start to receive requests from all other ranks; only the controller calls this."""
        for rank in range(current().size) if not self._asked else ():
            if rank != self.controller:
                self._receive(rank)

    def _receive(self, rank: int) -> None:
        wanted = np.zeros(1, np.int64)
        self._asked[rank] = wanted, start("recv", wanted, rank, HEADER)

    def _answer(self, rank: int) -> None:
        """Answer a rank's request: exchange parameters with the rank, or record that the rank has finished."""
        if rank not in self._finished:
            if self._asked[rank][0][0] == DONE:
                self._finished.add(rank)
                return
            message = np.empty_like(self._center)
            run("recv", message, rank, DATA)
            run("send", self._meet(self._center, message), rank, DATA)
            self._receive(rank)

    def _message(self, mine: Any) -> Any:
        """Return the array to send to the center, computed from this rank's flat parameters."""
        raise NotImplementedError

    def _meet(self, center: Any, message: Any) -> Any:
        """Update the center in place from a rank's message; returns the array to send back."""
        raise NotImplementedError

    def _answered(self, mine: Any, answer: Any) -> Any:
        """Return this rank's new flat parameters, from its old ones and the center's answer."""
        raise NotImplementedError


class ASGD(_Asynchronous):
    """Asynchronous SGD: a rank adds the changes of its parameters since the last exchange to a shared center.

    The center is a copy of all parameters that belongs to no rank's module. After its last step every rank calls
    `finish`, which sets all modules to the center's parameters.

    Dean et al., 2012, "Large Scale Distributed Deep Networks", section 4.1 (Downpour), with parameters in the place of
    gradients: ``center += mine - old``, then ``mine = old = center``.

    Args:
        module: the module to train; all ranks begin with the parameters of the controller, or else of rank 0.
        every: the number of steps of a rank between two exchanges.
        controller: the rank that stores the center. It answers the other ranks in its own calls of `step` and `finish`.
            By default the center is in memory that the ranks of one host share.

    >>> import flnb, flnb.nn as nn
    >>> def train():
    ...     net = nn.Linear(1, 1, bias=False)
    ...     flnb.assign(net.weight.data, 1.0)
    ...     center = flnb.distributed.ASGD(net)
    ...     flnb.assign(net.weight.data, 2.0 + flnb.distributed.rank())  # a step of an optimizer
    ...     center.step()
    ...     center.finish()
    ...     return net.weight.item()
    >>> flnb.distributed.run_threads(2, train)
    [4.0, 4.0]
    """

    def _message(self, mine: Any) -> Any:
        return mine - self._old

    def _meet(self, center: Any, message: Any) -> Any:
        center += message
        return center.copy()

    def _answered(self, mine: Any, answer: Any) -> Any:
        self._old = answer
        return answer


class EASGD(_Asynchronous):
    """Elastic averaging SGD: a rank's parameters and a shared center move towards each other in each exchange.

    The center is a copy of the parameters that belongs to no rank's module. After its last step every rank calls
    `finish`, see `ASGD`.

    Zhang, Choromanska and LeCun, 2015, "Deep learning with Elastic Averaging SGD", section 3:
    ``d = share * (mine - center); mine -= d; center += d``.

    Args:
        module: the module to train; all ranks begin with the parameters of the controller, or else of rank 0.
        share: the fraction of the difference by which each side moves, above 0 and at most 1.
        every: the number of steps of a rank between two exchanges.
        controller: the rank that stores the center. It answers the other ranks in its own calls of `step` and `finish`.
            By default the center is in memory that the ranks of one host share.

    >>> import flnb, flnb.nn as nn
    >>> net = nn.Linear(1, 1, bias=False)
    >>> _ = flnb.assign(net.weight.data, 1.0)
    >>> center = flnb.distributed.EASGD(net, share=0.25)
    >>> _ = flnb.assign(net.weight.data, 5.0)  # a step of an optimizer
    >>> center.step()
    >>> net.weight.item()
    4.0
    >>> center.finish()
    >>> net.weight.item()
    2.0
    """

    def __init__(self, module: Module, share: float = 0.5, every: int = 1, controller: int | None = None) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"EASGD: got share={share}, expected a number above 0 and at most 1")
        self.share = share
        super().__init__(module, every, controller)

    def _message(self, mine: Any) -> Any:
        return mine

    def _meet(self, center: Any, message: Any) -> Any:
        change = (message - center) * center.dtype.type(self.share)
        center += change
        return change

    def _answered(self, mine: Any, answer: Any) -> Any:
        return mine - answer
