"""Files of a recording for the browser, and the reasons why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import flnb
from flnb.widgets import exports
from flnb.widgets.answers import RunAnswers

if TYPE_CHECKING:
    import pytest


def test_a_message_asks_for_a_file() -> None:
    with flnb.record("a/b: ../c") as run:
        y = flnb.ones(3) * 2.0
    del y
    sent: list[tuple[object, ...]] = []
    answers = RunAnswers([run], lambda *answer: sent.append(answer))
    answers.receive({"type": "export", "format": "svg"})
    content, buffers = sent[0]
    assert content == {"type": "export", "name": "a-b-..-c.svg", "error": ""}
    assert isinstance(buffers, list)
    assert buffers[0].startswith(b"<svg ")


def test_says_why_there_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def error(run: flnb.Recording | None, ending: object) -> str:
        content, buffers = exports.file_of(run, {"format": ending})
        assert content["name"] == ""
        assert buffers == []
        return str(content["error"])

    assert "no format '../x'; expected one of flnb, html" in error(None, "../x")
    assert "nothing has been recorded" in error(None, "svg")
    with flnb.record("running") as run:
        assert "still runs; export it when it has ended" in error(run, "svg")
    monkeypatch.setattr(exports, "LARGEST", 10)
    assert "more than 10 B; write it with run.save_as('run.svg')" in error(run, "svg")
