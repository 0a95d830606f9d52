"""What every benchmark prints and keeps: a table, and a JSON file with the machine and the versions."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flnb.bench import table

__all__ = ["RESULTS", "machine", "page", "table", "write"]

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Processor, cores and the versions that matter."""
    versions = {}
    for name in ("flnb", "numpy", "torch", "jax"):
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


def page(name: str, figure: Any, options: dict[str, Any]) -> Path:
    """Keep a plotly figure as a page that needs no network beside the result; of a quick run it is not kept either."""
    path = RESULTS / f"{name}.html"
    if not options.get("quick"):
        RESULTS.mkdir(exist_ok=True)
        figure.write_html(path)
    return path
