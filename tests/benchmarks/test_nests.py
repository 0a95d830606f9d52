"""The benchmark of loop nests: contestants compute the same, what is off is an error, the stored table is whole."""

from __future__ import annotations

import json
import platform
import sys

import numpy as np
import pytest

from benchmarks import nests
from benchmarks.report import RESULTS
from flnb.bench import Worker
from flnb.bench.measure import threads

ROWS = json.loads((RESULTS / "nests.json").read_text())


@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="there is no oneDNN to install")
def test_contestants_compute_the_same() -> None:
    found = nests.contestants()
    results = {}
    for name in ("flnb", "flnb, jit"):
        with Worker(name, *found[name], threads(1)) as worker:
            assert worker.call("names") == list(nests.GOALS)
            results[name] = {case: worker.call("results", case=case) for case in nests.GOALS}
    for case, expected in results["flnb"].items():
        assert 0 <= nests.apart(case, expected, results["flnb, jit"][case]) < 1e-5 or case == "dropout"
    a, b, c = nests.arrays()
    np.testing.assert_allclose(results["flnb"]["a + b * c"][0], a + b * c, rtol=1e-6)


def test_results_that_are_off_are_an_error() -> None:
    x = np.ones((3, 3), np.float32)
    with pytest.raises(ValueError, match=r"gelu: a contestant's results are off by 0\.01"):
        nests.apart("gelu", [x], [x + np.float32(0.01)])
    with pytest.raises(ValueError, match="dropout"):
        nests.apart("dropout", [x], [x])


def test_the_stored_table_has_every_case_and_the_instruction_set() -> None:
    """If not, run `python -m benchmarks kernels --cpu` where torch is installed."""
    stored = {(row["case"], row["contestant"]) for row in ROWS["rows"]}
    assert stored >= {(case, who) for case in nests.GOALS for who in ("flnb", "flnb, jit", "torch")}
    assert ("a + b * c", "C") in stored
    assert "oneDNN" in ROWS["options"]["libraries"]
    page = (RESULTS / "README.md").read_text()
    assert all(f"| {line['kernel']} | {line['by']} | {line['ms']} |" in page for line in nests.summary(ROWS["rows"]))
