"""The command: what an experiment prints, keeps and answers; its figure; the table made from what was kept."""

import json
from argparse import Namespace
from dataclasses import replace

import pytest

from benchmarks import report, trained
from benchmarks.trained import lenet, resnet
from benchmarks.trained.experiment import Experiment
from benchmarks.trained.figure import learning_curve
from benchmarks.trained.summary import summarise


class Run:
    """A training whose curve is known beforehand."""

    references = {"chance": 50.0}  # noqa: RUF012
    sample = None

    class model:
        @staticmethod
        def parameters():
            return iter(())

    def __init__(self, tests, losses=(2.0, 1.0)):
        self.curve = [
            {"step": 10 * (i + 1), "seconds": 0.5, "loss": loss, "test": test}
            for i, (test, loss) in enumerate(zip(tests, losses, strict=True))
        ]

    def run(self, checkpoint, resume, tell):
        self.asked = checkpoint.name, resume
        for point in self.curve:
            tell(point)
        return self.curve


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def options(tmp_path, **changes):
    return Namespace(**{"output": str(tmp_path / "output"), "quick": False, "resume": False, "cifar": None} | changes)


@pytest.mark.parametrize(
    ("higher", "worst", "goals"), [(True, 80.0, {80.0: True, 81.0: False}), (False, 90.0, {90.0: True, 89.0: False})]
)
def test_the_worst_seed_must_reach_the_goal(higher, worst, goals, tmp_path, results, capsys):
    runs = [Run([10.0, 80.0]), Run([20.0, 90.0])]
    experiment = Experiment("toy", "A toy", "points", 0.0, lambda seed, options: runs[seed], higher=higher, seeds=2)
    for goal, met in goals.items():
        assert replace(experiment, goal=goal).run(options(tmp_path)) is met
        kept = json.loads((results / "trained-toy.json").read_text())["rows"]
        assert (kept["worst"], kept["met"], kept["goal"]) == (worst, met, goal)
        assert [each["curve"] for each in kept["seeds"]] == [run.curve for run in runs]
    assert [run.asked for run in runs] == [("toy-0.checkpoint", False), ("toy-1.checkpoint", False)]
    assert "test 80" in capsys.readouterr().out
    assert "A toy" in (tmp_path / "output" / "toy.html").read_text()


@pytest.mark.parametrize(("losses", "met"), [((2.0, 1.0), True), ((1.0, 1.0), False)])
def test_a_quick_run_wants_a_falling_loss_and_is_not_kept(losses, met, tmp_path, results):
    experiment = Experiment("toy", "A toy", "points", 99.0, lambda seed, options: Run([1.0, 2.0], losses), seeds=2)
    assert experiment.run(options(tmp_path, quick=True)) is met
    assert not results.exists()


def test_the_figure_has_both_curves_and_the_references(tmp_path, results):
    Experiment("toy", "A toy", "points", 70.0, lambda seed, options: Run([10.0, 80.0])).run(options(tmp_path))
    figure = learning_curve(json.loads((results / "trained-toy.json").read_text())["rows"])
    assert [list(trace.y) for trace in figure.data] == [[2.0, 1.0], [10.0, 80.0]]
    assert [list(trace.x) for trace in figure.data] == [[10, 20]] * 2
    texts = [annotation.text for annotation in figure.layout.annotations]
    assert texts == ["training loss, nats", "held out: points", "goal 70", "chance 50"]


def test_the_table_is_written_between_its_marks(tmp_path, results):
    Experiment("toy", "A toy", "points", 70.0, lambda seed, options: Run([10.0, 80.0])).run(options(tmp_path))
    summarise(results)
    (results / "README.md").write_text((results / "README.md").read_text().replace("A toy", "old") + "\nother text\n")
    summarise(results)
    text = (results / "README.md").read_text()
    assert "| A toy | 0 | points | 80.00 | 70 | chance 50.00 | 20 | 0 |" in text
    assert "old" not in text
    assert text.endswith("other text\n")
    assert text.count("<!-- trained: begin -->") == text.count("<!-- trained: end -->") == 1


def test_unknown_names_are_refused(capsys):
    with pytest.raises(SystemExit):
        trained.main(["lenet", "alexnet"])
    assert "no model alexnet; there are lenet, resnet, vit" in capsys.readouterr().err


def test_cifar_is_an_experiment_of_its_own(tmp_path, results, monkeypatch, capsys):
    monkeypatch.setattr(trained, "summarise", lambda: None)
    monkeypatch.setattr(
        resnet, "EXPERIMENT", replace(resnet.EXPERIMENT, prepare=lambda seed, options: Run([10.0, 39.0]))
    )
    given = ["--cifar", "somewhere", "--output", str(tmp_path)]
    assert trained.main(["resnet", *given]) == 1
    kept = json.loads((results / "trained-resnet-cifar10.json").read_text())
    assert kept["rows"]["title"] == "ResNet on CIFAR-10"
    assert "somewhere" not in str(kept)
    assert not (results / "trained-resnet.json").exists()
    with pytest.raises(SystemExit):
        trained.main(["lenet", *given])
    assert "--cifar is for resnet and vit, got lenet" in capsys.readouterr().err


def test_a_quick_run_from_the_command_line(tmp_path, results):
    assert trained.main(["lenet", "--quick", "--output", str(tmp_path)]) == 0
    assert (tmp_path / "lenet-quick.checkpoint").exists()
    assert lenet.EXPERIMENT.goal == 97.5
