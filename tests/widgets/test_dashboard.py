"""What the dashboard follows, what it leaves behind, and that one dashboard serves a kernel."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from flnb_telemetry import bus, pump, recorder, recording

import flnb
from flnb.widgets import dashboard as module
from flnb.widgets.dashboard import Follower

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb_telemetry.live.view import Live


@pytest.fixture(autouse=True)
def _nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests have recorded: a new dashboard shows it."""
    monkeypatch.setattr(recorder, "_latest", [])


@pytest.fixture
def follower() -> Iterator[Follower]:
    follower = Follower()
    yield follower
    follower.stop()
    assert bus.lanes is None, "the bus is off when nobody listens"


def work(count: int = 5) -> None:
    for _ in range(count):
        with flnb.step():
            flnb.add(flnb.ones((4, 4)), 1.0)


def told(live: Live) -> tuple[str, str, str | None]:
    run = live.frame(keyframe=True)[0]["run"]
    return run["name"], run["state"], run["error"]


def test_before_a_recording_it_shows_whatever_runs(follower: Follower) -> None:
    assert told(follower.live) == ("session", "waiting", None)
    work()
    pump.flush()
    assert told(follower.live) == ("session", "recording", None)


def test_it_follows_a_recording_from_its_first_event_and_keeps_the_picture(follower: Follower) -> None:
    seen: list[str] = []
    follower.changed = lambda live: seen.append(live.name)
    work(3)
    with flnb.record("digits") as run:
        work(4)
    content, _ = follower.live.frame(keyframe=True)
    assert (content["run"]["name"], content["run"]["state"]) == ("digits", "finished")
    assert content["counters"]["events"] == run.events
    assert content["counters"]["step"] == 3, "steps count from 0 in each recording"
    assert seen == ["digits", "digits"]
    assert content["counters"]["t"] == follower.live.frame(keyframe=True)[0]["counters"]["t"], "its clock has stopped"
    work(3)
    assert follower.live.frame(keyframe=True)[0]["counters"]["events"] == run.events
    with flnb.record("again"):
        work(1)
    assert told(follower.live) == ("again", "finished", None)
    assert follower.last is not None
    assert follower.last.name == "again"


def test_given_a_name_it_keeps_showing_the_recordings_of_that_name() -> None:
    follower = Follower("training")
    work()
    assert follower.live.frame(keyframe=True)[0]["run"]["state"] == "waiting", "no other recording is shown"
    for name in ("warm-up", "training", "one prediction"):
        with flnb.record(name):
            work(1)
    assert told(follower.live) == ("training", "finished", None)
    assert follower.last is not None
    assert follower.last.name == "training"
    follower.stop()
    assert bus.lanes is None
    pytest.importorskip("anywidget")
    with pytest.raises(TypeError, match=r"got follow=3; expected the name \(str\)"):
        flnb.dashboard(follow=3)  # type: ignore[arg-type]


def test_a_recording_inside_another_is_part_of_it(follower: Follower) -> None:
    with flnb.record("outer"):
        with flnb.record("inner"):
            work(1)
        assert told(follower.live)[:2] == ("outer", "recording")
    assert told(follower.live)[:2] == ("outer", "finished")


def test_a_recording_that_failed_says_why(follower: Follower) -> None:
    def fail() -> None:
        with flnb.record("bad"):
            work(1)
            raise RuntimeError("the reason")

    with pytest.raises(RuntimeError, match="the reason"):
        fail()
    assert told(follower.live) == ("bad", "failed", "RuntimeError: the reason")


def test_started_in_the_middle_it_joins_the_recording() -> None:
    with flnb.record("under way") as run:
        work(2)
        follower = Follower()
        work(2)
    assert told(follower.live) == ("under way", "finished", None)
    assert 0 < follower.live.events < run.events
    follower.stop()
    assert bus.lanes is None


def test_what_a_recording_loses_with_a_small_buffer_the_dashboard_says(follower: Follower) -> None:
    with flnb.record("small", buffer=4096) as run:
        for _ in range(2000):
            flnb.add(1.0, 2.0)
    counters = follower.live.frame(keyframe=True)[0]["counters"]
    assert run.dropped > 0
    assert counters["dropped"] == run.dropped
    assert counters["events"] + counters["dropped"] >= 6000, "2000 additions of two new tensors each"


def test_following_never_breaks_a_recording(
    follower: Follower, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("no picture")

    monkeypatch.setattr(module, "Live", fail)
    with flnb.record("all the same") as run:
        work(2)
    assert len(run.steps["index"]) == 2
    assert "cannot follow recording 'all the same'" in caplog.text


def test_the_conformance_kit_leaves_nothing_that_a_recording_would_show() -> None:
    kept = flnb.ones((256, 256))
    flnb.testing.check_manager(lambda device: flnb.memory.Caching(device), examples=3)
    with flnb.record() as run:
        pass
    assert 0 < run.memory.peak.allocated < 8 << 20
    assert kept.shape == (256, 256)


class TestWidget:
    """The widget in a process without a notebook."""

    @pytest.fixture(autouse=True)
    def _closed(self) -> Iterator[None]:
        pytest.importorskip("anywidget")
        yield
        module.close()
        assert bus.lanes is None
        assert not recording.watchers
        assert not [thread for thread in threading.enumerate() if thread.name in ("flnb-hub", "flnb-telemetry")]

    def test_there_is_one(self) -> None:
        first = flnb.dashboard()
        assert flnb.dashboard(height=500) is first
        assert first.height == 500
        first.close()
        second = flnb.dashboard()
        assert second is not first
        assert second.hub.running

    @pytest.mark.parametrize("height", [100, 1.5, "680", True])
    def test_a_height_that_is_none_is_refused(self, height: object) -> None:
        with pytest.raises(ValueError, match=r"flnb\.dashboard: got height=.*expected at least 200"):
            flnb.dashboard(height)  # type: ignore[arg-type]

    def test_the_browser_is_heard_and_answered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        widget = flnb.dashboard()
        widget.hub.stop()
        sent: list[dict[str, object]] = []
        widget.hub.send = lambda content, buffers: sent.append(content)
        widget._handle_custom_msg({"type": "hello", "protocol": 1}, [])
        assert widget.hub.greeted
        widget.hub.tick(1e9)
        assert sent[-1]["keyframe"] is True
        with flnb.record("new", limit="2MiB"):
            pass
        widget.hub.tick(1e9 + 1)
        assert sent[-1]["run"]["settings"].startswith("in memory (at most 2.00 MiB, ")  # type: ignore[index]
        assert sent[-1]["run"]["name"] == "new"  # type: ignore[index]
        assert sent[-1]["keyframe"] is True
        assert sent[-1]["seq"] == sent[-2]["seq"] + 1  # type: ignore[operator]

    def test_where_no_kernel_is_the_last_recording_stands_in_its_place(self) -> None:
        widget = flnb.dashboard()
        data, _ = widget._repr_mimebundle_()
        assert "nothing was recorded" in widget._drawing()
        assert data["image/png"]
        assert "application/vnd.jupyter.widget-view+json" in data
        with flnb.record("digits"):
            work(2)
        drawing = widget._drawing()
        assert "digits" in drawing
        assert "add" in drawing
        assert widget._repr_mimebundle_()[0]["image/png"] != data["image/png"]

    def test_made_afterwards_it_shows_the_last_recording_until_the_next_begins(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with flnb.record("other"):
            work(1)
        with flnb.record("last") as run:
            work(3)
        assert bus.lanes is None
        widget = flnb.dashboard()
        assert bus.lanes is None, "a recording that has ended needs no events"
        sent: list[dict[str, Any]] = []
        monkeypatch.setattr(widget, "send", lambda content, buffers=None: sent.append(content))
        widget.hub.tick(1e9)
        assert sent == [], "nobody asked, and the session is not what is shown"
        widget._receive({"type": "hello"})
        assert {frame["run"]["name"] for frame in sent} == {"last"}
        assert sent[-1]["run"]["whole"]
        assert widget.follower.last is run
        assert "last" in widget._drawing()
        view = flnb.widgets.Ops()
        seen: list[dict[str, Any]] = []
        monkeypatch.setattr(view, "send", lambda content, buffers=None: seen.append(content))
        view._receive({"type": "hello"})
        assert {frame["run"]["name"] for frame in seen} == {"last"}
        with flnb.record("next"):
            widget.hub.tick(2e9)
        assert sent[-1]["run"]["name"] == seen[-1]["run"]["name"] == "next"
        view.close()

    def test_made_afterwards_it_shows_no_recording_of_another_name_or_that_is_gone(self) -> None:
        with flnb.record("gone"):
            work(1)
        with flnb.record("kept") as kept:
            work(1)
        followed = Follower("gone")
        assert followed.earlier is None
        followed.stop()
        del kept
        gc.collect()
        follower = Follower()
        assert (follower.earlier, follower.last, follower.live.name) == (None, None, "session")
        follower.stop()

    def test_ipykernel_does_not_hold_its_messages_back(self) -> None:
        class Comm:
            def _reply_subshell_for(self, data: object, default: str) -> str:
                return "main"

        from flnb.widgets.model import _hear_while_busy

        comm = Comm()
        _hear_while_busy(comm)
        assert comm._reply_subshell_for({}, "subshell") == "subshell"
        _hear_while_busy(object())  # an older ipykernel has nothing to mend


def test_a_closed_widget_frees_its_recording() -> None:
    """AnyWidget and ipywidgets, the bus and the dashboard refer to none of them any more."""

    def opened() -> list[weakref.ref[Any]]:
        board, view = flnb.dashboard(), flnb.widgets.Timeline()
        with flnb.record("closed") as run:
            work()
        finished = flnb.view(run)
        board.hub.tick(1e9)
        found = [weakref.ref(one) for one in (board, board.follower, board.hub.source, view, finished, run)]
        view.close()
        finished.close()
        module.close()
        return found

    left = opened()
    gc.collect()
    assert [one() for one in left] == [None] * 6
