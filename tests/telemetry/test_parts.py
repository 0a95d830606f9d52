"""A recording names the backends and managers that ran its ops, whichever way they were chosen."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from flnb_telemetry import load_run, pump
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
            assert named() == ("other", "native, exact")
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
