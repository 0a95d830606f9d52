"""Methods that write a recording in other formats than its own: an HTML page, a trace, a memory snapshot, a picture."""

from __future__ import annotations

import os
from typing import Any

from flnb_telemetry.formats import aside, foreign, svg
from flnb_telemetry.formats.png import png

ENDINGS = {
    ".flnb": "save", ".html": "save_html", ".json": "save_trace", ".json.gz": "save_trace", ".svg": "save_svg",
    ".png": "save_png", ".pickle": "to_torch_snapshot",
}  # fmt: skip
"""The method that writes a file with each ending."""


class Drawn:
    """The methods of `Recording` and `Ranks` that write pictures of a dashboard's view.

    The views are "overview", "ops", "memory", "tape", "timeline", "collectives", "devices", "metrics" and "comparison",
    for which `beside` is the second recording. Of several ranks there is a picture of "collectives".
    """

    def to_svg(self, view: str = "overview", beside: Any = None) -> str:
        """Return a picture of a view as an SVG document; "overview" has metrics, memory and the slowest ops.

        Raises:
            ValueError: there is no such view, or the recording has no events for it.

        >>> import flnb
        >>> with flnb.record("demo") as run:
        ...     y = flnb.ones(3) * 2.0
        >>> run.to_svg("tape")
        Traceback (most recent call last):
        ...
        ValueError: the recording has no events for the view 'tape'
        """
        run: Any = self
        if view == "overview" and isinstance(self, Exports):
            empty = svg.text_lines([f"{run.name}: no metrics, memory or ops were recorded"])
            return svg.stacked(svg.pictures(run) or [empty])
        return str(foreign("draw view")(run, view, beside))

    def save_svg(self, path: str | os.PathLike[str], view: str = "overview", beside: Any = None) -> None:
        """Write a picture of a view as an SVG file; see `to_svg`.

        >>> import flnb
        >>> with flnb.record("demo") as run:
        ...     y = flnb.ones(3) * 2.0
        >>> run.save_svg("run.svg", view="ops")
        """
        with aside(path) as part:
            part.write_text(self.to_svg(view, beside), encoding="utf-8")

    def save_png(self, path: str | os.PathLike[str], view: str = "overview", beside: Any = None) -> None:
        """Write a picture of a view as a PNG file; see `to_svg`. Needs resvg, of the extra "lab".

        >>> import flnb
        >>> with flnb.record("demo") as run:
        ...     y = flnb.ones(3) * 2.0
        >>> run.save_png("run.png", view="ops")
        """
        with aside(path) as part:
            part.write_bytes(png(self.to_svg(view, beside)))


class Exports(Drawn):
    """The methods of `Recording` that write it in other formats.

    Each method replaces an existing file only when the new one is complete.
    """

    def save_as(self, path: str | os.PathLike[str]) -> None:
        """Write the run in the format of the path's ending: .flnb, .html, .json, .json.gz, .svg, .png or .pickle.

        Raises:
            ValueError: the path has another ending.

        >>> import flnb
        >>> with flnb.record("demo") as run:
        ...     y = flnb.ones(3) * 2.0
        >>> run.save_as("run.json.gz")
        """
        getattr(self, method_for(path))(path)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the run as one HTML file with the dashboard's views. The file needs no kernel and no network.

        >>> import flnb
        >>> with flnb.record("demo") as run:
        ...     y = flnb.ones(3) * 2.0
        >>> run.save_html("run.html")
        """
        foreign("write page")(path, self)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the run as a trace in Chrome's JSON format, for ui.perfetto.dev; gzipped if `path` ends in ".gz".

        The trace has the same form as traces by PyTorch's profiler. It contains ops, scopes and steps, arrows from
        forward to backward ops, allocations and frees, launches, copies and waits of devices, and counters of memory
        and metrics. `flnb.load_run` reads such files.

        >>> import flnb
        >>> with flnb.record("demo") as run:
        ...     y = flnb.ones(3) * 2.0
        >>> run.save_trace("run.json.gz")
        >>> flnb.load_run("run.json.gz").ops["multiply"].count
        1
        """
        foreign("write trace")(self, path)

    def to_torch_snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write the memory events of the run as a PyTorch memory snapshot; `flnb.load_run` reads it again.

        pytorch.org/memory_viz and `python -m torch.cuda._memory_viz trace_plot FILE` display the file. Each allocation
        has a frame with the op in place of the function's name and the scope in place of the file's name. Below it is
        the call stack or, if no stacks were recorded, the user's line with its source in place of the function's name.
        """
        foreign("write snapshot")(self, path)


def method_for(path: str | os.PathLike[str]) -> str:
    """Return the name of the `Recording` method that writes files with this path's ending.

    >>> method_for("run.json.gz")
    'save_trace'
    """
    name = os.fspath(path)
    found = [method for ending, method in ENDINGS.items() if str(name).endswith(ending)]
    if not found:
        raise ValueError(f"save_as: got {name!r}; expected a name that ends in {', '.join(ENDINGS)}")
    return found[-1]
