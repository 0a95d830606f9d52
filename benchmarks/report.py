"""The output of every benchmark: a printed table, and a JSON file with the machine and the versions."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnb_telemetry.formats import aside

from flnb.bench import table

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RESULTS", "insert", "machine", "markdown", "page", "table", "write"]

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Return the facts about this machine that each result has: processor, cores, and versions of the libraries."""
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
    """Store a benchmark's result as ``benchmarks/results/NAME.json``, unless the option "quick" is set.

    Return the path of the file.

    Args:
        name: the name of the benchmark.
        rows: the result, for JSON.
        options: the benchmark's options by name, which are stored too.
    """
    path = RESULTS / f"{name}.json"
    if options.get("quick"):
        return path
    RESULTS.mkdir(exist_ok=True)
    with aside(path) as part:
        part.write_text(json.dumps({"machine": machine(), "options": options, "rows": rows}, indent=1) + "\n")
    return path


def page(name: str, figure: Any, options: dict[str, Any]) -> Path:
    """Store a plotly figure as ``benchmarks/results/NAME.html``, which needs no network, unless "quick" is set.

    Return the path of the file.
    """
    path = RESULTS / f"{name}.html"
    if not options.get("quick"):
        RESULTS.mkdir(exist_ok=True)
        with aside(path) as part:
            figure.write_html(part)
    return path


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Format rows with equal keys as a Markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def insert(name: str, text: str, folder: Path = RESULTS) -> None:
    """Replace the section ``name`` of a folder's README.md by ``text``; append the section if there is none.

    Comments with the section's name mark its beginning and its end.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    path = folder / "README.md"
    page = path.read_text() if path.exists() else "# Results\n"
    if begin not in page:
        page += f"\n{begin}\n{end}\n"
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2]
    with aside(path) as part:
        part.write_text(f"{before}{begin}\n{text}\n{end}{after}")
