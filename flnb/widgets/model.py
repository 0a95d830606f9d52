"""The widgets of the dashboard, which exchange messages with JavaScript in the browser. Needs the extra "lab"."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import anywidget
import traitlets
from flnb_telemetry.extras import tool
from flnb_telemetry.formats import svg
from flnb_telemetry.formats.tape_svg import tape_picture
from flnb_telemetry.live.tape import LiveTape
from flnb_telemetry.live.view import tape_frame
from IPython.core.getipython import get_ipython
from IPython.display import publish_display_data

from flnb.widgets import program
from flnb.widgets.answers import RunAnswers, code_of
from flnb.widgets.exports import file_of
from flnb.widgets.hub import Hub
from flnb.widgets.pictures import Pictured
from flnb.widgets.proposals import Proposals

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.analysis.tape import Tape
    from flnb_telemetry.recording import Recording

    from flnb.widgets.dashboard import Follower

STATIC = Path(__file__).parent / "static"


def code(name: str) -> str:
    """Return the JavaScript of a kind of widget.

    AnyWidget also accepts the file's path, but then it would refer to every widget, and so to the recording, even after
    the widget was closed.
    """
    return (STATIC / f"{name}.js").read_text(encoding="utf-8")


class _View(Pictured, anywidget.AnyWidget):
    """Base class of the widgets. Each shows a view in the browser; `_receive` handles messages from the browser.

    `only` names the one view of the dashboard to show, such as "tape"; by default the widget has all views.

    `selection` is what is selected, such as ``{"kind": "op", "label": "matmul", "op": "matmul"}``, or None; `cursor` is
    the time cursor in seconds since the run began, or None. Both may be set, observed, and linked to another view's.
    """

    _esm: ClassVar[str] = code("dashboard")
    height = traitlets.Int(680, help="height of a view in CSS pixels").tag(sync=True)
    only = traitlets.Unicode("", help="the one view that is shown").tag(sync=True)
    selection = traitlets.Dict(default_value=None, allow_none=True, help="what is selected, or None").tag(sync=True)
    cursor = traitlets.Float(None, allow_none=True, help="the time cursor, s since the run began").tag(sync=True)

    picture = traitlets.Unicode("", help="a text by which the browser finds the view's picture").tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self._name_picture()
        self.on_msg(lambda _, content, __: self._receive(content if isinstance(content, dict) else {}))
        _hear_while_busy(self.comm)

    def _receive(self, message: dict[str, Any]) -> None:
        """Handle a message of the browser; ignore unknown types."""
        raise NotImplementedError

    def widget_bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the MIME bundle of the widget without its picture, and the bundle's metadata."""
        made = super()._repr_mimebundle_()
        return made if isinstance(made, tuple) else (made or {}, {})

    def _repr_mimebundle_(self, **options: Any) -> Any:
        (data, metadata), (picture, about) = self.widget_bundle(), self._picture_bundle()
        return data | picture, metadata | about

    def _ipython_display_(self) -> None:
        """Display the picture and the widget as two outputs."""
        self.publish_picture()
        publish_display_data(*self.widget_bundle())  # type: ignore[no-untyped-call]


class Dashboard(_View):
    """The live dashboard as a widget: display it, or put it into any ipywidgets layout.

    `flnb.dashboard()` returns it. If it is displayed several times (in two cells, or two browser tabs), all show the
    same recording. On a page without a kernel (an exported notebook, GitHub) a picture of the last recording is shown
    instead.
    """

    def __init__(self, follower: Follower, height: int = 680) -> None:
        self.follower = follower
        self.views: list[_View] = []
        self._greeted = False
        earlier = follower.earlier
        self.earlier = None if earlier is None else RunAnswers([earlier], self._send_to_all)
        self.hub = Hub(follower.live, self._send_live)
        self.proposals = Proposals(lambda: self.follower.last, self.send)
        self.hub.deaf = getattr(sys.modules.get("ipykernel"), "version_info", (7,))[0] < 7
        super().__init__(height=height)
        follower.changed = self._follow
        self._pictured: tuple[int, str] | None = None

    def _follow(self, live: Any) -> None:
        """Show the data of a recording that has just begun or ended; ``live`` is the source of the data."""
        self.earlier = None
        self.hub.follow(live)

    def _send_live(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        """Send a frame of the hub, unless an earlier recording is shown."""
        if self.earlier is None:
            self._send_to_all(content, buffers)

    def serve(self, message: dict[str, Any]) -> None:
        """Handle a message from the dashboard or from a single view in the browser, about the run that is shown."""
        earlier = self.earlier
        (self.hub if earlier is None else earlier).receive(message)

    def _send_to_all(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        """Send a frame to the dashboard, if it is displayed, and to the single views of the same run."""
        for widget in [*([self] if self._greeted or not self.views else []), *self.views]:
            widget.send(content, buffers)

    def _receive(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        self._greeted |= kind in ("hello", "ack")
        if kind == "code":
            self.send(code_of(self.follower.last, message))
        elif kind == "export":
            self.send(*file_of(self.follower.last, message))
        elif kind in ("fit", "apply"):
            self.proposals.receive(message)
        else:
            self.serve(message)

    def close(self) -> None:
        """Remove the widget from the page, end its thread, and stop following recordings."""
        self.hub.stop()
        self.follower.stop()
        shell = None if sys.is_finalizing() else get_ipython()
        if shell is not None and self._picture in shell.events.callbacks["post_run_cell"]:
            shell.events.unregister("post_run_cell", self._picture)
        super().close()

    def _drawing(self) -> str:
        return fallback(self.follower.last)

    def _ipython_display_(self) -> None:
        """Display the widget and its picture; from now on the picture is updated after each cell."""
        self._greeted = True
        super()._ipython_display_()
        shell = get_ipython()
        if shell is not None and self._picture not in shell.events.callbacks["post_run_cell"]:
            shell.events.register("post_run_cell", self._picture)

    def _picture(self, *_: Any) -> None:
        """Update the picture after a cell that has recorded, so that a saved notebook shows the last recording."""
        run = self.follower.last
        if run is None or (run.number, run.state) == self._pictured:
            return
        self._pictured = (run.number, run.state)
        self.publish_picture(update=True)


class TapeWidget(_View):
    """A widget to explore a recorded tape, the graph of ops of a backward pass.

    `run.tape` on a cell's last line shows it.
    """

    def __init__(self, tape: Tape, height: int = 560) -> None:
        self.pages = LiveTape(tape)
        super().__init__(height=height, only="tape")

    def _receive(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind in ("hello", "resync"):
            step = self.pages.tape.index
            self.send(tape_frame(self.pages, f"tape of step {step}" if step >= 0 else "tape"))
        elif kind == "tape":
            self.send(self.pages.answer(message))
        elif kind == "export":
            self.send(*self._file(message))

    def _file(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """Return a message that describes an exported file, and a list with the file's content.

        Only the format "svg" (the tape's picture) is possible, as others need the recording: for these the message has
        an error, and the list is empty.
        """
        if message.get("format") == "svg":
            content = svg.stacked([tape_picture(self.pages.tape.levels)]).encode()
            return {"type": "export", "name": "tape.svg", "error": ""}, [content]
        return {"type": "export", "name": "", "error": "this is a tape alone; export the recording it is of"}, []

    def _drawing(self) -> str:
        tape = self.pages.tape
        images = [tape_picture(tape.levels), svg.text_lines(tape.summary().splitlines())]
        return svg.stacked([image for image in images if image])


class ProgramWidget(_View):
    """A widget that shows a function compiled by `flnb.jit`; `flnb.program` makes it."""

    _esm = code("program")

    def __init__(self, f: Any, run: Recording | None, height: int = 680) -> None:
        self.f, self.run = f, run
        super().__init__(height=height)

    def _receive(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind in ("hello", "resync"):
            self.send(program.message(self.f, self.run))
        elif kind == "source":
            self.send(program.source_of(self.f, message))

    def _drawing(self) -> str:
        return str(tool("flnb.plot.views", "program_svg")(self.f))


class RunWidget(_View):
    """The dashboard of a recording that has ended; `flnb.view` makes it."""

    def __init__(
        self, runs: list[Recording], height: int = 680, model: Any = None, step: Callable[[], object] | None = None
    ) -> None:
        self.runs, self.answers = runs, RunAnswers(runs, lambda *answer: self.send(*answer), model, step)
        super().__init__(height=height)

    def _receive(self, message: dict[str, Any]) -> None:
        self.answers.receive(message)

    def _drawing(self) -> str:
        return fallback(self.runs[0])


class ComparisonWidget(RunWidget):
    """Two recordings side by side; `flnb.view` makes it."""

    _esm = code("comparison")

    def _drawing(self) -> str:
        return self.runs[0].to_svg("comparison", self.runs[1])


def fallback(run: Recording | None) -> str:
    """Return an SVG document that replaces the dashboard on pages without a kernel."""
    if run is None:
        said = "The live dashboard of flnb needs a running kernel; nothing was recorded when this was saved."
        return svg.stacked([svg.text_lines([said])])
    said = "The live dashboard of flnb, as it was when this was saved."
    return svg.stacked([svg.text_lines([said, *run.summary()]), *svg.pictures(run)])


def _hear_while_busy(comm: Any) -> None:
    """Let a widget receive the browser's messages while a cell is running.

    ipykernel 7 handles such messages in a thread of their own (a subshell). But if the running cell has made the
    widget, ipykernel 7.4 delays the messages until the cell has ended. ``comm`` is the widget's channel to the browser.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default
