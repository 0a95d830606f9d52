"""Methods that write a recording in other formats than its own: an HTML page, a trace, a memory snapshot, a picture."""

from __future__ import annotations

import os
from typing import Any

from flnb_telemetry.formats import aside, foreign, svg

ENDINGS = {
    ".flnb": "save", ".html": "save_html", ".json": "save_trace", ".json.gz": "save_trace", ".svg": "save_svg",
    ".pickle": "to_torch_snapshot",
}  # fmt: skip
"""The method that writes a file with each ending."""


class Exports:
    """The methods of `Recording` that write it in other formats.

    Each method replaces an existing file only when the new one is complete.
    """

    def save_as(self, path: str | os.PathLike[str]) -> None:
        """Write the run in the format of the path's ending: .flnb, .html, .json, .json.gz, .svg or .pickle.

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

    def save_svg(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of the run as an SVG file: metrics, memory by category, the slowest ops.

        >>> import flnb
        >>> with flnb.record("demo") as run:
        ...     y = flnb.ones(3) * 2.0
        >>> run.save_svg("run.svg")
        """
        run: Any = self
        with aside(path) as part:
            part.write_text(svg.stacked(svg.pictures(run)), encoding="utf-8")

    def to_torch_snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write the memory events of the run as a PyTorch memory snapshot; `flnb.load_run` reads it again.

        pytorch.org/memory_viz and `python -m torch.cuda._memory_viz trace_plot FILE` display the file. Allocations have
        the call stacks of the run. If no stacks were recorded, each allocation has one frame, with the op in place of
        the function's name and the scope in place of the file's name.
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
