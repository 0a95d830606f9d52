"""What `notebooks/models.ipynb` says of a backend with products in bfloat16 holds, on a model that is quick to run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import flnb
import flnb.nn as nn
import flnb.optim as optim

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "models.ipynb"


def cells() -> dict[str, str]:
    """The notebook's code by the ids of its cells."""
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in found if cell["cell_type"] == "code"}


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    """The names of a notebook that has run up to the new backend, with a small model in place of the recipe's."""
    pandas = pytest.importorskip("pandas")
    flnb.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    labels = flnb.asarray(np.arange(24) % 4)
    batch = [flnb.random.normal((24, 16)), labels]
    recipe = SimpleNamespace(
        loss=lambda model, x, y: flnb.cross_entropy(model(x), y),
        build=lambda size: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)),
    )
    names = {"np": np, "pd": pandas, "flnb": flnb, "optim": optim, "recipe": recipe, "model": model, "batch": batch}
    names |= {"SIZE": "small", "optimizer": optim.Adam(model.parameters(), lr=1e-3)}
    code = cells()
    train = code["record"].split("\n\n\n")[0]  # the function alone
    for source in (train, code["rounding"], code["backend"]):
        exec(compile(source, str(NOTEBOOK), "exec"), names)
    return names


@pytest.mark.parametrize("cell", ["compare", "count", "learn"])
def test_what_the_notebook_claims_is_asserted_in_it_and_holds(notebook: dict[str, Any], cell: str) -> None:
    source = cells()[cell]
    assert "assert " in source
    exec(compile(source, str(NOTEBOOK), "exec"), notebook)


def test_rounding_is_to_the_nearest_bfloat16(notebook: dict[str, Any]) -> None:
    values = np.array([1.0, 1.0 + 2**-7, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -2.0 - 2**-7 - 2**-20, 0.0], np.float32)
    expected = [1.0, 1.0 + 2**-7, 1.0, 1.0 + 2**-6, -2.0 - 2**-6, 0.0]
    assert notebook["rounded"](values).tolist() == expected
