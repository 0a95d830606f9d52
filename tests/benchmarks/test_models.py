"""`python -m benchmarks models`: what may be compared, the ratios of its table, and flnb without torch."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from benchmarks import models, report
from benchmarks.peers.agreement import disagreement
from flnb.bench.measure import Measured
from flnb.bench.training import Training
from flnb.models import names as known

if TYPE_CHECKING:
    from pathlib import Path


def saved(path: Path, *gradients: Any) -> str:
    np.savez(path, *map(np.asarray, gradients))
    return str(path)


@pytest.fixture
def reference(tmp_path: Path) -> tuple[float, str]:
    return 2.0, saved(tmp_path / "reference.npz", [1.0, -4.0], [[1e-9]])


@pytest.mark.parametrize(
    ("loss", "gradients", "said"),
    [
        (2.0, ([1.0, -4.0], [[1e-9]]), "loss 0e+00, gradients 0e+00"),
        (2.0 + 2e-12, ([1.0, -4.0 + 4e-9], [[1e-9]]), "loss 1e-12, gradients 1e-09"),
        (2.0, ([1.0, -4.0], [[2e-9]]), "loss 0e+00, gradients 2e-07"),  # next to nothing: against 0.001 of the largest
    ],
)
def test_what_agrees(tmp_path: Path, reference: Any, loss: float, gradients: Any, said: str) -> None:
    assert disagreement("x", reference, (loss, saved(tmp_path / "x.npz", *gradients))) == said


@pytest.mark.parametrize(
    ("loss", "gradients", "said"),
    [
        (2.1, ([1.0, -4.0], [[1e-9]]), "mlp in torch: loss 2.1 instead of 2 .relative 5.0e-02"),
        (2.0, ([1.0, 4.0], [[1e-9]]), "gradients off by 2.0e.00 .* at parameter 0"),
        (2.0, ([1.0, -4.0], [[1.0]]), "at parameter 1; only what agrees is timed"),
        (2.0, ([1.0, np.nan], [[1e-9]]), "gradients off by nan"),
        (np.nan, ([1.0, -4.0], [[1e-9]]), "loss nan"),
        (2.0, ([1.0, -4.0],), "expected 2 gradients, got 1"),
        (2.0, ([1.0, -4.0], [1e-9]), r"the gradient of parameter 1 is \(1,\), expected \(1, 1\)"),
    ],
)
def test_what_does_not_agree_is_not_timed(
    tmp_path: Path, reference: Any, loss: float, gradients: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        disagreement("mlp in torch", reference, (loss, saved(tmp_path / "x.npz", *gradients)))


def options(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"size": "small", "backend": ["numpy"], "peers": False, **changes})


def names(monkeypatch: pytest.MonkeyPatch, model: str, installed: set[str], **changes: Any) -> list[str]:
    monkeypatch.setattr(models, "find_spec", lambda name: name if name in installed else None)
    return [entry.name for entry in models.entries(model, options(**changes), "weights.npz")]


def test_who_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(monkeypatch, "mlp", set(), backend=["a", "b"]) == ["flnb a", "flnb b"]
    assert names(monkeypatch, "mlp", {"torch", "jax"}) == ["flnb numpy", "torch", "torch, malloc tuned"]
    peers = names(monkeypatch, "lenet", {"torch", "jax"}, peers=True)
    assert peers[3:] == ["torch channels_last", "torch compile", "torch channels_last, malloc tuned", "jax jit"]
    assert "torch channels_last" not in names(monkeypatch, "mlp", {"torch"}, peers=True)  # no images


def test_ratios_are_to_both_torches() -> None:
    found = {
        "flnb numpy": Measured([2.0, 12.0], [], 1.0),
        "torch": Measured([1.0, 4.0], [], 1.0),
        "torch, malloc tuned": Measured([0.5, 3.0], [], 1.0),
    }
    tuned = ["4.00", "4.00 .. 4.00"]  # the best that torch can do here
    assert list(models.over(found, "flnb numpy").values()) == ["2.50", "2.00 .. 3.00", *tuned, *tuned]
    assert list(models.over(found, "torch").values())[:2] == ["1.00", "1.00 .. 1.00"]
    alone = {"flnb numpy": found["flnb numpy"]}
    assert set(models.over(alone, "flnb numpy").values()) == {""}


class Disagrees(Training):
    """A peer that computes another loss than flnb."""

    def check(self, path: str) -> float:
        return 1.0 + super().check(path)


def test_a_peer_that_does_not_agree_is_left_out_but_torch_itself_must(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def entries(name: str, options: Any, weights: str) -> list[models.Entry]:
        given = {"model": name, "scale": "small", "weights": weights, "backend": "numpy"}
        other = models.Entry("torch compile", f"{__name__}:Disagrees", given, optional=optional)
        return [models.Entry("flnb numpy", models.TRAINING, given), other]

    monkeypatch.setattr(models, "entries", entries)
    optional = True
    measured = options(threads=1, rounds=1, seconds=0.01, clock="wall")
    assert [line["framework"] for line in models.compared("mlp", measured)] == ["flnb numpy"]
    assert "mlp: left out mlp in torch compile: loss " in capsys.readouterr().err
    optional = False
    with pytest.raises(ValueError, match="only what agrees is timed"):
        models.compared("mlp", measured)


def test_an_unknown_model_is_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"no model 'resnet51'; did you mean .*resnet50"):
        models.main(["mlp", "resnet51"])
    assert capsys.readouterr().err == ""


def test_without_torch_flnb_is_measured_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert models.main(["mlp", "--rounds", "2", "--seconds", "0.01"]) == 0
    said = capsys.readouterr().out
    assert "torch is not installed here: flnb is measured alone" in said
    assert "flnb numpy" in said
    assert "threads of each: 1; share of the time in which they had a processor: " in said
    kept = json.loads((tmp_path / "models.json").read_text())
    assert kept["machine"]["versions"]["numpy"] == np.__version__
    assert [len(row["measured"]["trained"]) for row in kept["rows"]] == [2]
    assert kept["rows"][0]["over torch"] == ""


def test_the_page_has_a_bar_for_every_model_and_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    rows = [
        {"model": model, "framework": who, "over torch": "1.00", "measured": {"trained": [0.01, 0.02, 0.04]}}
        for who in ("flnb numpy", "torch")
        for model in ("mlp", "lenet")
    ]
    figure = models.bars(rows)
    assert [(bar.name, bar.x) for bar in figure.data] == [(who, ("mlp", "lenet")) for who in ("flnb numpy", "torch")]
    assert figure.data[0].y == (2.0, 2.0)
    assert figure.data[0].error_y.array == (2.0, 2.0)
    assert figure.data[0].error_y.arrayminus == (1.0, 1.0)
    page = report.page("models", figure, {})
    assert "flnb numpy" in page.read_text()
    assert not report.page("other", figure, {"quick": True}).exists()


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("name", known())
def test_peers_agree(name: str, framework: str, tmp_path: Path, numpy_session: None) -> None:
    """Where torch or JAX is installed: every model that it has, in float64, on the weights that flnb drew."""
    pytest.importorskip(framework)
    peer = import_module(f"benchmarks.peers.{framework}_models").MODELS
    if name not in peer:
        pytest.skip(f"no {name} in {framework}")
    training = import_module(f"benchmarks.peers.{framework}_training")
    weights = str(tmp_path / "weights.npz")
    results = []
    for kind, given in (
        (Training, ("numpy", weights)),
        (getattr(training, f"{framework.title()}Training"), (weights,)),
    ):
        path = str(tmp_path / f"{kind.__name__}.npz")
        results.append((kind(name, "small", *given).check(path), path))
    disagreement(name, *results)
