"""A run as one HTML file, and the server of `flnb view --browser`: what they contain, and whom they answer."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import threading
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from flnb_telemetry.live.recording import LiveRecording

import flnb
from flnb.widgets import page
from flnb.widgets.server import LONGEST, RunServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("numpy_session")
BAD = "</script><script>window.broken = 1</script><!-- <script>"


def recorded(name: str = "page") -> Any:
    """A recording whose names try to end the element that they are in."""
    with flnb.record(name, grad_interval=0) as run:
        x = flnb.Variable(flnb.ones((8, 8)))
        with flnb.step(), flnb.scope(BAD):
            (flnb.exp(x) * 2.0).sum().backward()
        flnb.log(**{BAD: 1.0})
    return run


def elements(text: str, kind: str) -> list[Any]:
    """The JSON values in the page's elements of one class, as a browser would cut them out."""
    return [json.loads(found) for found in re.findall(rf'class="{kind}">(.*?)</script', text, re.DOTALL)]


def test_the_page_contains_all_frames_and_what_the_tape_may_be_asked(tmp_path: Path) -> None:
    run = recorded(BAD)
    run.save_html(tmp_path / "run.html")
    assert os.listdir(tmp_path) == ["run.html"]
    text = (tmp_path / "run.html").read_text(encoding="utf-8")
    found = [
        (each["content"], zlib.decompress(base64.b64decode(each["data"])) if each["data"] else b"")
        for each in elements(text, "flnb-message")
    ]
    expected = [(content | {"side": 0}, buffer) for content, buffer in LiveRecording(run).frames()]
    for content, _ in (*found, *expected):
        content["run"].pop("id")  # a number of each view
    assert [buffer for _, buffer in found] == [buffer for _, buffer in expected]
    assert [content for content, _ in found] == json.loads(json.dumps([content for content, _ in expected]))
    (known,) = elements(text, "flnb-known")
    assert {node["id"] for node in known["tape"]["nodes"]} == {node.id for node in run.tape.nodes}
    assert text.count("</script") == text.count("<script")  # no name has begun or ended an element
    (bundle,) = elements(text, "flnb-dashboard")
    assert bundle == (page.STATIC / "dashboard.js").read_text(encoding="utf-8")
    assert "http://" not in text.replace("http://www.w3.org/", "")


def test_two_runs_make_a_comparison(tmp_path: Path) -> None:
    page.save(tmp_path / "two.html", recorded("a"), recorded("b"))
    text = (tmp_path / "two.html").read_text(encoding="utf-8")
    (bundle,) = elements(text, "flnb-dashboard")
    assert bundle == (page.STATIC / "comparison.js").read_text(encoding="utf-8")
    *frames, compared = elements(text, "flnb-message")
    assert {each["content"]["side"] for each in frames} == {0, 1}
    assert compared["content"]["type"] == "comparison"
    with pytest.raises(TypeError, match=r"expected a recording \(of flnb\.record, or .*\), got int"):
        page.save(tmp_path / "none.html", 3)
    assert not (tmp_path / "none.html").exists()


@pytest.fixture(scope="module")
def server() -> Iterator[RunServer]:
    with RunServer(recorded()) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join(5)
        assert not thread.is_alive()


def asked(server: RunServer, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_the_server_answers_as_the_widget_does(server: RunServer) -> None:
    path = f"/{server.token}/"
    status, text = asked(server, "GET", path)
    assert status == 200
    assert "connect-src 'self'" in text
    assert not elements(text, "flnb-message")
    status, lines = asked(server, "POST", path, json.dumps({"type": "hello"}))
    frames = [json.loads(line) for line in lines.splitlines()]
    assert (status, frames[0]["content"]["run"]["name"]) == (200, "page")
    assert len(frames) == len(list(server.answers.frames[0].frames()))
    status, line = asked(server, "POST", path, json.dumps({"type": "tape", "search": "exp", "after": 0}))
    assert json.loads(line)["content"]["search"]["count"] == 1
    _, line = asked(server, "POST", path, json.dumps({"type": "fit", "capacity": 1}))
    assert json.loads(line.splitlines()[-1])["content"]["state"] == ""
    assert asked(server, "POST", path, json.dumps({"type": "unknown"})) == (200, "")


def test_the_server_refuses_what_is_not_its_page(server: RunServer) -> None:
    path = f"/{server.token}/"
    other = server.token[:-1] + ("x" if server.token[-1] != "x" else "y")
    assert server.server_address[0] == "127.0.0.1"
    for method, at, headers in (
        ("GET", "/", {}), ("POST", f"/{other}/", {}), ("GET", path, {"Host": "evil.example"}),
        ("POST", path, {"Host": f"localhost.evil.example:{server.server_address[1]}"}),
    ):  # fmt: skip
        status, text = asked(server, method, at, "{}" if method == "POST" else None, **headers)
        assert status == 404
        assert "use the whole address that flnb view printed" in text
        assert server.token not in text
    assert asked(server, "POST", path, "[1]")[0] == 400
    assert asked(server, "POST", path, "{")[0] == 400
    assert asked(server, "POST", path, "[" * 60_000)[0] == 400
    assert asked(server, "POST", path, json.dumps({"type": "stack", "context": "x"}))[0] == 400
    assert asked(server, "POST", path, "", **{"Content-Length": str(LONGEST + 1)})[0] == 413
