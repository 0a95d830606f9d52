"""What `notebooks/backends.ipynb` says of modes and programs is asserted in it, and holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "backends.ipynb"
ASSERTED = "equal", "side", "when", "replace", "replaced"


@pytest.fixture(scope="module")
def cells() -> dict[str, str]:
    """The notebook's code by the ids of its cells."""
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in found if cell["cell_type"] == "code"}


def test_what_the_notebook_claims_holds(cells: dict[str, str]) -> None:
    for module in ("pandas", "plotly", "anywidget", "graphviz", "llvmlite"):
        pytest.importorskip(module)
    names: dict[str, Any] = {}
    for source in cells.values():
        exec(compile(source, str(NOTEBOOK), "exec"), names)
    table = names["table"]
    assert table.loc["numpy", "of them in kernels"] == 0
    assert table.loc["jit", "of them in kernels"] > table.loc["jit", "launches"]
    for name, (*_, most) in names["results"].items():
        assert table.loc[name, "peak, MiB"] == most / 2**20 > 0
    assert names["counted"]["jit"]["calls of exp"] == names["counted"]["at once"]["calls of exp"]


def test_every_claim_has_an_assertion(cells: dict[str, str]) -> None:
    assert {name for name, source in cells.items() if "assert " in source} == set(ASSERTED)
