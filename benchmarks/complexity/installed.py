"""The files, bytes and lines of code of an installed framework, found by its metadata, and its import time."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.complexity.lines import OMITTED, by_language, sources

if TYPE_CHECKING:
    from collections.abc import Set

__all__ = ["FRAMEWORKS", "files", "import_times", "median", "required", "row"]

ROOT = Path(__file__).parents[2]
PACKAGES = ("flnb", "telemetry/flnb_telemetry", "backends/flnb_backends")
FRAMEWORKS = {"flnb": ("flnb",), "torch": ("torch",), "jax": ("jax", "jaxlib"), "numpy": ("numpy",)}
"""The distributions of each framework, without those that it requires."""


def files(name: str, omitted: Set[str] = frozenset({"__pycache__", "frontend"})) -> list[Path]:
    """Return the files of an installed distribution, without those in the folders ``omitted``.

    For flnb these are the files of this checkout that its wheel would contain.
    """
    if name == "flnb":
        held = [path for package in PACKAGES for path in (ROOT / package).rglob("*")]
        listed = [(path, path.relative_to(ROOT).parts) for path in [*held, *(ROOT / "notebooks").glob("*.ipynb")]]
    else:
        listed = [(Path(str(entry.locate())), entry.parts) for entry in distribution(name).files or ()]
    return [path for path, parts in listed if not omitted & set(parts) and path.is_file()]


def required(names: tuple[str, ...]) -> list[str]:
    """Return the distributions that those in ``names`` require on this machine, directly or indirectly.

    Requirements of extras, and the distributions in ``names`` themselves, are left out.
    """
    from packaging.requirements import Requirement

    found: list[str] = []
    waiting = list(names)
    while waiting:
        for text in distribution(waiting.pop()).requires or ():
            needed = Requirement(text)
            asked = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if asked and needed.name not in found and needed.name not in names:
                found.append(needed.name)
                waiting.append(needed.name)
    return sorted(found)


def _size(names: tuple[str, ...] | list[str]) -> int:
    """Return the bytes of all files of some distributions."""
    return sum(path.stat().st_size for name in names for path in files(name))


def row(framework: str) -> dict[str, Any] | None:
    """Return the version, the lines of code by language and the bytes of a framework; None if it is not installed."""
    names = FRAMEWORKS[framework]
    if not find_spec(framework):
        return None
    if framework == "flnb":
        counted = [path for package in PACKAGES for path in sources(ROOT / package)]
    else:
        counted = [path for name in names for path in files(name, OMITTED)]
    needed = required(names)
    own = _size(names)
    return {
        "version": _version(names[0]),
        "lines": by_language(counted),
        "bytes": own,
        "bytes with requirements": own + _size(needed),
        "requires": needed,
    }


def _version(name: str) -> str:
    """Return the version of an installed distribution, or "from a checkout" if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "from a checkout"


def import_times(frameworks: list[str], rounds: int) -> dict[str, list[float]]:
    """Return the seconds that ``import NAME`` takes in new processes, for each framework a list of ``rounds`` times.

    The frameworks take turns. An additional first round fills the cache of bytecode and is not counted.
    """
    program = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    times: dict[str, list[float]] = {name: [] for name in frameworks}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(rounds + 1):
            for name, found in times.items():
                command = [sys.executable, "-c", program.format(name)]
                output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
                found.append(float(output))
    return {name: found[1:] for name, found in times.items()}


def median(times: list[float]) -> float:
    """Return the median of times in seconds, rounded to milliseconds."""
    return round(statistics.median(times), 3)
