"""The hub's promises: credit, keyframes, resync, never waiting, nothing lost silently."""

from __future__ import annotations

import logging
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from flnb.widgets.hub import IDLE, SILENCE, WINDOW, Hub, pause


class Recorder:
    """A source that counts what it was asked for, and the browser's side of the wire."""

    def __init__(self) -> None:
        self.asked: list[bool] = []
        self.sent: list[dict[str, Any]] = []
        self.events = 0
        self.emitted = 0
        self.tabs: list[str] = []

    def refresh(self) -> None:
        self.events += self.emitted
        self.emitted = 0

    def prepare(self) -> None:
        assert len(self.sent) == len(self.asked), "a frame waits"

    def look(self, tab: str) -> None:
        self.tabs.append(tab)

    def frame(self, keyframe: bool) -> tuple[dict[str, Any], bytes]:
        self.asked.append(keyframe)
        return {"type": "frame", "protocol": 1, "keyframe": keyframe}, b"x" * 8

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        return None

    def send(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        assert [len(buffer) for buffer in buffers] == [8]
        self.sent.append(content)


@pytest.fixture
def wire() -> Recorder:
    return Recorder()


@pytest.fixture
def hub(wire: Recorder) -> Hub:
    return Hub(wire, wire.send)


def turns(hub: Hub, wire: Recorder, times: list[float]) -> list[bool]:
    """Tick at these times, something new recorded before each."""
    sent = []
    for now in times:
        wire.events += 1
        sent.append(hub.tick(now))
    return sent


def test_first_frame_is_whole_and_sequence_rises_by_one(hub: Hub, wire: Recorder) -> None:
    turns(hub, wire, [0.0, 0.05, 0.1])
    assert [frame["seq"] for frame in wire.sent] == [1, 2, 3]
    assert wire.asked == [True, False, False]


def test_without_credit_nothing_is_sent_and_the_source_goes_on_collecting(hub: Hub, wire: Recorder) -> None:
    start = time.monotonic()
    hub.receive({"type": "hello", "protocol": 1})
    assert turns(hub, wire, [start + 0.05 * k for k in range(8)]) == [True] * WINDOW + [False] * (8 - WINDOW)
    hub.receive({"type": "ack", "seq": 2})
    assert turns(hub, wire, [start + 0.4, start + 0.45, start + 0.5]) == [True, True, False]
    assert wire.asked == [True] + [False] * (WINDOW + 1)


def test_silent_browser_gets_a_keyframe_twice_a_second_and_no_more(hub: Hub, wire: Recorder) -> None:
    start = time.monotonic() + 10
    sent = turns(hub, wire, [start + 0.05 * k for k in range(61)])  # three seconds
    whole = [k * 0.05 for k, was_sent in enumerate(sent) if was_sent][WINDOW:]
    assert wire.asked[:WINDOW] == [True] + [False] * (WINDOW - 1)
    assert set(wire.asked[WINDOW:]) == {True}
    assert 5 <= len(whole) <= 6
    assert min(b - a for a, b in pairwise(whole)) >= SILENCE - 1e-9


def test_browsers_that_cannot_be_heard_get_what_is_new_and_a_keyframe_each_second(hub: Hub, wire: Recorder) -> None:
    hub.deaf = True
    start = time.monotonic() + 10
    sent = turns(hub, wire, [start + 0.04 * k for k in range(75)])  # three seconds
    assert [at for at, was_sent in enumerate(sent) if was_sent] == [*range(WINDOW), *range(WINDOW + 2, 75, 3)]
    assert [at for at, whole in enumerate(wire.asked) if whole] == [0, WINDOW + 7, WINDOW + 16]
    hub.receive({"type": "ack", "seq": hub.sequence})
    assert turns(hub, wire, [start + 3.1, start + 3.15, start + 3.2]) == [True] * 3


def test_acknowledgement_after_silence_brings_small_frames_back(hub: Hub, wire: Recorder) -> None:
    start = time.monotonic() + 10
    turns(hub, wire, [start + 0.05 * k for k in range(40)])
    hub.receive({"type": "ack", "seq": hub.sequence})
    turns(hub, wire, [start + 2.05, start + 2.1])
    assert wire.asked[-2:] == [False, False]


@pytest.mark.parametrize("kind", ["hello", "resync"])
def test_a_browser_that_lost_a_frame_gets_a_keyframe_at_once(hub: Hub, wire: Recorder, kind: str) -> None:
    turns(hub, wire, [0.0, 0.05, 0.1])
    hub.receive({"type": kind})
    assert turns(hub, wire, [0.15]) == [True]
    assert wire.asked[-1] is True
    # credit counts from the keyframe on
    assert turns(hub, wire, [0.2, 0.25, 0.3, 0.35]) == [True] * (WINDOW - 1) + [False]


def test_while_nothing_happens_it_sends_once_a_second(hub: Hub, wire: Recorder) -> None:
    start = time.monotonic()
    sent = []
    for k in range(50):
        sent.append(hub.tick(start + 0.05 * k))
        hub.receive({"type": "ack", "seq": hub.sequence})
    assert 3 <= sum(sent) <= 2 + 2.5 / IDLE


def test_what_was_emitted_just_now_is_in_the_next_frame(hub: Hub, wire: Recorder) -> None:
    assert hub.tick(0.0)
    hub.receive({"type": "ack", "seq": 1})
    assert not hub.tick(0.05)
    wire.emitted = 3
    assert hub.tick(0.1)
    assert wire.events == 3


def test_the_source_hears_which_tab_a_browser_shows(hub: Hub, wire: Recorder) -> None:
    hub.tick(0.0)
    for tab in ("overview", "timeline", 3, None):
        hub.receive({"type": "ack", "seq": 1, "tab": tab})
    assert wire.tabs == ["overview", "timeline"]


@pytest.mark.parametrize("message", [None, 3, [], {}, {"type": "later"}, {"type": "ack"}, {"type": "ack", "seq": "1"}])
def test_a_message_it_does_not_know_changes_nothing(hub: Hub, wire: Recorder, message: object) -> None:
    turns(hub, wire, [0.0, 0.05])
    hub.receive(message)
    assert (hub.acknowledged, hub.greeted) == (0, False)
    turns(hub, wire, [0.1])
    assert wire.asked[-1] is False


def test_an_acknowledgement_of_a_frame_never_sent_is_capped(hub: Hub, wire: Recorder) -> None:
    turns(hub, wire, [0.0])
    hub.receive({"type": "ack", "seq": 99})
    assert (hub.acknowledged, hub.greeted) == (1, True)  # somebody is there, even if the hello is still on its way


def test_thread_starts_once_sends_and_ends(hub: Hub, wire: Recorder) -> None:
    hub.start()
    hub.start()
    assert sum(thread.name == "flnb-hub" for thread in threading.enumerate()) == 1
    deadline = time.monotonic() + 5
    while len(wire.sent) < 5 and time.monotonic() < deadline:
        wire.events += 1
        hub.receive({"type": "ack", "seq": hub.sequence})
        time.sleep(0.01)
    hub.stop()
    hub.stop()
    assert len(wire.sent) >= 5
    assert not hub.running


def test_requests_of_a_reader_who_zooms_do_not_hold_frames_back(hub: Hub, wire: Recorder) -> None:
    """Each request wakes the thread early; the pauses that it skips must not add up."""
    hub.start()
    try:
        for at in range(150):
            hub.receive({"type": "timeline", "id": at, "window": [0, 1, 100]})
            time.sleep(0.004)
        wire.events += 1
        hub.receive({"type": "ack", "seq": hub.sequence})
        before, until = len(wire.sent), time.monotonic() + 2
        while len(wire.sent) == before and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        hub.stop()
    assert len(wire.sent) > before


def test_a_failing_source_ends_the_hub_with_a_message_and_nothing_else(
    hub: Hub, wire: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(keyframe: bool) -> tuple[dict[str, Any], bytes]:
        raise RuntimeError("no frame today")

    hub.source.frame = fail  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR, logger="flnb"):
        hub.start()
        deadline = time.monotonic() + 5
        while hub.running and time.monotonic() < deadline:
            time.sleep(0.01)
    assert not hub.running
    assert "the training goes on" in caplog.text
    assert "no frame today" in caplog.text


def test_frames_that_take_long_to_make_come_less_often_but_ten_a_second() -> None:
    assert [pause(spent) for spent in (0.0, 0.003, 0.0056, 0.007, 1.0)] == pytest.approx([0.05, 0.05, 0.08, 0.1, 0.1])
