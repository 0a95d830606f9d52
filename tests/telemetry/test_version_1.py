"""A file that flnb wrote when its event schema had version 1 opens, with all that was in it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from flnb_telemetry import load_run, schema

pytest.importorskip("pyarrow")

FILE = Path(__file__).parent / "version-1.flnb"
X = np.arange(1200, dtype=np.float32).reshape(30, 40) * -0.001
EVENTS = {
    "op": 27, "alloc": 19, "free_requested": 13, "free_completed": 13, "segment_alloc": 1, "scope": 8, "step": 2,
    "metric": 2, "grad_stat": 4, "walk": 1, "leaf": 1,
}  # fmt: skip
"""Two steps of ``y = exp(x * -0.001) @ w`` in the scope "net.head", ``loss = (y * y).sum()`` in "net", backward."""


def test_the_file_is_of_version_1() -> None:
    with zipfile.ZipFile(FILE) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["schema"] == manifest["meta"]["schema"] == 1
    assert {name: count for name, count in manifest["kinds"].items() if count} == EVENTS


def test_it_opens_with_all_its_events() -> None:
    run = load_run(FILE)
    assert {kind: len(run.table(kind)["lane"]) for kind in schema.KINDS if len(run.table(kind)["lane"])} == EVENTS
    y = np.exp(X) @ np.ones((40, 20), np.float32)
    np.testing.assert_allclose(run.metrics["loss"]["value"], [(y * y).sum()] * 2, rtol=1e-6)
    assert run.steps["index"].tolist() == [0, 1]
    assert not [fact for fact in run.summary() if fact.startswith("stored")], "its settings are not known"
    counts = {row.key: row.count for row in run.ops.by("scope", "phase")}
    assert counts["net.head", "forward"] == 2  # the product with a parameter, once a step
    assert counts["net", "forward"] == 4  # square and sum
    assert {scope for scope, _ in counts} == {"", "net", "net.head"}
    assert run.ops["exp"].count == 2
    assert {(context.device, context.stream) for context in run.catalog.contexts.items} == {("", 0)}  # the host's
    assert run.table("segment_alloc")["place"].tolist() == [0]
    assert [node.op for node in run.tape.nodes] == ["matmul", "multiply", "sum"]
    peak = run.memory.peak
    assert peak.by_category["input"] == 5120 + 3584  # x and w, rounded to 512 bytes
    assert (peak.allocated, peak.reserved) == (27 << 10, 2 << 20)
