"""The result of the conformance kits: a table, true if every check passed."""

from __future__ import annotations

import json
from dataclasses import dataclass

from flnb_telemetry import tables
from flnb_telemetry.safe_text import html_text, safe_lines, safe_text
from flnb_telemetry.tables import Markup

from flnb.explore.turns import Spread

__all__ = ["Report", "Result"]


@dataclass(frozen=True)
class Result:
    """One row of a report.

    Attributes:
        check: what was checked: an op, or a rule in words.
        tried: how many calls.
        reason: why it failed; ``calls`` is the shortest sequence found that shows it.
        backend: on which backend, where a report has several.
        error: largest absolute error of all calls.
        time: of all calls, as a multiple of the reference's; of several rounds the median with the least and the most.
        inputs: shapes and dtypes of the first call that failed.
        line: of the source: where that call was made, or the method that failed.
        op: name of the op in the table, by which other views can show it.
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

    @property
    def shown(self) -> dict[str, str]:
        """Error and time as texts, empty where they were not measured."""
        error = "" if self.error is None else f"{self.error:.1e}" if self.error else "exact"
        if isinstance(self.time, Spread):
            time = f"{self.time.median:.2f}× ({self.time.least:.2f} to {self.time.most:.2f})"
        else:
            time = "" if self.time is None else f"{self.time:.2f}×"
        return {"error": error, "time": time}

    @property
    def numbers(self) -> list[str]:
        """Calls, and largest error and time where they were measured."""
        error, time = self.shown.values()
        measured = [error if error in ("", "exact") else f"error {error}", time and f"time {time}"]
        return [f"{self.tried} call{'' if self.tried == 1 else 's'}", *filter(None, measured)]

    @property
    def details(self) -> list[str]:
        """The text below a failure's reason."""
        return [
            *([f"inputs {self.inputs}"] if self.inputs and not self.passed else []),
            *([self.line] if self.line and not self.passed else []),
            *self.calls,
        ]


@dataclass(frozen=True, repr=False)
class Report:
    """The result of a conformance kit: true if every check passed; shown as a table."""

    subject: str
    results: tuple[Result, ...]

    def __bool__(self) -> bool:
        return all(result.passed for result in self.results)

    def __getitem__(self, check: str) -> Result:
        """The first row of a check, one that failed before others."""
        found = sorted((r for r in self.results if r.check == check), key=lambda r: r.passed)
        if not found:
            raise KeyError(f"no check {check!r} in this report; it has {', '.join(r.check for r in self.results)}")
        return found[0]

    @property
    def failed(self) -> tuple[Result, ...]:
        """The rows of the checks that failed."""
        return tuple(result for result in self.results if not result.passed)

    @property
    def title(self) -> str:
        """The outcome in one line."""
        total, failed = len(self.results), len(self.failed)
        return f"{self.subject}: {f'{failed} of {total} checks failed' if failed else f'all {total} checks passed'}"

    def __repr__(self) -> str:
        heads = [" ".join(filter(None, (r.check, f"({r.backend})" if r.backend else ""))) for r in self.results]
        width = max(map(len, heads), default=0)
        lines = [self.title]
        for head, result in zip(heads, self.results, strict=True):
            numbers = "  ".join(f"{number:12}" for number in result.numbers).rstrip()
            state = f"ok      {numbers}" if result.passed else f"FAILED  {result.reason}"
            lines += [f"  {head:{width}}  {state}", *(f"  {'':{width}}    {detail}" for detail in result.details)]
        return safe_lines("\n".join(lines))

    def _repr_html_(self) -> str:
        columns = [name for name in ("backend", "error", "time") if any(getattr(r, name) for r in self.results)]
        heads = [
            "check",
            *columns[: columns.count("backend")],
            "",
            "calls",
            *(c for c in columns if c != "backend"),
            "",
        ]
        rows = [list(map(Markup, _row(result, columns))) for result in self.results]
        return tables.html([heads, *rows], caption=self.title)


def _row(result: Result, columns: list[str]) -> list[str]:
    good, bad = ("✓ ok", "--jp-success-color1,#2e7d32"), ("✗ failed", "--jp-error-color1,#d32f2f")
    mark, colour = good if result.passed else bad
    return [
        _selecting(result.op, html_text(result.check)) if result.op else html_text(result.check),
        *([html_text(result.backend)] if "backend" in columns else []),
        f"<b style='color:var({colour});white-space:nowrap'>{mark}</b>",
        str(result.tried),
        *(f"<span style='white-space:nowrap'>{result.shown[name]}</span>" for name in columns if name != "backend"),
        _what(result),
    ]


def _what(result: Result) -> str:
    """Reason, inputs, line and calls, one beneath the other."""
    clipped = "max-width:44em;overflow:hidden;text-overflow:ellipsis;white-space:nowrap"
    dim = "color:var(--jp-ui-font-color2,#777)"
    parts = [html_text(result.reason)] if result.reason else []
    if result.inputs and not result.passed:
        parts.append(f"<span style='{dim}'>inputs</span> <code>{html_text(result.inputs)}</code>")
    if result.line:
        line = html_text(result.line)
        parts.append(f"<code title='{line}' style='display:block;background:none;{clipped};{dim}'>{line}</code>")
    if result.calls:
        parts.append(f"<pre style='margin:4px 0 0'>{html_text(chr(10).join(result.calls))}</pre>")
    return "".join(f"<div>{part}</div>" for part in parts)


def _selecting(op: str, text: str) -> str:
    """A button that selects the op in the dashboards of the page, if there are any: they listen for this event."""
    detail = json.dumps(safe_text(op))  # a text of JavaScript, which quotes in a name must not end
    event = html_text(f'new CustomEvent("flnb-select", {{detail: {{op: {detail}}}}})')
    style = "all:unset;cursor:pointer;text-decoration:underline dotted;font-family:var(--jp-code-font-family,monospace)"
    title = "select this op in the dashboard"
    return f"<button style='{style}' title='{title}' onclick='window.dispatchEvent({event})'>{text}</button>"
