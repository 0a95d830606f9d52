"""`flnb.compare_runs`: compares two recordings by op and scope or line: slower, bigger, called more often."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import Recording, load_run, quantity, tables
from flnb_telemetry.extras import require
from flnb_telemetry.safe_text import html_text, safe_text

from flnb.explore.peaks import measured_peaks
from flnb.explore.report import select_button
from flnb.explore.work import Work, in_steps, step_durations, total, works_of

if TYPE_CHECKING:
    from flnb_telemetry.analysis.roofline import Peaks

SHOWN = 20
TITLES = (
    "op",
    "scope",
    "calls A",
    "calls B",
    "time A",
    "time B",
    "B - A",
    "bytes A",
    "bytes B",
    "changed",
    "bound",
    "FLOP/s B",
    "bytes/s B",
)
SIDES = "<<>>>>>>><>>>"
DISPENSABLE = (("FLOP/s B", "bytes/s B"), ("bound",), ("bytes A", "bytes B"), ("calls A", "calls B"))
"""The columns that a terminal without enough room leaves out, in this order."""
UNLIMITED = 1 << 16
"""The number of characters in a line if the output is not a terminal."""


@dataclass(frozen=True)
class ComparedRow:
    """An op in a scope, compared between two runs; zeros where a run does not have it.

    Attributes:
        scope: the path of the module; in a comparison by line, the line.
        a, b: the work in run A and in run B.
        share: the fraction of run B's time that the op took, from 0 to 1.
        least: the smallest ratio between the runs that `changes` reports as a change.
        repeats: the ratio of run B's calls to run A's that counts as equally often, see `RunComparison`.
    """

    op: str
    scope: str
    a: Work
    b: Work
    share: float
    least: float
    repeats: float = 1.0

    @property
    def difference(self) -> float:
        """Return the time in run B minus that in run A, in ns per step."""
        return self.b.time - self.a.time

    @property
    def bound(self) -> float:
        """Return Amdahl's bound 1 / (1 - share): the speedup of run B if this row took no time."""
        return 1 / max(1e-12, 1 - self.share)

    @property
    def changes(self) -> tuple[str, ...]:
        """Return the changes from run A to run B by a ratio of at least `least`, as texts such as "slower 2.1×".

        "slower" and "bigger" compare single calls: the typical time of a call, and the mean bytes of its result. "more
        often" compares the numbers of calls. Times that differ by less than their spread are not called a change.
        """
        if not self.a.calls or not self.b.calls:
            return ("only in B" if self.b.calls else "only in A",)
        pairs = (
            ("slower", "faster", self.a.one, self.b.one),
            ("bigger", "smaller", self.a.per_call(self.a.bytes), self.b.per_call(self.b.bytes)),
            ("more often", "less often", self.a.calls * self.repeats, self.b.calls),
        )
        found = []
        noise = max(self.a.spread, self.b.spread)
        for more, less, before, after in pairs:
            if more == "slower" and abs(after - before) < noise:
                continue
            if min(before, after) > 0 and max(before, after) / min(before, after) >= self.least:
                ratio = max(before, after) / min(before, after)
                found.append(f"{more if after > before else less} {quantity.significant(ratio)}×")
        return tuple(found)


@dataclass(frozen=True, eq=False, repr=False)
class RunComparison:
    """Two runs compared by op and scope, or by op and line; prints as a table, in a notebook as HTML.

    Attributes:
        names: the names of the runs A and B.
        rows: a `ComparedRow` for each op and scope, the largest difference in time first.
        outside: if numbers are per step, a row for all ops that begin outside steps, with numbers of the whole run.
            Other rows and shares do not include these ops. None if there are no such ops.
        seconds: for each run the duration of one step, or of the whole run unless both runs have steps.
        per: "step" if numbers are per step, else "run".
        peaks: the machine's highest measured FLOP/s and bytes/s, to which the rates of the rows are compared.
        repeats: if numbers are per run, the ratio of run B's calls to run A's that most ops have: 10 if B ran the same
            loop ten times as long. Rows state "more often" only for ops with a larger ratio.
        by: "scope", or "line" if ops are compared within lines of the program.
    """

    names: tuple[str, str]
    rows: tuple[ComparedRow, ...]
    seconds: tuple[float, float]
    per: str
    peaks: Peaks
    outside: ComparedRow | None = None
    repeats: float = 1.0
    by: str = "scope"

    def __getitem__(self, key: str | tuple[str, str]) -> ComparedRow:
        """Return the first row of the op named ``key``, or the row of ``key`` = (op, scope)."""
        for row in self.rows:
            if key in (row.op, (row.op, row.scope)):
                return row
        known = ", ".join(dict.fromkeys(row.op for row in self.rows))
        raise KeyError(f"no op {key!r} in these runs; they have {known or 'none'}")

    def cells(self, rows: int | None = None) -> list[list[str]]:
        """Return the table as texts: titles, at most ``rows`` rows, one per op and scope, and the row `outside`."""
        last = [self.outside] if self.outside else []
        titles = [self.by if title == "scope" else title for title in TITLES]
        return [titles, *([*self._texts(row)] for row in [*self.rows[:rows], *last])]

    def _texts(self, row: ComparedRow) -> tuple[str, ...]:
        """Return the cells of a row."""
        a, b, change = row.a, row.b, row.difference
        sign = "-" if change < 0 else "+"
        rates = ((b.flops, self.peaks.flops, "over 100 %"), (b.traffic, self.peaks.memory, "from caches"))
        return (
            row.op, row.scope or quantity.UNKNOWN, _calls(a.calls), _calls(b.calls), quantity.duration(a.time),
            quantity.duration(b.time), f"{sign}{quantity.duration(abs(change))}", quantity.size(a.bytes),
            quantity.size(b.bytes), ", ".join(row.changes), f"{quantity.significant(row.bound)}×",
            *(_rate(work, b.time, peak, beyond) for work, peak, beyond in rates),
        )  # fmt: skip

    def summary(self) -> str:
        """Return the names and times of both runs and the machine's peaks, as text."""
        a, b = (quantity.duration(seconds * 1e9) for seconds in self.seconds)
        rest = ", those of ops outside steps of the whole run" if self.outside else ""
        if self.repeats != 1:
            rest = (
                f"; B calls most ops {quantity.significant(self.repeats)}× as often, and more often is relative to "
                f"that (numbers are of one step if both runs have steps: `with flnb.step():`)"
            )
        return (
            f"A: {safe_text(self.names[0])}, {a}; B: {safe_text(self.names[1])}, {b}; all numbers of one "
            f"{self.per}{rest}; slower and faster are changes of a call's median time beyond its spread, bigger and "
            f"smaller of its result. Peaks of this machine: {quantity.count(self.peaks.flops)}FLOP/s, "
            f"{quantity.size(self.peaks.memory)}/s from memory; more than that comes from caches. "
            f"Bound: B's speed-up if the row took no time"
        )

    def text(self, rows: int | None = SHOWN) -> str:
        """Return the summary and the table as text for a terminal, with at most ``rows`` rows; None for all."""
        width = shutil.get_terminal_size((UNLIMITED, 24)).columns
        shown = _fitted(self.cells(rows), width) if self.rows or self.outside else ["no op events"]
        more = len(self.rows[rows:]) if rows is not None else 0
        words = textwrap.wrap(self.summary(), width, break_on_hyphens=False)
        hint = [f"... and {more} more; all: flnb diff --all A B, or in Python .to_pandas()"] if more else []
        return "\n".join([*words, *shown, *hint])

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        shown = self.rows or self.outside
        titles, *rows = self.cells(4 * SHOWN)
        at = TITLES.index("changed")
        for row in rows:  # each change stays in one line; shares of peaks are in a line of their own
            row[at] = ", ".join(change.replace(" ", "\u00a0") for change in row[at].split(", "))
            row[-2:] = [tables.Markup(html_text(cell).replace(" (", "<br>(")) for cell in row[-2:]]
            op, scope = row[0], "" if row[1] == quantity.UNKNOWN else row[1]
            own = self.outside is None or row is not rows[-1]
            at_scope = (scope, 0) if self.by == "scope" else ()
            name = select_button(html_text(op), op, *at_scope) if own else html_text(op)
            row[:2] = [tables.Markup("<br>".join(part for part in (name, html_text(scope)) if part))]
        titles[:2] = [f"op, {self.by}"]
        table = tables.html([titles, *rows], SIDES[1:]) if shown else "<p>no op events</p>"
        return f"<div>{html_text(self.summary(), 1000)}</div>{table}"

    def to_pandas(self) -> Any:
        """Return a DataFrame of all rows: times in ns, bytes and FLOPs, of one step. Needs the extra "lab"."""
        fields = Work._fields
        names = [*(f"{name}_a" for name in fields), *(f"{name}_b" for name in fields)]
        rows = [[r.op, r.scope, *r.a, *r.b, r.difference, r.share, r.bound, ", ".join(r.changes)] for r in self.rows]
        columns = ["op", self.by, *names, "difference", "share", "bound", "changes"]
        return require("pandas", "lab", "a DataFrame").DataFrame(rows, columns=columns)


def compare_runs(a: Any, b: Any, *, by: str = "scope", least: float = 1.1, peaks: Peaks | None = None) -> RunComparison:
    """Compare two recordings by op and scope: which became slower, bigger, or are called more often.

    If both runs have steps, all numbers are per step, so that runs of different length can be compared. A step inside
    another step of the same thread is not counted separately. Ops outside of steps, such as those of loading and
    validation, are added up over the whole run in a last row, "outside steps". Otherwise all numbers are of
    the whole runs. In a terminal the table leaves out the columns that do not fit.

    Args:
        a, b: recordings, or paths of saved ones.
        by: within what ops are compared: "scope", or "line", the user's lines. Lines with the same text in the same
            file are one row, because edits change the numbers of lines.
        least: the smallest ratio between the runs that is stated as a change.
        peaks: the machine's highest FLOP/s and bytes/s; by default they are measured once in a process, which takes two
            seconds at most.

    Raises:
        TypeError: ``a`` or ``b`` is neither a recording nor a path, or ``least`` is not a number.
        ValueError: ``least`` is less than 1, or ``by`` has another value.

    >>> import flnb
    >>> from flnb_telemetry.analysis.roofline import Peaks
    >>> def run(size):
    ...     with flnb.record(f"{size}") as run, flnb.step():
    ...         for _ in range(size // 32):
    ...             flnb.exp(flnb.ones((size, size)))
    ...     return run
    >>> found = flnb.compare_runs(run(32), run(64), peaks=Peaks(1e11, 1e10, 1e11))
    >>> row = found["exp"]
    >>> row.a.calls, row.b.calls, row.a.bytes, row.b.bytes
    (1.0, 2.0, 4096.0, 32768.0)
    >>> [text for text in row.changes if "often" in text or "bigger" in text]
    ['bigger 4.00×', 'more often 2.00×']
    """
    if isinstance(least, bool) or not isinstance(least, (int, float, np.integer, np.floating)):
        raise TypeError(f"flnb.compare_runs: got least={least!r}; expected a number, a ratio of 1 or more")
    if not least >= 1:
        raise ValueError(f"flnb.compare_runs: got least={least!r}; expected a ratio of 1 or more")
    if by not in ("scope", "line"):
        raise ValueError(f"flnb.compare_runs: got by={by!r}; expected 'scope' or 'line'")
    runs = [_recording(run) for run in (a, b)]
    spans = [step_durations(run) for run in runs]
    steps = [len(found) for found in spans]
    per = "step" if all(steps) else "run"
    counts = steps if all(steps) else [1, 1]
    seconds = [
        float(found.sum()) / 1e9 / count if per == "step" else run.seconds
        for run, found, count in zip(runs, spans, counts, strict=True)
    ]
    within = [in_steps(run) if per == "step" else np.ones(len(run.table("op")["t0"]), np.bool_) for run in runs]
    works = [works_of(run, chosen, count, by) for run, chosen, count in zip(runs, within, counts, strict=True)]
    repeats = _repeats(*works) if per == "run" else 1.0
    whole = max(seconds[1] * 1e9, sum(work.time for work in works[1].values()), 1.0)  # threads may add up to more
    rows = []
    for op, scope in dict.fromkeys([*works[0], *works[1]]):
        before, after = (found.get((op, scope), Work()) for found in works)
        rows.append(ComparedRow(op, scope, before, after, after.time / whole, least, repeats))
    rows.sort(key=lambda row: (-abs(row.difference), row.op, row.scope))
    names = (runs[0].name, runs[1].name)
    before, after = (total(works_of(run, ~chosen, 1)) for run, chosen in zip(runs, within, strict=True))
    found = before.calls or after.calls
    outside = ComparedRow("outside steps", "whole run", before, after, 0.0, least) if found else None
    return RunComparison(
        names, tuple(rows), (seconds[0], seconds[1]), per, peaks or measured_peaks(), outside, repeats, by
    )


def _repeats(a: dict[tuple[str, str], Work], b: dict[tuple[str, str], Work]) -> float:
    """Return how many times more calls run B has, if this ratio is equal for most of the common ops; else 1."""
    ratios = Counter(b[key].calls / a[key].calls for key in a if key in b)
    ratio, count = max(ratios.items(), key=lambda each: each[1], default=(1.0, 0))
    return ratio if 2 * count > ratios.total() else 1.0


def _fitted(cells: list[list[str]], width: int) -> list[str]:
    """Return a table of texts as lines of at most ``width`` characters, or as short as possible.

    To shorten lines, columns are left out in the order of `DISPENSABLE`. If this is not enough, each change gets a line
    of its own, and then names are cut.
    """
    left_out: set[str] = set()
    for more in ((), *DISPENSABLE):
        left_out |= {*more}
        columns = [at for at, title in enumerate(TITLES) if title not in left_out]
        shown, sides = [[row[at] for at in columns] for row in cells], "".join(SIDES[at] for at in columns)
        lines = tables.lines(shown, sides)
        if max(map(len, lines)) <= width:
            return lines
    shown = [[cell.replace(", ", ",\n") for cell in row] for row in shown]
    for longest in (tables.LONGEST, 24, 16):
        lines = tables.lines(shown, sides, longest)
        if max(map(len, lines)) <= width:
            break
    return lines


def _recording(run: Any) -> Recording:
    """Return a recording, loaded from its file if it is a path."""
    found = load_run(run) if isinstance(run, (str, os.PathLike)) else run
    if not isinstance(found, Recording):
        raise TypeError(
            f"flnb.compare_runs: expected two recordings (flnb.record) or paths of saved ones, got {type(run).__name__}"
        )
    return found


def _calls(number: float) -> str:
    """Return the number of calls per step as text, with decimals if the number is not whole."""
    return quantity.count(number) if number == int(number) else quantity.significant(number)


def _rate(work: float, ns: float, peak: float, beyond: str) -> str:
    """Return ``work`` per second and its fraction of ``peak`` as text; a dash if there was no work or no time.

    A fraction above 1 is replaced by the words ``beyond``.
    """
    if not work or not ns:
        return quantity.UNKNOWN
    rate = work / ns * 1e9
    return f"{quantity.count(rate)} ({quantity.percent(rate / peak) if rate <= peak else beyond})"
