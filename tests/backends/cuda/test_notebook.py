"""`notebooks/cuda.ipynb`: every claim is an assertion in its cells, which run here one after the other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

NOTEBOOK = json.loads((Path(__file__).resolve().parents[3] / "notebooks" / "cuda.ipynb").read_text(encoding="utf-8"))

if (shutil.which("g++") is None or None in (find_spec("cupy"), find_spec("plotly"))) and "CI" not in os.environ:
    pytest.skip("g++, CuPy or plotly is not installed", allow_module_level=True)


def test_it_runs_and_what_it_claims_is_so() -> None:
    code = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert sum(cell.count("assert ") for cell in code) >= 15
    done = subprocess.run(
        [sys.executable, "-"], input="\n\n".join(code), capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "emulated device: order and counts are real, durations are not" in done.stdout


def test_it_says_first_that_the_device_is_emulated() -> None:
    first = "".join(NOTEBOOK["cells"][0]["source"])
    assert "**emulated device**" in first
    assert "Nothing here says how fast anything is" in first
    assert "emulate(" in "".join(NOTEBOOK["cells"][1]["source"])
