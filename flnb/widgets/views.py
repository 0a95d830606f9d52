"""Single views of the dashboard as widgets, for a recording or for live data. Needs the extra "lab"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from flnb_telemetry.formats import svg

from flnb.widgets.answers import RunAnswers, code_of
from flnb.widgets.dashboard import shared
from flnb.widgets.exports import file_of
from flnb.widgets.finished import recording_of
from flnb.widgets.model import _View, fallback
from flnb.widgets.proposals import Proposals

if TYPE_CHECKING:
    from flnb_telemetry.recording import Recording

    from flnb.widgets.model import Dashboard


class _SingleView(_View):
    """One view of the dashboard as a widget, with its selection and time cursor as traits.

    Args:
        run: a recording, or the path of a saved one; None for the recording that `flnb.dashboard` shows.
        height: the height in CSS pixels, 200 or more.

    Raises:
        TypeError: ``run`` is neither a recording nor a path.
        ValueError: the height is less than 200.
    """

    tab: ClassVar[str]
    _board: Dashboard | None = None  # also of one whose arguments were wrong, which Python closes

    def __init__(self, run: Any = None, height: int = 420) -> None:
        called = f"flnb.widgets.{type(self).__name__}"
        if isinstance(height, bool) or not isinstance(height, int) or height < 200:
            raise ValueError(f"{called}: got height={height!r}; expected at least 200 (CSS pixels)")

        def send(*answer: Any) -> None:
            self.send(*answer)

        if run is None:
            self._board = shared()
            self._proposals = Proposals(lambda: self._run, send)
        else:
            self._answers = RunAnswers([recording_of(run, called)], send)
        super().__init__(height=height, only=self.tab)
        if self._board is not None:
            self._board.views.append(self)

    @property
    def _run(self) -> Recording | None:
        """Return the recording that is shown."""
        return self._answers.runs[0] if self._board is None else self._board.follower.last

    def _receive(self, message: dict[str, Any]) -> None:
        if self._board is None:
            self._answers.receive(message)
        elif message.get("type") in ("fit", "apply"):
            self._proposals.receive(message)
        elif message.get("type") == "export":
            self.send(*file_of(self._run, message))
        elif message.get("type") == "code":
            self.send(code_of(self._run, message))
        else:
            self._board.serve(message)

    def close(self) -> None:
        """Remove the widget from the page; the recording and its other views continue."""
        if self._board is not None and self in self._board.views:
            self._board.views.remove(self)
        super().close()

    def _drawing(self) -> str:
        """Return a picture of this view as SVG; of the whole dashboard if the recording has nothing for the view."""
        run = self._run
        if run is None or run.state == "recording":
            return fallback(run)
        try:
            figure = run.to_svg(self.tab)
        except (ValueError, ImportError):
            return fallback(run)
        said = f"The {self.tab} view of {run.name}, as it was when this was saved."
        return svg.stacked([svg.text_lines([said]), figure], said)


class Ops(_SingleView):
    """The table of ops by name or scope: calls, times, memory."""

    tab = "ops"


class Memory(_SingleView):
    """Memory by category over time, fragmentation, and the map of segments and blocks at the time cursor."""

    tab = "memory"


class Tape(_SingleView):
    """The tape of the last recorded backward pass as a graph of ops, which are grouped by module."""

    tab = "tape"


class Timeline(_SingleView):
    """The Timeline view: what each thread and device did when, with one row for each."""

    tab = "timeline"


class Metrics(_SingleView):
    """The curves of logged metrics, of the gradient norm and of the number of steps per second."""

    tab = "metrics"
