"""A web server for the dashboard of recordings, for browsers on this machine: `flnb view RUN --browser`.

It listens only on the loopback address, at a random port, and answers only under a path that begins with a random
token. So neither other users nor other pages of the browser can read a recording.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from flnb.widgets import page
from flnb.widgets.answers import RunAnswers
from flnb.widgets.finished import recording_of

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 1 << 16
"""The largest size of a browser's message, in bytes."""
PATIENCE = 60.0
"""The seconds after which a silent connection is closed and a search for a memory plan ends."""


class RunServer(ThreadingHTTPServer):
    """Serves the dashboard of one recording, or of two side by side, at `url` until `shutdown` is called.

    Args:
        runs: recordings, or paths of saved ones.

    Example: ``server = RunServer(run); print(server.url); server.serve_forever()``.
    """

    daemon_threads = True

    def __init__(self, *runs: Any) -> None:
        self._write: Callable[[bytes], object] = len
        self._turn = threading.Lock()  # one message at a time: answers go to the newest request
        self.answers = RunAnswers([recording_of(run) for run in runs], self._send)
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = secrets.token_urlsafe(24)
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.url = f"http://{self.host}/{self.token}/"

    def answer(self, message: dict[str, Any], write: Callable[[bytes], object]) -> None:
        """Reply to a message of the page: write each answer as a line of JSON (see `page.encoded`)."""
        with self._turn:
            self._write = write
            try:
                self.answers.receive(message)
                if message.get("type") in ("fit", "apply"):
                    self.answers.proposals.wait(PATIENCE)
            finally:
                self._write = len

    def _send(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        self._write((page.encoded(content, *(buffers or [])[:1]) + "\n").encode())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error in answering a request as one line, unless the browser has closed the connection."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            print(f"flnb view: {type(error).__name__}: {error}", file=sys.stderr)


class _Handler(BaseHTTPRequestHandler):
    server: RunServer
    timeout = PATIENCE
    server_version, sys_version = "flnb", ""

    def _refused(self) -> bool:
        """Reject a request that lacks the token or names another host (DNS rebinding); returns True if rejected."""
        path = self.path.encode("utf-8", "replace")
        known = secrets.compare_digest(path, f"/{self.server.token}/".encode())
        if known and self.headers.get("Host") == self.server.host:
            return False
        self.send_error(404, "no such page: use the whole address that flnb view printed")
        return True

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        for name, value in (("Content-Type", f"{kind}; charset=utf-8"), ("Cache-Control", "no-store"),
                            ("Referrer-Policy", "no-referrer"), ("X-Content-Type-Options", "nosniff")):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self) -> None:
        if not self._refused():
            self._begin("text/html")
            self.wfile.write(page.served(self.server.answers).encode())

    def do_POST(self) -> None:
        if self._refused():
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LONGEST:
            self.send_error(413, f"a message of {length or 'unknown'} bytes; expected at most {LONGEST}")
            return
        try:
            message = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self.send_error(400, "expected a message: a JSON object")
            return
        begun = False

        def write(line: bytes) -> None:
            nonlocal begun
            if not begun:
                self._begin("application/x-ndjson")
            begun = True
            self.wfile.write(line)

        try:
            self.server.answer(message, write)
        except (TypeError, ValueError, KeyError, OverflowError):
            if begun:
                raise
            self.send_error(400, "expected a message with values of the types that the page sends")
            return
        write(b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: requests are not logged."""


def serve(*runs: Any, opened: Callable[[str], object]) -> None:
    """Serve one or two recordings until Ctrl-C; call `opened` with the address once the server listens."""
    with RunServer(*runs) as server:
        try:
            opened(server.url)
            server.serve_forever()
        except KeyboardInterrupt:
            pass
