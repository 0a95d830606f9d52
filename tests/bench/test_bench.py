"""`flnb bench` as its user sees it, and what flnb's own contestant computes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

import flnb
from flnb import cli
from flnb.bench.command import TABLE3, bench
from flnb.bench.contestant import Contestant, drop_nothing, resident
from flnb.bench.training import Training
from flnb.dispatch import state

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("numpy_session")  # a contestant sets the session's backend


def test_a_model_is_trained_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["bench", "mlp", "--size", "small", "--backend", "numpy", "--backend", "numpy", "--rounds", "1"]
    assert cli.main([*line, "--seconds", "0.01"]) == 0
    shown = capsys.readouterr()
    head, *rows = shown.out.splitlines()
    assert re.split(" {2,}", head) == [
        "model", "backend", "s / 100", "without optimizer", "tensors, MB", "process, MB", "allocations", "over numpy",
        "most time in",
    ]  # fmt: skip
    assert len(rows) == 2
    assert all(row.startswith("mlp    numpy") for row in rows)
    assert {"linear", "matmul"} & set(re.findall(r"(\w+) \d+%", rows[0]))  # the slowest ops
    assert re.search(r"mlp on numpy: \d+\.\d+ s / 100 iterations", shown.err)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mpl"], ["no model 'mpl'", "mlp"]),
        (["mlp", "--backend", "abacus"], ["unknown backend 'abacus'", "known: ", "numpy"]),
        (["mlp", "--rounds", "0"], ["must be 1 or more, got rounds=0 and threads=1"]),
    ],
)
def test_what_there_is_not_is_named(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    for word in words:
        assert word in error


def test_a_model_that_cannot_be_trained_is_an_error_of_its_worker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flnb.bench.command.TRAINING", "flnb.bench.training:Nothing")
    assert cli.main(["bench", "mlp"]) == 1
    said = f"mlp on {state.current().backend.name}: 'flnb.bench.training:Nothing' failed: AttributeError"
    assert said in capsys.readouterr().err


def test_a_scale_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="got 'huge'"):
        next(bench(["mlp"], scale="huge"))


def test_the_default_is_table_3() -> None:
    assert len(TABLE3) == 6


def one(tmp_path: Path, model: str = "mlp") -> Training:
    return Training(model, "small", "numpy", str(tmp_path / "weights.npz"))


def test_all_begin_with_the_weights_of_the_first(tmp_path: Path) -> None:
    first = one(tmp_path)
    flnb.manual_seed(5)
    second = one(tmp_path)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        np.testing.assert_array_equal(a.data.numpy(), b.data.numpy())


def test_iterations_change_the_parameters_only_with_the_optimizer(tmp_path: Path) -> None:
    training = one(tmp_path)
    before = training.model.parameters()[0].data.numpy().copy()
    training.run(2, update=False)
    np.testing.assert_array_equal(training.model.parameters()[0].data.numpy(), before)
    seconds = training.run(1, update=True)
    assert (training.model.parameters()[0].data.numpy() != before).any()
    assert seconds.keys() == {"wall", "processor"}


def test_the_check_is_in_double_without_dropout_and_leaves_no_trace(tmp_path: Path) -> None:
    """Twice the same, although the model drops out; afterwards new models are float32 again."""
    training = one(tmp_path, "alexnet")
    losses = [training.check(str(tmp_path / f"{i}.npz")) for i in range(2)]
    assert losses[0] == losses[1]
    with np.load(tmp_path / "0.npz") as first, np.load(tmp_path / "1.npz") as second:
        assert len(first) == len(training.model.parameters())
        for a, b, parameter in zip(first.values(), second.values(), training.model.parameters(), strict=True):
            assert a.dtype == np.float64
            assert a.shape == parameter.shape
            np.testing.assert_array_equal(a, b)
    assert flnb.default_dtype().name == "float32"


def test_memory_and_costs_are_counted(tmp_path: Path) -> None:
    training = one(tmp_path)
    memory = training.memory()
    parameters = sum(4 * p.size for p in training.model.parameters())
    assert memory["live"] > parameters
    assert memory["allocations"] > 0
    assert memory["allocations"] == training.counted()["allocations"]
    assert (memory["grown"] is None) == (resident() is None)
    names = [name for name, _ in training.costliest(2)]
    assert len(names) == 2
    assert all(0.0 < share < 1.0 for _, share in training.costliest(2))


def test_rates_of_dropout_are_set_to_nothing() -> None:
    layer = flnb.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5)
    norm = flnb.nn.Normalize(p=2.0)
    drop_nothing([layer.dropout, layer.self_attn, norm], flnb.nn.Dropout)
    assert (layer.dropout.p, layer.self_attn.dropout, norm.p) == (0.0, 0.0, 2.0)


@pytest.mark.parametrize("name", ["in_double", "counted"])
def test_what_a_contestant_must_write(name: str) -> None:
    with pytest.raises(NotImplementedError):
        getattr(Contestant(), name)()
    with pytest.raises(NotImplementedError):
        Contestant().iteration(update=True)


def test_only_jit_may_follow_a_backends_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"got backend 'cpu\+deferred', expected the name of a backend, or NAME\+jit"):
        Training("mlp", "small", "cpu+deferred", str(tmp_path / "weights.npz"))
