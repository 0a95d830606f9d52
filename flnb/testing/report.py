"""What the conformance kits give back: a table, true when every check passed."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

__all__ = ["Report", "Result"]


@dataclass(frozen=True)
class Result:
    """One row of a report; ``calls`` is the shortest sequence found that shows the failure."""

    check: str
    passed: bool
    tried: int
    reason: str = ""
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Report:
    """What a conformance kit found: true when every check passed, and shows itself as a table."""

    subject: str
    results: tuple[Result, ...]

    def __bool__(self) -> bool:
        return all(result.passed for result in self.results)

    @property
    def title(self) -> str:
        """The outcome in one line."""
        total, failed = len(self.results), sum(not result.passed for result in self.results)
        return f"{self.subject}: {f'{failed} of {total} checks failed' if failed else f'all {total} checks passed'}"

    def __repr__(self) -> str:
        width = max(len(result.check) for result in self.results)
        lines = [self.title]
        for result in self.results:
            state = f"ok      {result.tried} calls" if result.passed else f"FAILED  {result.reason}"
            lines += [f"  {result.check:{width}}  {state}", *(f"  {'':{width}}    {call}" for call in result.calls)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = ""
        for result in self.results:
            state, colour = ("ok", "#16a34a") if result.passed else ("failed", "#dc2626")
            what = f"{result.tried} calls" if result.passed else escape(result.reason)
            if result.calls:
                what += f"<pre style='margin:4px 0 0'>{escape(chr(10).join(result.calls))}</pre>"
            cells = (escape(result.check), f"<b style='color:{colour}'>{state}</b>", what)
            rows += f"<tr>{''.join(f'''<td style='text-align:left'>{cell}</td>''' for cell in cells)}</tr>"
        return f"<table><caption>{escape(self.title)}</caption>{rows}</table>"
