"""The board (shared state of all ranks) across several hosts, kept in sync by one process per host.

The first rank of each host starts that process, ``python -m flnb_backends.comm.hosts``. It is not a thread of the rank,
because it must report if the rank is stopped or killed. The process of rank 0 is the server. Every half second, each of
the other processes sends the rows of its host to the server, and receives the rows of all other hosts.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnb.dispatch.board import Board, process_alive
from flnb_backends.comm.rendezvous import connect, serve

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from flnb.interface.communicator import Rendezvous

EVERY = 0.5
"""Seconds between two exchanges of rows."""
LAG = 1.5
"""The largest time, in seconds, until an event on one host is known on all other hosts."""
SILENCE = 5.0
"""Seconds without a report after which a host's ranks are marked as lost."""
AFTER = 2.0
"""Seconds for which a host continues to report after its first rank has ended."""


def host_name() -> str:
    """Return a name unique to this host; tests set FLNB_HOST to simulate several hosts."""
    chosen = os.environ.get("FLNB_HOST")
    boot = Path("/proc/sys/kernel/random/boot_id")  # of hosts that are all called "localhost"
    return chosen or f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}".strip()


def make_board(rendezvous: Rendezvous, number: int, folder: str | None, prefix: str, timeout: float) -> Board:
    """Make the board of a group of ranks, in memory shared by the ranks of this host.

    Args:
        rendezvous: the rendezvous of the group's ranks, all of which call this function.
        number: this rank's number among all ranks that were started.
        folder: the folder of the board's file, from which `flnb launch` reads the file later. If None, the file is
            deleted as soon as all ranks of the host have opened it.
        prefix: the beginning of the file's name.
        timeout: the seconds in which all ranks must have called this function.
    """
    rank, size = rendezvous.rank, rendezvous.size
    rendezvous.put(f"board/host/{rank}", host_name().encode())
    names = [rendezvous.get(f"board/host/{other}", timeout).decode() for other in range(size)]
    hosts = [names.index(each) for each in names]  # a host's number is its first rank
    host = hosts[rank]
    if rank == host:
        place = folder or ("/dev/shm" if os.path.isdir("/dev/shm") else None)
        handle, path = tempfile.mkstemp(prefix=prefix, dir=place)
        os.write(handle, bytes(Board.nbytes(size)))  # a full disk is found here, not by a signal later
        rendezvous.put(f"board/path/{rank}", path.encode())
    else:
        path = rendezvous.get(f"board/path/{host}", timeout).decode()
        handle = os.open(path, os.O_RDWR)
    board = Board(mmap.mmap(handle, Board.nbytes(size)), rank, size, process_alive, host)
    board.begin(os.getpid(), number)
    board.lag = LAG if len(set(hosts)) > 1 else 0.0
    if rank == host and board.lag:
        _processes[board] = _start_exchange(rendezvous, handle, host, timeout)
    os.close(handle)
    rendezvous.put(f"board/open/{rank}", b"")
    for other in range(size):
        rendezvous.get(f"board/open/{other}", timeout)
    if rank == host and not folder:
        os.unlink(path)
    return board


def _start_exchange(rendezvous: Rendezvous, handle: int, host: int, timeout: float) -> subprocess.Popen[str]:
    """Start the process that exchanges this host's rows of the board with other hosts.

    The new process ends soon after the calling process has ended.

    Args:
        rendezvous: the rendezvous of the group's ranks, through which the server's address is sent.
        handle: the file descriptor of the board's file.
        host: the number of this host; the process of host 0 is the server.
        timeout: the seconds to wait for the server's address.
    """
    settings: dict[str, Any] = {"handle": handle, "size": rendezvous.size, "host": host, "parent": os.getpid()}
    if host == 0:
        address = os.environ.get("FLNB_ADDRESS", "127.0.0.1" if "FLNB_HOST" in os.environ else socket.gethostname())
        settings |= {"address": address, "port": 0, "token": secrets.token_hex(32)}
    else:
        settings |= json.loads(rendezvous.get("board/server", timeout))
    hidden = ("PMI_", "PMIX_", "HYDI_", "OMPI_")  # it is not a rank
    process = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        pass_fds=(handle,), env={k: v for k, v in os.environ.items() if not k.startswith(hidden)}, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as given, process.stdout as answers:
        print(json.dumps(settings), file=given, flush=True)
        port = answers.readline()
    if not port:
        raise RuntimeError(f"the process that reports to other hosts ended with status {process.wait()}")
    if host == 0:
        server = {"address": settings["address"], "port": int(port), "token": settings["token"]}
        rendezvous.put("board/server", json.dumps(server).encode())
    return process


_processes: dict[Board, subprocess.Popen[str]] = {}


def end_exchange(board: Board) -> None:
    """End the process that exchanges a board's rows, if this rank started it."""
    if process := _processes.pop(board, None):
        process.terminate()
        process.wait()


class Exchange:
    """Exchanges the board's rows between this host and the others, in a separate process."""

    def __init__(self, board: Board, host: int) -> None:
        self.board, self.host = board, host
        self.heard: dict[int, float] = {}
        self.ended = threading.Event()

    def serve(self, connection: Connection) -> None:
        """Serve one other host: store each report that the host sends, and reply with the rows of all other hosts."""
        while True:
            other = self.take(connection.recv_bytes())
            connection.send_bytes(self.board.report(other))

    def ask(self, connection: Connection) -> None:
        """Send this host's rows to the server repeatedly, and store the rows in its replies, until all ranks end."""
        with connection:
            while not self.ended.wait(EVERY):
                connection.send_bytes(self.board.report())
                self.take(connection.recv_bytes())

    def take(self, report: bytes) -> int:
        """Store the rows of a received report on the board; returns the number of the reporting host."""
        host = self.board.take(report)
        self.heard[host] = time.monotonic()
        return host

    def watch(self, parent: int) -> None:
        """Mark on the board the hosts that have stopped reporting.

        This method returns some seconds after the end of the process whose id is ``parent``.
        """
        end = float("inf")
        while time.monotonic() < end:
            time.sleep(EVERY)
            now = time.monotonic()
            if os.getppid() != parent:
                end = min(end, now + AFTER)
            for host, last in self.heard.items():
                if now - last > SILENCE:
                    self.board.silence(host)
        self.ended.set()


def main() -> None:
    """Read settings (one line of JSON) from stdin, then exchange the board's rows until the ranks end.

    Before that, print the number of the port on which the server listens, or 0 on a host without the server.
    """
    request = json.loads(sys.stdin.readline())
    nbytes, host = Board.nbytes(request["size"]), request["host"]
    exchange = Exchange(Board(mmap.mmap(request["handle"], nbytes), host, request["size"], process_alive, host), host)
    token = request["token"].encode()
    if host == 0:
        server = socket.create_server((request["address"], request["port"]))
        serve(server, token, exchange.serve)
        print(server.getsockname()[1], flush=True)
    else:
        connection = connect((request["address"], request["port"]), token, SILENCE)
        exchange.heard[0] = time.monotonic()
        print(0, flush=True)
        threading.Thread(target=exchange.ask, args=(connection,), daemon=True).start()
    exchange.watch(request["parent"])


if __name__ == "__main__":
    main()
