"""Rendezvous: how ranks exchange start-up data, by a shared folder, a TCP server on rank 0, or MPI messages."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote

from flnb.interface.communicator import Rendezvous

PAUSE = 0.01
"""Seconds between two checks whether a key exists."""


def wait_for(rendezvous: Rendezvous, key: str, timeout: float, look: Callable[[], bytes | None]) -> bytes:
    """Call ``look`` repeatedly until the result is bytes, and return these.

    After ``timeout`` seconds a TimeoutError is raised, whose message names ``key``.
    """
    end = monotonic() + timeout
    while (found := look()) is None:
        if monotonic() > end:
            raise TimeoutError(
                f"{type(rendezvous).__name__}: no rank has stored {key!r} within {timeout:g} s; "
                f"rank {rendezvous.rank} of {rendezvous.size} waits for it"
            )
        sleep(PAUSE)
    return found


class Folder(Rendezvous):
    """Exchange of keys and values through files in a folder to which all ranks have access (on one host or a network).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as path:
    ...     Folder(path, 0, 2).put("address", b"here")
    ...     Folder(path, 1, 2).get("address", timeout=1.0)
    b'here'
    """

    def __init__(self, path: str | Path, rank: int, size: int) -> None:
        self.path, self.rank, self.size = Path(path), rank, size
        self.path.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, value: bytes) -> None:
        """Write the value atomically to the key's file."""
        aside = self.path / f".{self.rank}_{os.getpid()}_{threading.get_ident()}"
        aside.write_bytes(value)
        aside.replace(self.path / quote(key, safe=""))

    def get(self, key: str, timeout: float) -> bytes:
        """Return the key's value, waiting up to ``timeout`` seconds for its file."""
        return wait_for(self, key, timeout, lambda: self._look(key))

    def _look(self, key: str) -> bytes | None:
        try:
            return (self.path / quote(key, safe="")).read_bytes()
        except FileNotFoundError:
            return None


class Tcp(Rendezvous):
    """Exchange of keys and values through a TCP server in rank 0's process, which requires a secret token.

    Args:
        address: host and port on which rank 0 listens. With port 0 a free port is chosen, and the attribute `address`
            must be sent to the other ranks by other means.
        rank: the number of this rank.
        size: the number of ranks.
        token: a secret that all ranks know. It is never sent: ranks only prove to each other that they know it.
        timeout: the seconds that the server may take to answer.

    Raises:
        TimeoutError: no server has answered within ``timeout`` seconds.
        AuthenticationError: the server has another token.
    """

    def __init__(self, address: tuple[str, int], rank: int, size: int, token: bytes, timeout: float = 60.0) -> None:
        self.rank, self.size = rank, size
        self._token, self._timeout, self._lock = token, timeout, threading.Lock()
        self._values: dict[str, bytes] = {}
        self._server = socket.create_server(address) if rank == 0 else None
        self.address: tuple[str, int] = self._server.getsockname()[:2] if self._server else address
        if self._server is None:
            self._connection = connect(self.address, token, timeout)
        else:
            serve(self._server, token, self._answer)

    def put(self, key: str, value: bytes) -> None:
        """Store a value on the server."""
        if self._server is None:
            self._ask(b"put", key.encode(), value)
        else:
            self._values[key] = value

    def get(self, key: str, timeout: float) -> bytes:
        """Return a key's value, waiting up to ``timeout`` seconds until the server has it."""
        if self._server is None:
            return wait_for(self, key, timeout, lambda: self._ask(b"get", key.encode(), b""))
        return wait_for(self, key, timeout, lambda: self._values.get(key))

    def close(self) -> None:
        """Close the sockets; the server's values are lost."""
        if self._server is None:
            self._connection.close()
        else:
            with suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._server.close()

    def _ask(self, *question: bytes) -> bytes | None:
        with self._lock:
            for part in question:
                self._connection.send_bytes(part)
            if not self._connection.poll(self._timeout):
                raise TimeoutError(f"Tcp: the server at {self.address} has not answered within {self._timeout:g} s")
            answer = self._connection.recv_bytes()
        return answer[1:] if answer else None

    def _answer(self, connection: Connection) -> None:
        """Serve one rank until it closes the connection."""
        while True:
            what, key, value = (connection.recv_bytes() for _ in range(3))
            if what == b"put":
                self._values[key.decode()] = value
            found = self._values.get(key.decode())
            connection.send_bytes(b"" if found is None else b"=" + found)


def connect(address: tuple[str, int], token: bytes, timeout: float) -> Connection:
    """Connect to a server with a token, waiting up to ``timeout`` seconds for the server to start."""
    end = monotonic() + timeout
    while True:
        try:
            connection = Connection(socket.create_connection(address, timeout=timeout).detach())
            break
        except OSError as error:
            if monotonic() > end:
                raise TimeoutError(f"no server answers at {address[0]}:{address[1]} within {timeout:g} s") from error
            sleep(PAUSE)
    os.set_blocking(connection.fileno(), True)
    try:
        if not connection.poll(max(0.0, end - monotonic())):
            raise TimeoutError(f"no server answers at {address[0]}:{address[1]} within {timeout:g} s")
        answer_challenge(connection, token)
        deliver_challenge(connection, token)
    except BaseException:
        connection.close()
        raise
    return connection


def serve(server: socket.socket, token: bytes, answer: Callable[[Connection], None]) -> None:
    """Accept connections in a background thread, and call ``answer`` with each of them in a thread of its own.

    If the other end does not prove that it knows ``token``, the connection is closed instead.
    """

    def one(connection: Connection) -> None:
        try:
            with connection:
                deliver_challenge(connection, token)
                answer_challenge(connection, token)
                answer(connection)
        except (OSError, EOFError, ValueError, AssertionError, AuthenticationError):
            pass  # a stranger, or one that has gone

    def accept() -> None:
        while True:
            try:
                accepted, _ = server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=one, args=(Connection(accepted.detach()),), daemon=True).start()

    threading.Thread(target=accept, name="flnb rendezvous", daemon=True).start()


class Messages(Rendezvous):
    """Exchange of keys and values by MPI messages from one rank to all others, on a separate mpi4py communicator."""

    TAG = 1

    def __init__(self, engine: Any) -> None:
        self._engine, self.rank, self.size = engine, engine.rank, engine.size
        self._values: dict[str, bytes] = {}
        self._sent: list[Any] = []

    def put(self, key: str, value: bytes) -> None:
        """Send a value to every other rank."""
        self._values[key] = value
        others = [rank for rank in range(self.size) if rank != self.rank]
        self._sent += [self._engine.isend((key, value), rank, self.TAG) for rank in others]

    def get(self, key: str, timeout: float) -> bytes:
        """Return a key's value, waiting up to ``timeout`` seconds for its message."""
        return wait_for(self, key, timeout, lambda: self._look(key))

    def _look(self, key: str) -> bytes | None:
        while key not in self._values and self._engine.iprobe(tag=self.TAG):
            found, value = self._engine.recv(tag=self.TAG)
            self._values[found] = value
        self._sent = [request for request in self._sent if not request.Test()]
        return self._values.get(key)
