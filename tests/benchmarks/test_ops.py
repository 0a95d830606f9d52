"""`python -m benchmarks ops`: every op runs with its gradients, only what agrees is timed, the table, its summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks import ops, report

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("size", ops.SIZES)
@pytest.mark.parametrize("op", ops.INPUTS)
def test_every_op_has_a_gradient_for_each_input(op: str, size: str) -> None:
    result, *gradients = ops.contestants(op, size)[0].once()
    assert np.isfinite(result).all()
    assert [g.shape for g in gradients] == [ops.SIZES[size][letter] for letter in ops.INPUTS[op]]


def test_what_differs_is_not_timed() -> None:
    right, wrong = ([np.full(3, value, np.float32)] for value in (1.0, 1.01))
    ops.check_agreement("exp, 8 x 8", right, right)
    with pytest.raises(AssertionError, match="exp, 8 x 8: flnb beside torch"):
        ops.check_agreement("exp, 8 x 8", wrong, right)


def test_table_and_stored_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert ops.main(["--quick", "--only", "add", "layer_norm"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("layer_norm  8 x 8 ") == printed.count("layer_norm  64 x 256 ") == 2  # both collectors
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(ops, "INPUTS", {"add": "xx"})
    ops.main(["--rounds", "1", "--seconds", "0"])
    assert [path.name for path in tmp_path.iterdir()] == ["ops.json"]


def test_summary_names_the_worst() -> None:
    rows = [
        {"op": op, "size": "8 x 8", "ratio": ratio, "forward ratio": 1.0} for op, ratio in (("add", 0.5), ("max", 2.0))
    ]
    assert ops.summary(rows) == (
        "geometric mean 1.000 (at most 0.9), of forward alone 1.000; worst 2.0 (at most 1.75): max, 8 x 8"
    )
