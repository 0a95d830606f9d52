"""The loop of the trained models: its curve, and that an interrupted run goes on as if it had not been."""

import numpy as np
import pytest

import flnb
from benchmarks.trained.training import Training
from flnb import nn
from flnb.data import BatchDataset, ShuffleDataset, TensorDataset
from flnb.models.recipe import classification
from flnb.optim import Adam, Cosine, Schedule


def training(loss=classification):
    """Two blobs told apart; dropout draws from the session's generator, an epoch has four and a half batches."""
    rng = np.random.default_rng(0)
    labels = np.arange(36) % 2
    points = TensorDataset((rng.standard_normal((36, 4)) + 4 * labels[:, None]).astype(np.float32), labels)
    flnb.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = Adam(model.parameters(), lr=0.05)
    x, y = points.tensors
    return Training(
        model=model,
        optimizer=optimizer,
        schedule=Schedule(optimizer, Cosine(30)),
        batches=BatchDataset(ShuffleDataset(points, seed=1), 8),
        loss=loss,
        test=lambda trained: float(classification(trained, x, y)),
        steps=30,
        every=7,
    )


def without_seconds(curve):
    return [{name: value for name, value in point.items() if name != "seconds"} for point in curve]


def test_the_curve_has_a_point_every_so_many_steps_and_at_the_end():
    run = training()
    curve = run.run()
    assert [point["step"] for point in curve] == [7, 14, 21, 28, 30]
    assert curve[-1]["test"] < curve[0]["test"] < np.log(2)
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert [point["seconds"] for point in curve] == sorted(point["seconds"] for point in curve)
    assert run.model.training


@pytest.mark.parametrize("stop", [8, 14, 17, 29])
def test_an_interrupted_run_that_is_resumed_gives_the_same_curve(stop, tmp_path):
    whole = training()
    whole.run()
    calls = 0

    def interrupted(model, x, y):
        nonlocal calls
        calls += 1
        if calls > stop:
            raise KeyboardInterrupt
        return classification(model, x, y)

    with pytest.raises(KeyboardInterrupt):
        training(interrupted).run(tmp_path / "last")
    again = training()
    flnb.manual_seed(99)  # the checkpoint brings the generator's state
    again.run(tmp_path / "last", resume=True)
    assert without_seconds(again.curve) == without_seconds(whole.curve)
    for name, tensor in whole.model.state_dict().items():
        np.testing.assert_array_equal(again.model.state_dict()[name].numpy(), tensor.numpy())


def test_a_finished_run_is_not_trained_further(tmp_path):
    run = training()
    curve = run.run(tmp_path / "last")
    again = training()
    assert again.run(tmp_path / "last", resume=True) == curve
    assert again.optimizer.steps == 30


def test_a_recording_of_a_run_has_its_steps():
    run = training()
    run.steps = 9
    with flnb.record() as recording:
        run.run()
    assert len(recording.steps["index"]) == 9
    assert "matmul" in {row.key[0] for row in recording.ops.by("op").rows}


def test_a_loss_that_is_not_finite_ends_the_run():
    run = training(lambda model, x, y: classification(model, x, y) * float("nan"))
    with pytest.raises(FloatingPointError, match="the loss is NaN"):
        run.run()
