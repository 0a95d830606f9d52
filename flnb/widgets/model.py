"""The widget itself: what ipywidgets and the browser's JavaScript see. Needs the extra "lab"."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import anywidget
import traitlets
from flnb_telemetry.liverecording import LiveRecording
from flnb_telemetry.livetape import LiveTape
from IPython.core.getipython import get_ipython
from IPython.display import publish_display_data

from flnb.widgets import cells
from flnb.widgets.hub import Hub
from flnb.widgets.proposals import Proposals

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.analysis.tape import Tape
    from flnb_telemetry.recording import Recording

    from flnb.widgets.dashboard import Follower

STATIC = Path(__file__).parent / "static"


class Dashboard(anywidget.AnyWidget):
    """The live dashboard as a widget: display it, or put it into any ipywidgets layout.

    `flnb.dashboard()` makes it. Several views of it (two cells, two browser tabs) show the same recording. Where no
    kernel is behind the page (an exported notebook, GitHub), the last recording's picture stands in its place.
    """

    _esm: ClassVar[Path] = STATIC / "dashboard.js"
    height = traitlets.Int(680, help="height of a view in CSS pixels").tag(sync=True)

    def __init__(self, follower: Follower, height: int = 680) -> None:
        super().__init__(height=height)
        self.follower = follower
        self.hub = Hub(follower.live, self.send)
        follower.changed = self.hub.follow
        self.proposals = Proposals(lambda: follower.last, self.send)
        self.on_msg(lambda _, content, __: self._receive(content))
        _hear_while_busy(self.comm)
        self._display_id = uuid.uuid4().hex
        self._pictured: tuple[int, str] | None = None

    def _receive(self, content: Any) -> None:
        kind = content.get("type") if isinstance(content, dict) else None
        if kind == "code":
            self.send(cells.answer(self.follower.last, content))
        elif kind in ("fit", "apply"):
            self.proposals.receive(content)
        else:
            self.hub.receive(content)

    def close(self) -> None:
        """Take the widget out of the page, end its thread, let go of the bus."""
        self.hub.stop()
        self.follower.stop()
        if (shell := get_ipython()) is not None and self._picture in shell.events.callbacks["post_run_cell"]:
            shell.events.unregister("post_run_cell", self._picture)
        super().close()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        made = super()._repr_mimebundle_(**options)
        data, metadata = made if isinstance(made, tuple) else (made or {}, {})
        return data | {"text/html": fallback(self.follower.last)}, metadata

    def _ipython_display_(self) -> None:
        """Display with an id, so that the static picture can follow when no browser does."""
        self._publish()
        shell = get_ipython()
        if shell is not None and self._picture not in shell.events.callbacks["post_run_cell"]:
            shell.events.register("post_run_cell", self._picture)

    def _picture(self, *_: Any) -> None:
        """After a cell: renew the picture that a notebook run without a browser (nbconvert) will be left with."""
        run = self.follower.last
        if self.hub.greeted or run is None or (run.number, run.state) == self._pictured:
            return
        self._pictured = (run.number, run.state)
        self._publish(update=True)

    def _publish(self, **how: bool) -> None:
        data, metadata = self._repr_mimebundle_()
        publish_display_data(data, metadata, transient={"display_id": self._display_id}, **how)  # type: ignore[no-untyped-call]


class TapeWidget(anywidget.AnyWidget):
    """A recorded tape to walk about in; `run.tape` on a cell's last line makes one."""

    _esm: ClassVar[Path] = STATIC / "dashboard.js"
    height = traitlets.Int(560, help="height of a view in CSS pixels").tag(sync=True)
    only = traitlets.Unicode("tape", help="the one view that is shown").tag(sync=True)

    def __init__(self, tape: Tape, height: int = 560) -> None:
        super().__init__(height=height)
        self.pages = LiveTape(tape)
        self.on_msg(lambda _, content, __: self._receive(content))
        _hear_while_busy(self.comm)

    def _receive(self, message: Any) -> None:
        kind = message.get("type") if isinstance(message, dict) else None
        if kind in ("hello", "resync"):
            step = self.pages.tape.index
            self.send(self.pages.frame(f"tape of step {step}" if step >= 0 else "tape"))
        elif kind == "tape":
            self.send(self.pages.answer(message))


class RunWidget(anywidget.AnyWidget):
    """The dashboard of a recording that has ended, or two of them beside each other; `flnb.view` makes it."""

    _esm: ClassVar[Path] = STATIC / "dashboard.js"
    height = traitlets.Int(680, help="height of a view in CSS pixels").tag(sync=True)
    only = traitlets.Unicode("", help='"compare" for two recordings').tag(sync=True)

    def __init__(
        self, runs: list[Recording], height: int = 680, model: Any = None, step: Callable[[], object] | None = None
    ) -> None:
        super().__init__(height=height, only="compare" if len(runs) > 1 else "")
        self.runs, self.told = runs, [LiveRecording(run) for run in runs]
        self.proposals = Proposals(lambda: runs[0], self.send, model, step)
        self.on_msg(lambda _, content, __: self._receive(content))
        _hear_while_busy(self.comm)

    def _receive(self, message: Any) -> None:
        kind = message.get("type") if isinstance(message, dict) else None
        if kind in ("hello", "resync"):
            for side, run in enumerate(self.told):
                for content, buffer in run.frames():
                    self.send(content | {"side": side}, [buffer])
        elif kind in ("tape", "stack"):
            if (answer := self.told[0].answer(message)) is not None:
                self.send(answer)
        elif kind in ("fit", "apply"):
            self.proposals.receive(message)
        elif kind == "code":
            self.send(cells.answer(self.runs[0], message))

    def _repr_mimebundle_(self, **options: Any) -> Any:
        made = super()._repr_mimebundle_(**options)
        data, metadata = made if isinstance(made, tuple) else (made or {}, {})
        return data | {"text/html": "".join(fallback(run) for run in self.runs)}, metadata


def fallback(run: Recording | None) -> str:
    """HTML without scripts, shown in the dashboard's place on a page without a kernel."""
    if run is None:
        return "<p>The live dashboard of flnb needs a running kernel; nothing was recorded when this was saved.</p>"
    return f"<div><p>The live dashboard of flnb, as it was when this was saved.</p>{run._repr_html_()}</div>"


def _hear_while_busy(comm: Any) -> None:
    """Let the browser's messages through while a cell runs.

    ipykernel 7 runs messages to a widget in a thread of their own (a subshell), but 7.4 sends those of a widget that
    a running cell has made to the main thread, behind that cell. The hub's `receive` needs no particular thread.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default
