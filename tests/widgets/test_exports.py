"""Files of a recording for the browser, and the reasons why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    with flnb.record("other") as other:
        y = flnb.ones(3) + 2.0
    del y
    _, (figure,) = exports.file_of(run, {"format": "svg"}, other)
    assert b"B: other" in figure, "two that are compared are drawn so"


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


def test_of_two_recordings_the_one_that_is_named_answers_about_its_timeline() -> None:
    sent: list[tuple[Any, ...]] = []
    runs = []
    for size in (3, 5):
        with flnb.record(f"of {size}") as run:
            for _ in range(size):
                y = flnb.ones(8) + 1.0
        runs.append(run)
    del y
    answers = RunAnswers(runs, lambda *answer: sent.append(answer))
    for side in (0, 1):
        answers.receive({"type": "timeline", "id": 7 + side, "side": side, "measure": [0.0, 1e6]})
    answers.receive({"type": "timeline", "id": 9, "measure": [0.0, 1e6]})
    told = [(content["id"], content["side"], content["measure"]["counts"]["op"]) for content, _ in sent]
    expected = [len(run.table("op")["t0"]) for run in runs]
    assert expected[0] < expected[1]
    assert told == [(7, 0, expected[0]), (8, 1, expected[1]), (9, 0, expected[0])]
