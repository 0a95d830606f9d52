"""What every benchmark prints and keeps: a table, and a JSON file with the machine and the versions."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of equal keys as aligned text."""
    if not rows:
        return "(no rows)"
    names = list(rows[0])
    cells = [names, *([str(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def machine() -> dict[str, Any]:
    """Processor, cores and the versions that matter."""
    versions = {}
    for name in ("flnb", "numpy", "torch"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


def write(name: str, rows: Any, options: dict[str, Any]) -> Path:
    """Keep a result under benchmarks/results, written aside and renamed; a quick run is not kept."""
    path = RESULTS / f"{name}.json"
    if options.get("quick"):
        return path
    RESULTS.mkdir(exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps({"machine": machine(), "options": options, "rows": rows}, indent=1) + "\n")
    aside.replace(path)
    return path
