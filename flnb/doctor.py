"""The report of `flnb doctor` and `%flnb doctor`: what is installed, what is missing and what is active."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import sys
from pathlib import Path

import numpy
from flnb_backends.native import locating
from flnb_backends.tensor.cuda.inventory import inventory
from flnb_telemetry import tables
from flnb_telemetry.safe_text import LONGEST_LINE

from flnb.dispatch import registry, state
from flnb.interface.part import CONTRACTS


def installed(extra: str) -> list[tuple[str, str | None]]:
    """Return the packages of one of flnb's extras, such as "lab", with their versions (None if not installed)."""
    ours = [line for line in importlib.metadata.requires("flnb") or [] if re.search(f"extra == .{extra}['\"]", line)]
    return [(name, _version(name)) for line in ours if (name := re.split(r"[^\w.-]", line)[0]) != "flnb"]


def _version(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def doctor() -> str:
    """Return a table of versions, active backend and memory manager, optional packages, oneDNN, CUDA and graphviz."""
    parts = state.current().parts
    active = {kind: parts[c.slot].name if c.slot in parts else "none" for kind, c in CONTRACTS.items()}
    rows = [
        ("flnb", f"{_version('flnb')}  ({Path(__file__).parent})"),
        ("python", f"{platform.python_version()}  ({sys.executable})"),
        ("numpy", numpy.__version__),
        ("platform", platform.platform()),
        ("processors", str(os.cpu_count())),
        *((name, os.environ[name]) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") if name in os.environ),
        ("computed by", state.current().backend.libraries() or "unknown"),
        *((kind, f"{active[kind]}  (available: {', '.join(registry.names(kind)) or 'none'})") for kind in CONTRACTS),
    ]
    for extra in sorted(importlib.metadata.metadata("flnb").get_all("Provides-Extra") or []):
        if packages := installed(extra):
            missing = [name for name, version in packages if version is None]
            complete = f"complete: {', '.join(f'{name} {version}' for name, version in packages)}"
            lacking = f"missing {', '.join(missing)}: pip install 'flnb[{extra}]'"
            rows.append((f"extra {extra}", lacking if missing else complete))
    lacking = "not found: install Debian's graphviz package to draw tape graphs with flnb.plot.tape"
    rows += locating.inventory() + inventory(_version)
    rows.append(("dot", shutil.which("dot") or lacking))
    return "\n".join(tables.lines(rows, longest=LONGEST_LINE))
