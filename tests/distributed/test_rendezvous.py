"""How ranks meet: by a folder and by TCP; by MPI's messages they do in every test with a board."""

from __future__ import annotations

import socket
import threading
import time
from multiprocessing import AuthenticationError
from typing import TYPE_CHECKING, Any

import pytest
from flnb_backends.comm.rendezvous import Folder, Tcp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flnb.interface import Rendezvous

TOKEN = b"a secret"


@pytest.fixture(params=["folder", "tcp"])
def meeting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Rendezvous]]:
    """The rendezvous of three ranks."""
    made: list[Any]
    if request.param == "folder":
        made = [Folder(tmp_path / "meeting", rank, 3) for rank in range(3)]
    else:
        first = Tcp(("127.0.0.1", 0), 0, 3, TOKEN)
        made = [first, *[Tcp(first.address, rank, 3, TOKEN) for rank in (1, 2)]]
    yield made
    for each in made[::-1]:
        each.close()


def test_every_rank_gets_what_any_has_put(meeting: list[Rendezvous]) -> None:
    values = [b"", b"\0\xff" * 1000, b"name/with space"]
    for each, value in zip(meeting, values, strict=True):
        each.put(f"rank/{each.rank}", value)
    for each in meeting:
        assert [each.get(f"rank/{rank}", 5.0) for rank in range(3)] == values


def test_a_value_may_come_later(meeting: list[Rendezvous]) -> None:
    threading.Timer(0.1, meeting[2].put, ("late", b"here")).start()
    assert meeting[1].get("late", 10.0) == b"here"


def test_a_value_that_does_not_come_is_named(meeting: list[Rendezvous]) -> None:
    with pytest.raises(TimeoutError, match=r"no rank has stored 'never' within 0\.05 s; rank 1 of 3 waits for it"):
        meeting[1].get("never", 0.05)


def test_who_does_not_know_the_token_is_sent_away() -> None:
    server = Tcp(("127.0.0.1", 0), 0, 2, TOKEN)
    with socket.create_connection(server.address) as silent:  # holds nobody up
        with pytest.raises(AuthenticationError):
            Tcp(server.address, 1, 2, b"a guess")
        silent.sendall(b"\0\0\0\x10 no challenge ...")
        friend = Tcp(server.address, 1, 2, TOKEN)
        friend.put("key", b"value")
        assert server.get("key", 5.0) == b"value"
        friend.close()
    server.close()


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=rf"no server answers at 127.0.0.1:{address[1]} within 0.2 s"):
        Tcp(address, 1, 2, TOKEN, timeout=0.2)
    assert time.monotonic() - began < 5.0
