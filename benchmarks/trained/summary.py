"""The table of the results in benchmarks/results/README.md, made from the JSON files in the same folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from benchmarks.report import RESULTS, insert, markdown

if TYPE_CHECKING:
    from pathlib import Path


def line(result: dict[str, Any]) -> dict[str, str]:
    """Convert the result of an experiment to a row of the table."""
    last = result["seeds"][-1]["curve"][-1]
    references = ", ".join(f"{name} {value:.2f}" for name, value in result["references"].items())
    return {
        "trained": result["title"],
        "parameters": f"{result['parameters']:,}",
        "held-out figure": result["figure"],
        "reached (worst seed)": f"{result['worst']:.2f}",
        "goal": f"{result['goal']:g}",
        "without training": references,
        "steps": f"{last['step']:,}",
        "CPU s": f"{last['seconds']:.0f}",
    }


def summarise(folder: Path = RESULTS) -> None:
    """Write the table of all results into the folder's README.md."""
    results = [json.loads(path.read_text())["rows"] for path in sorted(folder.glob("trained-*.json"))]
    insert("trained", markdown([line(result) for result in results]), folder)
