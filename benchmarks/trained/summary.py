"""The table of what was reached, in benchmarks/results/README.md, made from the JSON files beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flnb_telemetry.formats import aside

from benchmarks.report import RESULTS

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, END = "<!-- trained: begin -->", "<!-- trained: end -->"
HEAD = "| trained | parameters | held-out figure | reached (worst seed) | goal | without training | steps | CPU s |"


def line(result: dict[str, Any]) -> str:
    """A result as a row of the table."""
    last = result["seeds"][-1]["curve"][-1]
    references = ", ".join(f"{name} {value:.2f}" for name, value in result["references"].items())
    cells = [result["title"], f"{result['parameters']:,}", result["figure"], f"{result['worst']:.2f}"]
    cells += [f"{result['goal']:g}", references, f"{last['step']:,}", f"{last['seconds']:.0f}"]
    return f"| {' | '.join(cells)} |"


def summarise(folder: Path = RESULTS) -> None:
    """Write the table anew between its two marks in the folder's README.md, or at its end."""
    results = [json.loads(path.read_text())["rows"] for path in sorted(folder.glob("trained-*.json"))]
    rows = [HEAD, "|" + "---|" * (HEAD.count("|") - 1), *map(line, results)]
    path = folder / "README.md"
    text = path.read_text() if path.exists() else "# Results\n"
    if BEGIN not in text:
        text += f"\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    with aside(path) as part:
        part.write_text(f"{before}{BEGIN}\n" + "\n".join(rows) + f"\n{END}{after}")
