"""The dashboard's views as widgets of their own: of a recording, and of what is recorded now."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
from flnb.widgets import dashboard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb_telemetry.recording import Recording

pytest.importorskip("anywidget")
ipywidgets = pytest.importorskip("ipywidgets")
VIEWS = ("Memory", "Tape", "Timeline", "Ops", "Metrics")


@pytest.fixture(scope="module")
def run() -> Recording:
    net = flnb.nn.Linear(16, 16)
    with flnb.record("viewed") as run, flnb.step():
        net(flnb.asarray(np.ones((16, 16), np.float32))).sum().backward()
        flnb.log(loss=1.0)
    return run


@pytest.fixture
def board() -> Iterator[None]:
    yield
    dashboard.close()


def heard(widget: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(widget, "send", lambda content, buffers=None: sent.append(content))
    return sent


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_recording_is_told_it_and_lives_in_a_box(
    name: str, run: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = getattr(flnb.widgets, name)(run, height=300)
    sent = heard(view, monkeypatch)
    view._receive({"type": "hello"})
    assert (view.only, view.height) == (name.lower(), 300)
    assert sent[0]["run"]["name"] == "viewed"
    box = ipywidgets.HBox([view])
    assert box.children == (view,)
    assert "viewed" in view._drawing()
    box.close()
    view.close()


def test_selection_and_cursor_are_traits_that_link(run: Recording) -> None:
    ops, tape = flnb.widgets.Ops(run), flnb.widgets.Tape(run)
    assert (ops.selection, ops.cursor) == (None, None)  # {} would be shown as a selection without a name
    link = ipywidgets.link((ops, "selection"), (tape, "selection"))
    seen: list[Any] = []
    ops.observe(lambda change: seen.append(change.new), "cursor")
    chosen = {"kind": "op", "label": "matmul", "op": "matmul"}
    tape.set_state({"selection": chosen})  # as a click in the browser does
    ops.set_state({"cursor": 0.25})
    assert (ops.selection, seen) == (chosen, [0.25])
    assert {"selection", "cursor"} <= set(ops.keys)  # synchronised
    link.unlink()
    ops.close()
    tape.close()


def test_live_views_show_the_run_of_the_dashboard_without_a_second_source(
    board: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = [flnb.widgets.Memory(), flnb.widgets.Metrics()]
    shared = dashboard.shared()
    assert shared.views == views
    frames = [heard(view, monkeypatch) for view in views]
    own = heard(shared, monkeypatch)
    for view in views:
        view._receive({"type": "hello"})
    with flnb.record("now"):
        flnb.add(flnb.ones((8, 8)), 1.0)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not all(any(f["run"]["name"] == "now" for f in each) for each in frames):
        time.sleep(0.02)
    assert all(any(frame["run"]["name"] == "now" for frame in each) for each in frames)
    assert own == []  # it is not displayed
    shared._receive({"type": "hello"})
    while time.monotonic() < deadline and not own:
        time.sleep(0.02)
    assert own
    views[0].close()
    assert shared.views == views[1:]
    assert "now" in views[1]._drawing()
    views[1].close()


def test_what_is_wrong_is_said(run: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"flnb.widgets.Ops: got height=100; expected at least 200"):
        flnb.widgets.Ops(run, height=100)
    with pytest.raises(TypeError, match=r"flnb.widgets.Tape: expected a recording .* got int"):
        flnb.widgets.Tape(3)
    with pytest.raises(AttributeError, match="no attribute 'Opps'; its views: Memory, Metrics, Ops, Tape, Timeline"):
        _ = flnb.widgets.Opps  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(
        ImportError, match=r"flnb.widgets.Ops needs anywidget; install it with: pip install 'flnb\[lab\]'"
    ):
        _ = flnb.widgets.Ops
