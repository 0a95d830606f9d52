"""`flnb.runs`: the recordings in a folder."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb_telemetry import quantity, tables
from flnb_telemetry.extras import require
from flnb_telemetry.formats.parquet import load_run
from flnb_telemetry.formats.stored import RunFileError
from flnb_telemetry.safe_text import html_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class RunEntry(NamedTuple):
    """A recording in a folder.

    Attributes:
        name: the name of the run, "" if it cannot be read.
        began: the time at which it began, as ISO 8601 text.
        seconds: its duration.
        events: the number of its events.
        state: "complete", "interrupted" (its process was killed, or its disk was full), "recording" (it runs now) or
            "unreadable".
        error: the error that ended the program, or the reason why events or the file cannot be read; None if neither.
        path: its path, for `flnb.load_run`.
        rank: which rank of several it is, such as "0 of 2"; "2 merged" for a file with the ranks merged; else "".
        steps: the number of its steps; in a file with several ranks, the largest of their numbers.
        backend: the name of the backend.
        loss: the last value of its metric "loss", or of the first metric whose name ends with "loss"; else None.
    """

    name: str
    began: str
    seconds: float
    events: int
    state: str
    error: str | None
    path: str
    rank: str = ""
    steps: int = 0
    backend: str = ""
    loss: float | None = None

    @property
    def when(self) -> str:
        """Return the time at which the recording began as text, in the time zone of this machine."""
        try:
            return datetime.fromisoformat(self.began).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        except ValueError:
            return self.began


TITLES = ("name", "rank", "began", "duration", "steps", "loss", "events", "backend", "state", "file")


class Runs:
    """The recordings in a folder, the newest first: ``runs()[0]`` is a `RunEntry`; prints as a table."""

    def __init__(self, folder: str, entries: list[RunEntry]) -> None:
        self.folder, self.entries = folder, entries

    def __iter__(self) -> Iterator[RunEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, number: int) -> RunEntry:
        return self.entries[number]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each recording. Needs pandas, of the extra "lab"."""
        return require("pandas", "lab", "a DataFrame").DataFrame(self.entries, columns=list(RunEntry._fields))

    def cells(self) -> list[list[str]]:
        """Return the table as rows of texts; the first row has the titles."""
        rows = [
            [
                each.name, each.rank, each.when, quantity.duration(each.seconds * 1e9), quantity.count(each.steps),
                "" if each.loss is None else quantity.significant(each.loss), quantity.count(each.events),
                each.backend, each.state, os.path.relpath(each.path, self.folder),
            ]
            for each in self.entries
        ]  # fmt: skip
        used = [at for at, title in enumerate(TITLES) if title not in ("rank", "loss") or any(row[at] for row in rows)]
        return [[row[at] for at in used] for row in ([*TITLES], *rows)]

    @property
    def _sides(self) -> str:
        """Return for each column whether it is aligned to the left or to the right."""
        return "".join(">" if title in ("duration", "steps", "loss", "events") else "<" for title in self.cells()[0])

    def __repr__(self) -> str:
        if not self.entries:
            return f"no recordings (.flnb) in {self.folder!r}"
        return "\n".join(tables.lines(self.cells(), self._sides))

    def _repr_html_(self) -> str:
        return tables.html(self.cells(), self._sides) if self.entries else f"<p>{html_text(repr(self))}</p>"


def runs(folder: str | os.PathLike[str] = ".") -> Runs:
    """List the recordings (files and folders called ``*.flnb``) in a folder, the newest first. Needs pyarrow.

    The table has the columns "rank" and "loss" if a recording has them; times are in this machine's time zone.

    Raises:
        FileNotFoundError: there is no such folder.

    >>> import flnb
    >>> with flnb.record("demo", path="demo.flnb"):
    ...     y = flnb.ones(3) * 2.0
    >>> [(run.name, run.state) for run in flnb.runs()]
    [('demo', 'complete')]
    """
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"flnb.runs: there is no folder {os.fspath(folder)!r}; name another one")
    paths = {
        *Path(folder).glob("*.flnb"),
        *(path.with_name(path.stem[1:]) for path in Path(folder).glob(".*.flnb.closing")),
    }
    entries = [_entry(path) for path in sorted(paths)]
    return Runs(os.fspath(folder), sorted(entries, key=lambda each: each.began, reverse=True))


def _entry(path: Path) -> RunEntry:
    """Return the entry of a recording; a file merged from several ranks is one entry."""
    try:
        found = load_run(path)
        runs = list(found.values()) if hasattr(found, "values") else [found]
        first = runs[0]
        steps, loss = max(len(run.steps["index"]) for run in runs), _loss(first.metrics)
    except (RunFileError, OSError) as error:
        return RunEntry("", "", 0.0, 0, "unreadable", str(error), str(path))
    states = {"recording": "recording", "failed": "interrupted" if _interrupted(first.error) else "complete"}
    rank, ranks = "", first.meta.get("ranks", 1)
    if hasattr(found, "values"):
        rank = f"{len(runs)} merged"
    elif ranks > 1:
        rank = f"{first.meta.get('rank', 0)} of {ranks}"
    return RunEntry(
        found.name, str(first.meta.get("began", "")), max(run.seconds for run in runs),
        sum(run.events for run in runs), states.get(first.state, "complete"), first.error, str(path),
        rank, steps, str(first.meta.get("backend", "")), loss,
    )  # fmt: skip


def _loss(metrics: Mapping[str, Any]) -> float | None:
    """Return the last value of the metric "loss", or of the first metric whose name ends with "loss"; else None."""
    name = "loss" if "loss" in metrics else next((name for name in metrics if name.lower().endswith("loss")), None)
    return None if name is None or not len(metrics[name]["value"]) else float(metrics[name]["value"][-1])


def _interrupted(error: str | None) -> bool:
    return (error or "").startswith("interrupted")
