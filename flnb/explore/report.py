"""The report of `check_backend`, `check_manager` and `compare_backends`: a table, true if every check passed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flnb_telemetry import tables
from flnb_telemetry.safe_text import WHOLE, html_text, safe_lines, safe_text
from flnb_telemetry.tables import Markup

from flnb.explore.turns import Spread

if TYPE_CHECKING:
    from collections.abc import Iterator

DIM = "color:var(--jp-ui-font-color2,#777)"
MEASURED = ("backend", "error", "time")  # columns that are left out where no row has them


@dataclass(frozen=True)
class Result:
    """One row of a report.

    Attributes:
        check: what was checked, as the name of an op or a rule in words.
        passed: whether the check passed.
        tried: the number of calls.
        reason: why the check failed, or an empty text.
        calls: code of the shortest sequence of calls found that shows the failure, or the texts of further failures.
        backend: the name of the backend, in reports on several backends.
        error: the largest absolute error of all calls; None if it was not measured.
        time: the time of all calls as a multiple of the reference's; a `Spread` if it was measured in several rounds.
        inputs: the shapes and dtypes of the inputs of the first call that failed.
        line: the source line of the first call that failed, or of the method that failed.
        op: the op's name in the op table, by which a click selects it in the dashboard.
        scope, nth: the path of the module in which it ran, and its place among the calls of this op there, counted from
            0. By them a click selects the op's node on the tape in the dashboard. nth is None for an op without node.
    """

    check: str
    passed: bool
    tried: int
    reason: str = ""
    calls: tuple[str, ...] = ()
    backend: str = ""
    error: float | None = None
    time: float | Spread | None = None
    inputs: str = ""
    line: str = ""
    op: str = ""
    scope: str = ""
    nth: int | None = None

    @property
    def shown(self) -> dict[str, str]:
        """Return the error and time as texts, empty where not measured."""
        error = "" if self.error is None else f"{self.error:.1e}" if self.error else "exact"
        if isinstance(self.time, Spread):
            time = f"{self.time.median:.2f}× ({self.time.least:.2f} to {self.time.most:.2f})"
        else:
            time = "" if self.time is None else f"{self.time:.2f}×"
        return {"error": error, "time": time}

    @property
    def numbers(self) -> str:
        """Return the number of calls, the largest error and the time as one line of aligned text."""
        error, time = self.shown.values()
        calls = f"{self.tried} call{'' if self.tried == 1 else 's'}"
        error = error if error in ("", "exact") else f"error {error}"
        return "  ".join(f"{text:12}" for text in (calls, error, time and f"time {time}") if text).rstrip()

    @property
    def details(self) -> list[str]:
        """Return the lines of text below a failure's reason: inputs, source line and calls."""
        failure = [] if self.passed else [self.inputs and f"inputs {self.inputs}", self.line]
        return [*filter(None, failure), *self.calls]


@dataclass(frozen=True, repr=False)
class Report:
    """The results of several checks: true if all passed, shown as a table.

    Attributes:
        subject: what was checked, such as "backend numpy".
        results: one `Result` for each check.
    """

    subject: str
    results: tuple[Result, ...]

    def __bool__(self) -> bool:
        return not self.failed

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, check: str) -> Result:
        """Return the result of a check by its name; if several checks have that name, prefer one that failed."""
        found = sorted((r for r in self.results if r.check == check), key=lambda r: r.passed)
        if not found:
            raise KeyError(f"no check {check!r} in this report; it has {', '.join(r.check for r in self.results)}")
        return found[0]

    @property
    def failed(self) -> tuple[Result, ...]:
        """Return the results of the checks that failed."""
        return tuple(result for result in self.results if not result.passed)

    @property
    def title(self) -> str:
        """Return one line with the number of failed checks."""
        total, failed = len(self.results), len(self.failed)
        return f"{self.subject}: {f'{failed} of {total} checks failed' if failed else f'all {total} checks passed'}"

    @property
    def _shown(self) -> list[Result]:
        """Return the results as displays list them: those of failed checks first."""
        return sorted(self.results, key=lambda result: result.passed)

    def __repr__(self) -> str:
        heads = [f"{r.check} ({r.backend})" if r.backend else r.check for r in self._shown]
        width = max(map(len, heads), default=0)
        lines = [self.title]
        for head, result in zip(heads, self._shown, strict=True):
            state = f"ok      {result.numbers}" if result.passed else f"FAILED  {result.reason}"
            lines += [f"  {head:{width}}  {state}", *(f"  {'':{width}}    {detail}" for detail in result.details)]
        return safe_lines("\n".join(lines))

    def _repr_html_(self) -> str:
        heads = "check", "backend", "", "calls", "error", "time", ""
        rows = [_cells(result) for result in self._shown]
        used = [i for i, head in enumerate(heads) if head not in MEASURED or any(row[i] for row in rows)]
        sides = "".join("<<<>>><"[i] for i in used)
        return tables.html([[row[i] for i in used] for row in (heads, *rows)], sides, self.title)


def _cells(result: Result) -> list[Markup]:
    """Return the HTML cells of a result: check, backend, outcome, calls, error, time, and details of a failure."""
    good, bad = ("✓ ok", "--jp-success-color1,#2e7d32"), ("✗ failed", "--jp-error-color1,#d32f2f")
    mark, colour = good if result.passed else bad
    check, *measured = html_text(result.check), *result.shown.values()
    check, error, time = (text and f"<span style='white-space:nowrap'>{text}</span>" for text in (check, *measured))
    cells = (
        select_button(check, result.op, result.scope, result.nth) if result.op else check, html_text(result.backend),
        f"<b style='color:var({colour});white-space:nowrap'>{mark}</b>", str(result.tried), error, time, _what(result),
    )  # fmt: skip
    return list(map(Markup, cells))


def _what(result: Result) -> str:
    """Return HTML with the reason of a failure, and below it the inputs, the source line and the calls."""
    clipped = "max-width:44em;overflow:hidden;text-overflow:ellipsis;white-space:nowrap"
    parts = [html_text(result.reason)] if result.reason else []
    if result.inputs and not result.passed:
        parts.append(f"<span style='{DIM}'>inputs</span> <code>{html_text(result.inputs)}</code>")
    if result.line:
        line = html_text(result.line)
        parts.append(f"<code title='{line}' style='display:block;background:none;{clipped};{DIM}'>{line}</code>")
    if result.calls:
        parts.append(f"<pre style='margin:4px 0 0'>{html_text(chr(10).join(result.calls))}</pre>")
    return "".join(f"<div>{part}</div>" for part in parts)


def select_button(text: str, op: str, scope: str = "", nth: int | None = None) -> str:
    """Return an HTML button that selects an op: a click dispatches an event, which the page's dashboards handle.

    Args:
        text: the button's text, as HTML.
        op: the op's name.
        scope, nth: the path of the module and the op's place among the calls of this op there, as in `Result`.
    """
    named = {"op": op} | ({} if nth is None else {"scope": scope, "nth": nth})
    detail = json.dumps({key: safe_text(value) if isinstance(value, str) else value for key, value in named.items()})
    event = html_text(f'new CustomEvent("flnb-select", {{detail: {detail}}})', WHOLE)  # quotes in names are escaped
    style = "all:unset;cursor:pointer;text-decoration:underline dotted;font-family:var(--jp-code-font-family,monospace)"
    title = "select this op in the dashboard"
    return f"<button style='{style}' title='{title}' onclick='window.dispatchEvent({event})'>{text}</button>"
