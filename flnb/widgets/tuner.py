"""The widget of `flnb.memory.tune`: controls, a figure beside them, and a table. Needs the extra "lab"."""

from __future__ import annotations

import ast
import base64
from typing import TYPE_CHECKING, Any

import ipywidgets
import numpy as np
import plotly.graph_objects as go
import traitlets
from flnb_telemetry import quantity
from flnb_telemetry.formats import svg
from flnb_telemetry.safe_text import html_text

from flnb.interface.device import default_device
from flnb.interface.memory import Lease
from flnb.memory_lab import code_snippets
from flnb.memory_lab.packing import pack
from flnb.memory_lab.replay_table import Replay
from flnb.memory_lab.replaying import play
from flnb.memory_lab.tunables import as_text
from flnb.plot.figures import INK, MANAGERS, MIB, TEMPLATE, crests
from flnb.plot.svg import svg as drawn
from flnb.widgets.newest import Newest
from flnb.widgets.pictures import Pictured

if TYPE_CHECKING:
    from flnb.memory_lab.replaying import Outcome
    from flnb.memory_lab.traces import Trace
    from flnb.memory_lab.tunables import Tunable

TICKS = 2000
"""The largest number of native calls (which reserve, resize or release a segment) that are drawn one by one."""


class _Superseded(Exception):
    """Raised inside a replay to abandon it when newer settings are waiting."""


class Tuner(Pictured, ipywidgets.VBox):  # type: ignore[misc]
    """A widget with controls for a manager's settings and their effect on a trace; `flnb.memory.tune` makes it.

    Replays run in a thread: only the replay of the newest settings is drawn, and outdated ones are abandoned.

    Attributes:
        trace: the trace that is replayed.
        controls: the ipywidgets control of each setting, by name.
        settings: the settings that are drawn, without those equal to the constructor's defaults.
        current, default, best: the `Outcome` of the settings that are drawn, of the default settings, and of the
            settings with the fewest reserved bytes so far; each is None until its replay has ended.
        error: why the class rejected the newest settings; "" if it accepted them.
        line: code that activates the manager with the settings that are drawn.
        figure: the plotly FigureWidget.
    """

    error = traitlets.Unicode(help="why the class refused the newest settings")
    line = traitlets.Unicode(help="code that activates the manager with the settings that are drawn")

    def __init__(self, trace: Trace, kind: type, found: list[Tunable], capacity: Any, seconds: float) -> None:
        self.trace, self.kind, self.capacity = trace, kind, capacity
        self.tunables = {one.name: one for one in found}
        self.packing = pack(trace, seconds)
        self._defaults = {one.name: one.default for one in found if one.required}
        self.settings: dict[str, Any] = dict(self._defaults)
        self.current: Outcome | None = None
        self.default: Outcome | None = None
        self.best: Outcome | None = None
        self._silent = False
        self._name_picture()
        self._newest: Newest[dict[str, Any]] = Newest(self._replay, "flnb-tune")
        self.controls = {one.name: _control(one) for one in found}
        for control in self.controls.values():
            control.observe(self._moved, "value")
        self.figure = _figure(self)
        self._table, self._code = ipywidgets.HTML(), ipywidgets.HTML()
        self._said = ipywidgets.HTML()
        reset = ipywidgets.Button(description="Reset", tooltip="Return to the default settings")
        reset.on_click(lambda _: self.reset())
        left = ipywidgets.VBox([*self.controls.values(), reset, self._code], layout={"width": "340px"})
        right = ipywidgets.VBox([self.figure], layout={"flex": "1 1 480px", "min_width": "0"})
        panes = ipywidgets.HBox([left, right], layout={"flex_flow": "row wrap", "width": "100%"})
        picture = base64.b64encode(self.picture.encode()).decode()  # as a PNG contains it; an SVG has a class
        title = ipywidgets.HTML(  # where this is shown, the widget runs
            f'<style>img[src*="{picture}"],img[src*="{self.picture}"],.{self.picture}{{display:none}}</style>'
            f"<b>{html_text(kind.__name__)}</b> on {html_text(trace.name)}: {trace!r}"
        )
        super().__init__([title, panes, self._said, self._table])
        self._replay(self.settings)

    def set(self, timeout: float = 60.0, /, **settings: Any) -> None:
        """Move controls to some settings, and wait until these are drawn, at most ``timeout`` seconds.

        Raises:
            TypeError: there is no setting of that name.
            ValueError: the setting's control does not offer that value.
        """
        unknown = [name for name in settings if name not in self.controls]
        if unknown:
            raise TypeError(f"no setting {unknown[0]!r}; {self.kind.__name__} has {', '.join(self.controls) or 'none'}")
        for name, value in settings.items():
            values = self.tunables[name].values
            if values and value not in values:
                raise ValueError(f"{name}={value!r} is not one of its choices: {', '.join(map(as_text, values))}")
        self._silent = True
        try:
            for name, value in settings.items():
                values = self.tunables[name].values
                self.controls[name].value = values.index(value) if values else repr(value)
        finally:
            self._silent = False
        self._moved()
        self.wait(timeout)

    def reset(self) -> None:
        """Return to the default settings."""
        self.set(**{one.name: one.default for one in self.tunables.values()})

    def wait(self, timeout: float = 60.0) -> None:
        """Wait until the newest settings are drawn, at most ``timeout`` seconds."""
        self._newest.wait(timeout)

    def close(self) -> None:
        """Remove the widget from the page, and abandon a running replay."""
        self._newest.drop()
        super().close()

    def _moved(self, *_: Any) -> None:
        """Request a replay with the current settings of the controls."""
        if not self._silent:
            read = {name: _read(self.tunables[name], control.value) for name, control in self.controls.items()}
            self._newest.ask({name: value for name, value in read.items() if self._is_passed(name, value)})

    def _is_passed(self, name: str, value: Any) -> bool:
        """Return whether the constructor must get a setting: it is required, or ``value`` is not the default."""
        one = self.tunables[name]
        return one.required or bool(value != one.default)

    def _replay(self, settings: dict[str, Any]) -> None:
        """Replay the trace and draw it; if the class rejects the settings, show why."""

        def check(_: int) -> None:
            if self._newest.superseded:
                raise _Superseded

        try:
            outcome = play(self.trace, (self.kind, settings), self.capacity, check)
        except _Superseded:
            return
        except Exception as error:  # of the user's class
            self.error = f"{type(error).__name__}: {error}"
            self._said.value = f'<div role="alert">{html_text(self.error, 2000)}</div>'
            return
        self.error = ""
        self.settings, self.current = settings, outcome
        if self.default is None and settings == self._defaults:
            self.default = outcome
        if outcome.first_oom is None and (self.best is None or outcome.peak_reserved < self.best.peak_reserved):
            self.best = outcome
        self._draw()

    def _draw(self) -> None:
        """Show the current outcome in figure, table and code."""
        assert self.current is not None
        code = code_snippets.manager(self.kind, self.settings, Lease(default_device()), 0, "set_memory_manager")
        self.line = code or f"flnb.set_memory_manager({self.kind.__name__}(**{self.settings!r}))"
        per_second = 1e9 / max(1.0, self.current.ns_per_call)
        self._said.value = (
            f"replayed {quantity.count(self.current.calls)} calls, {quantity.count(per_second)} calls/s; "
            f"reserved {quantity.size(self.current.peak_reserved)}{self._against_default()}"
        )
        self._code.value = (
            f"<div>Paste to use it:</div><pre style='white-space:pre-wrap'>{html_text(self.line, 2000)}</pre>"
        )
        self._table.value = self.table()._repr_html_()
        _redraw(self)

    def _against_default(self) -> str:
        """Return as text by how many percent the current peak differs from the peak with default settings."""
        if self.default is None or self.current is self.default or not self.default.peak_reserved:
            return ""
        assert self.current is not None
        change = self.current.peak_reserved / self.default.peak_reserved - 1
        return f", {100 * change:+.1f} % against the default"

    def table(self) -> Replay:
        """Return the outcomes with default, current and best settings as a table, like that of `flnb.memory.replay`."""
        rows = {id(row): row for row in (self.default, self.current, self.best) if row is not None}
        return Replay(self.trace, tuple(rows.values()), self.packing)

    def _drawing(self) -> str:
        table = svg.text_lines(str(self.table()).splitlines(), code=True)
        return svg.stacked([drawn(self.figure), table, svg.text_lines([self.line], code=True)])


def _control(one: Tunable) -> Any:
    """Return a control for a setting: a slider for values in order, a menu for other values, else a text field."""
    about: dict[str, Any] = {
        "description": one.name,
        "style": {"description_width": "110px"},
        "layout": {"width": "330px"},
    }
    if not one.values:
        return ipywidgets.Text(value=repr(one.default), continuous_update=False, **about)
    about |= {"options": [(as_text(value), at) for at, value in enumerate(one.values)]}
    about |= {"value": one.values.index(one.default)}
    return ipywidgets.SelectionSlider(**about) if one.ordered else ipywidgets.Dropdown(**about)


def _read(one: Tunable, value: Any) -> Any:
    """Return the setting for a control's ``value``: the value chosen, or what was typed into a text field."""
    if one.values:
        return one.values[value]
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def _figure(tuner: Tuner) -> Any:
    """Return an empty figure with the live bytes and the bounds of the trace."""
    figure = go.FigureWidget(
        layout={"template": TEMPLATE, "height": 420, "margin": {"l": 64, "r": 16, "t": 24, "b": 48}}
    )
    calls, live = crests(tuner.trace.live)
    area = {"shape": "hv", "color": INK, "width": 1}
    figure.add_scatter(x=calls, y=live / MIB, name="live", fill="tozeroy", line=area)
    figure.add_scatter(name="reserved, default", line={"shape": "hv", "color": INK, "dash": "dash"})
    figure.add_scatter(name="reserved", line={"shape": "hv", "color": MANAGERS[0], "width": 2})
    ticks = {"symbol": "line-ns-open", "size": 9}
    for name, colour in (("native calls, default", INK), ("native calls", MANAGERS[0])):
        figure.add_scatter(name=name, mode="markers", yaxis="y2", marker=ticks | {"color": colour}, hoverinfo="x")
    ends = [0, max(1, len(tuner.trace))]
    for name, height in tuner.table().bounds.items():
        line = {"color": INK, "width": 1, "dash": "dot" if name != "live" else "longdash"}
        label = f"{'most live' if name == 'live' else name}, {quantity.size(height)}"
        figure.add_scatter(x=ends, y=[height / MIB] * 2, name=label, mode="lines", line=line)
    figure.update_layout(
        xaxis={"title": "calls", "anchor": "y2", "range": ends},
        yaxis={"title": "MiB", "rangemode": "tozero", "domain": [0.2, 1]},
        yaxis2={
            "domain": [0, 0.12], "range": [-0.5, 1.5], "tickvals": [0, 1], "ticktext": ["now", "default"],
            "showgrid": False,
        },
        legend={"orientation": "h", "y": -0.22},
    )  # fmt: skip
    return figure


def _redraw(tuner: Tuner) -> None:
    """Draw the default and the current outcome in the figure, with a single message to the browser."""
    figure = tuner.figure
    with figure.batch_update():
        for outcome, line, ticks, height in ((tuner.default, 1, 3, 1), (tuner.current, 2, 4, 0)):
            if outcome is None:
                continue
            calls, reserved = crests(outcome.reserved)
            native = np.flatnonzero(np.diff(outcome.reserved, prepend=0))
            native = native[:: len(native) // TICKS + 1]
            figure.data[line].x, figure.data[line].y = calls, reserved / MIB
            figure.data[ticks].x, figure.data[ticks].y = native, np.full(len(native), height)
            about = " default" if outcome is tuner.default and line == 1 else ""
            figure.data[line].name = f"reserved{about}, {quantity.size(outcome.peak_reserved)}"
            figure.data[ticks].name = f"native calls{about}, {quantity.count(outcome.native_calls)}"
