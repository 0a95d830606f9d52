"""A recording names the backends and managers that ran its ops, whichever way they were chosen."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from flnb_telemetry import load_run, parts, pump
from flnb_telemetry.live.recording import LiveRecording
from flnb_telemetry.live.view import Live

import flnb
from flnb.dispatch import state


@pytest.fixture(autouse=True)
def _alone() -> None:
    """Here, unlike in the other files, flnb describes its parts."""


class Other(flnb.backends.NumpyBackend):
    name = "other"

    def libraries(self) -> str:
        return "imaginary 1.0, 3 threads"


def test_parts_that_were_entered_inside_are_named() -> None:
    live = Live("run")
    with flnb.record() as run:
        live.begin()
        with flnb.use_backend(Other), flnb.use_memory_manager("native"):
            flnb.ones((64, 64)) + 1.0
    live.finish()
    content, _ = live.frame(keyframe=True)
    for told in (run.meta, content["run"]):
        assert (told["backend"], told["manager"]) == ("other", "native")
        assert told["libraries"] == "imaginary 1.0, 3 threads"
    assert "backend other, manager native" in repr(run)


def test_parts_are_named_in_the_order_of_their_ops() -> None:
    x = flnb.ones((4,))
    with flnb.record() as run:
        x + 1.0
        with flnb.use_memory_manager("exact"):
            with flnb.use_backend(Other):
                for _ in range(4):
                    x * 2.0
            for _ in range(2):
                x * 2.0
    own = state.current().backend
    assert run.meta["backend"] == f"other, {own.name}"
    assert run.meta["libraries"] == f"imaginary 1.0, 3 threads; {own.libraries()}"
    assert run.meta["manager"] == "exact, caching"


def test_parts_of_the_session_are_told_to_all_threads() -> None:
    x = flnb.ones((4,))
    changed, done = threading.Event(), threading.Event()

    def work() -> None:
        changed.wait()
        for _ in range(10):
            x + 1.0
        done.set()

    thread = threading.Thread(target=work)
    with flnb.record() as run:
        thread.start()
        flnb.set_memory_manager("native")
        try:
            changed.set()
            done.wait()
        finally:
            flnb.set_memory_manager("caching")
        thread.join()
    assert run.meta["manager"] == "native"


def test_a_run_whose_parts_did_not_change_says_what_it_said(tmp_path: object) -> None:
    with flnb.record() as run:
        flnb.ones((4,)) + 1.0
        with flnb.use_backend(Other):
            pass  # nothing ran there
    own = state.current().backend
    assert (run.meta["backend"], run.meta["manager"], run.meta["device"]) == (own.name, "caching", "host")
    assert run.meta["libraries"] == own.libraries() != ""


def test_a_live_view_names_the_parts_that_are_set_before_anything_runs_on_them() -> None:
    live, before = Live("run"), state.current().backend

    def named() -> tuple[str, str]:
        live.refresh()
        content, _ = live.frame(keyframe=False)
        return content["run"]["backend"], content["run"]["manager"]

    live.begin()
    try:
        assert named() == (before.name, "caching")
        flnb.set_backend(Other)
        flnb.set_memory_manager("native")
        assert named() == ("other", "native")
        flnb.ones((64, 64)) + 1.0
        with flnb.use_memory_manager("exact"):
            assert named() == ("other", "exact"), "what is active now, not what was"
        assert named() == ("other", "native")
    finally:
        flnb.set_memory_manager("caching")
        flnb.set_backend(before)
        live.finish()
    assert named() == ("other", "native"), "what has ended names what ran"


def test_parts_are_kept_in_files(tmp_path: object) -> None:
    path = f"{tmp_path}/run.flnb"
    with flnb.record() as run, flnb.use_backend(Other):
        flnb.asarray(np.ones(3)) + 1.0
    run.save(path)
    assert load_run(path).meta["backend"] == "other"
    assert len(load_run(path).table("use")["t"]) == 2
    assert pump.session is None


def marks(view: Live) -> list[str]:
    """The texts of the exchanges in a dashboard's first frame."""
    frames = view.frames() if isinstance(view, LiveRecording) else [view.frame(keyframe=True)]
    content = next(iter(frames))[0]
    times = [one["t"] for one in content.get("exchanges", [])]
    assert times == sorted(times)
    assert all(0 < t <= content["counters"]["t"] for t in times)
    return [one["text"] for one in content.get("exchanges", [])]


def test_exchanges_between_ops_are_marked_live_and_of_finished_and_loaded_runs(tmp_path: object) -> None:
    live, x, before = Live("run"), flnb.ones((64, 64)), state.current().backend.name
    with flnb.record() as run:
        live.begin()
        with flnb.use_memory_manager("exact"):  # nothing ran before: no exchange
            x + 1.0
        with flnb.use_backend(Other), flnb.use_memory_manager("native"):
            x + 1.0
        live.refresh()
        into = f"backend {before} → other · manager exact → native"
        back = f"backend other → {before} · manager native → caching"
        news, later = (live.frame(keyframe=False)[0] for _ in range(2))
        assert ([one["text"] for one in news["exchanges"]], "exchanges" in later) == ([into, back], False)
        assert marks(live) == [into, back]
        with flnb.use_backend(Other):
            pass  # nothing ran there
        live.refresh()  # the pump may have read the first of these two exchanges alone
        assert marks(live) == [into, back]
        x + 1.0
        flnb.set_memory_manager("caching")
        x + 1.0
        flnb.set_memory_manager("caching")  # nothing ran after it
    live.finish()
    run.save(f"{tmp_path}/run.flnb")
    again = f"{before}, caching set again"
    for view in (live, LiveRecording(run), LiveRecording(load_run(f"{tmp_path}/run.flnb"))):
        assert marks(view) == [into, back, again]


def test_an_exchange_in_one_of_several_threads_names_it() -> None:
    x = flnb.ones((4,))

    def work() -> None:
        x + 1.0
        with flnb.use_memory_manager("exact"):
            x + 1.0
        x + 1.0

    with flnb.record() as run:
        x + 1.0
        thread = threading.Thread(target=work, name="loader")
        thread.start()
        thread.join()
    assert marks(LiveRecording(run)) == ["manager caching → exact in loader", "manager exact → caching in loader"]


def test_a_class_defined_again_is_an_exchange() -> None:
    def defined(value: float) -> type[flnb.backends.NumpyBackend]:
        class Mine(flnb.backends.NumpyBackend):
            name = "mine"

            def add(self, a: object, b: object, out: object = None) -> object:
                return np.full((4,), value, np.float32)

        return Mine

    x, before = flnb.ones((4,)), state.current().backend
    assert flnb.set_backend(defined(1.0)).name == "mine"
    try:
        with flnb.record() as run:
            first = float((x + 1.0)[0])
            defined(2.0)
            assert float((x + 1.0)[0]) == 2.0 != first
    finally:
        flnb.set_backend(before)
    assert marks(LiveRecording(run)) == ["mine, caching set again"]


def test_of_many_exchanges_the_newest_are_sent() -> None:
    x = flnb.ones((4,))
    with flnb.record() as run:
        for _ in range(300):
            x + 1.0
            with flnb.use_memory_manager("exact"):
                x + 1.0
        x + 1.0
    assert len(marks(LiveRecording(run))) == parts.MOST
