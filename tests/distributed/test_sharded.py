"""`Sharded` gives the bits of `DataParallel`, takes the memory that arithmetic says, loads on any number of ranks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
from flnb import distributed, nn, optim
from flnb.dispatch.memory import drain
from flnb.dispatch.state import CATEGORIES

from .training import Net, sharded_training

if TYPE_CHECKING:
    from pathlib import Path

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: optim.SGD(p, lr=1e-2, momentum=0.9),
    "adam": lambda p: optim.Adam(p, lr=1e-2),
    "adamw": lambda p: optim.AdamW(p, lr=1e-2),
}


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_stage_gives_the_bits_of_data_parallel(ranks: int, dtype: str, name: str) -> None:
    kinds: list[dict[str, Any]] = [{}, {"kind": "unused", "bucket": 300}, {"kind": "accumulated", "bucket": None}]
    for options in kinds:
        expected, *others = (
            distributed.run_threads(ranks, partial(sharded_training, stage, OPTIMIZERS[name], dtype, **options))
            for stage in range(4)
        )
        for stage, found in enumerate(others, start=1):
            for state in found:
                for key, value in expected[0].items():
                    np.testing.assert_array_equal(state[key], value, err_msg=f"stage {stage}, {key}, {options}")


@pytest.mark.parametrize("tape", ["linked", "arena", "pruning", "prefused"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_tape(tape: str, stage: int) -> None:
    expected, found = (
        distributed.run_threads(2, partial(sharded_training, s, OPTIMIZERS["adam"], "float64", tape=tape))[0]
        for s in (0, stage)
    )
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)


def test_training_changes_the_parameters() -> None:
    (found, *_) = distributed.run_threads(2, lambda: sharded_training(3, OPTIMIZERS["adam"], "float64"))
    assert abs(found["first"] - Net().first.detach().numpy()).max() > 1e-2
    np.testing.assert_array_equal(found["unused"], Net().unused.detach().numpy())


class Blocks(nn.Module):
    """Linear layers of one width, called one after the other."""

    def __init__(self, count: int, width: int) -> None:
        self.layers = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(count)])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = flnb.tanh(layer(x))
        return x


COUNT, WIDTH = 4, 160
WEIGHT = WIDTH * WIDTH * 4
WHOLE, HALF = COUNT * WEIGHT, COUNT * WEIGHT // 2
ADAM = 2 * HALF  # two averages
BYTES = {
    1: {"parameter": WHOLE, "optimizer_state": ADAM, "gradient": WHOLE},
    2: {"parameter": WHOLE, "optimizer_state": ADAM, "gradient": HALF},
    3: {"parameter": HALF, "optimizer_state": ADAM, "gradient": HALF},
}
"""Of each stage, what one of two ranks stores between steps, by Rajbhandari et al., 2020, figure 1."""


@pytest.mark.parametrize("stage", BYTES)
def test_memory_between_steps_is_as_predicted(stage: int) -> None:
    def work() -> dict[str, int]:
        with flnb.use_memory_manager("caching") as manager:
            module = Blocks(COUNT, WIDTH)
            net = distributed.Sharded(module, optim.Adam(module.parameters(), lr=1e-3), stage=stage, bucket=None)
            for _ in range(2):
                net.optimizer.zero_grad()
                (net(flnb.ones((2, WIDTH))) ** 2).sum().backward()
                net.optimizer.step()
            drain()
            found = dict.fromkeys(BYTES[1], 0)
            for block in manager.ledger.live.values():
                name = CATEGORIES[block.category]
                if name in found:
                    found[name] += block.requested
            net.close()
            return found

    assert distributed.run_threads(2, work) == [BYTES[stage]] * 2


def stepped(model: Any, stepping: Any, steps: int) -> None:
    """Train on the same batches whatever the number of ranks: their average gradient is that of one process."""
    for row in np.random.default_rng(3).normal(size=(steps, 8, 6)):
        stepping.zero_grad()
        (model(flnb.asarray(row), rare=True) ** 2).sum().backward()
        stepping.step()


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("before", [4, 2])
def test_checkpoints_load_on_another_number_of_ranks(stage: int, before: int, tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"

    def saving() -> None:
        net = Net()  # 36, 36, 6 and 4 elements: of 6 on 4 ranks the last has none
        model = distributed.Sharded(net, optim.Adam(net.parameters(), lr=1e-2), stage=stage)
        stepped(model, model.optimizer, 3)
        distributed.save_checkpoint(path, model=model, optimizer=model.optimizer)
        model.close()

    def loading() -> tuple[Any, Any, Any]:
        net = Net()
        model = distributed.Sharded(net, optim.Adam(net.parameters()), stage=stage)
        nn.load_checkpoint(path, random=False, model=model, optimizer=model.optimizer)
        states = model.state_dict(), model.optimizer.state_dict()
        stepped(model, model.optimizer, 3)
        return *states, model.state_dict()

    distributed.run_threads(before, saving)
    alone = Net()
    optimizer = optim.Adam(alone.parameters())
    nn.load_checkpoint(path, random=False, model=alone, optimizer=optimizer)
    module_state, state = alone.state_dict(), optimizer.state_dict()
    stepped(alone, optimizer, 3)
    for ranks in (1, 2, 3, 4):
        for found, optimizer_state, later in distributed.run_threads(ranks, loading):
            for key, value in module_state.items():
                np.testing.assert_array_equal(found[key].numpy(), value.numpy())
                np.testing.assert_allclose(later[key].numpy(), alone.state_dict()[key].numpy(), rtol=0, atol=1e-12)
            assert optimizer_state["counts"] == state["counts"]
            assert optimizer_state["settings"]["lr"] == 1e-2
            assert optimizer_state["state"].keys() == state["state"].keys()
            for key, value in state["state"].items():
                np.testing.assert_array_equal(optimizer_state["state"][key].numpy(), value.numpy())


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    other = nn.Linear(2, 2)
    nn.save_checkpoint(tmp_path / "other", model=other, optimizer=optim.Adam(other.parameters()))

    def work() -> None:
        net = nn.Linear(3, 2)
        model = distributed.Sharded(net, optim.Adam(net.parameters()), stage=3)
        before = model.state_dict()
        with pytest.raises(ValueError, match=r"mis-shaped: weight: got \(2, 2\) float32, expected \(2, 3\) float32"):
            nn.load_checkpoint(tmp_path / "other", model=model, optimizer=model.optimizer)
        np.testing.assert_array_equal(model.state_dict()["weight"].numpy(), before["weight"].numpy())

    distributed.run_threads(2, work)


def test_a_checkpoint_that_cannot_be_written_is_an_error_on_every_rank(tmp_path: Path) -> None:
    def work() -> str:
        try:
            distributed.save_checkpoint(tmp_path / "nowhere" / "last", model=nn.Linear(2, 2))
        except (OSError, RuntimeError) as error:
            return type(error).__name__
        return ""

    assert distributed.run_threads(3, work) == ["FileNotFoundError", "RuntimeError", "RuntimeError"]


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("p", [1.0, 2.0, float("inf")])
def test_clipping_counts_all_parts(stage: int, p: float) -> None:
    alone = Net()
    (alone(flnb.asarray(np.ones((8, 6)))) ** 2).sum().backward()
    expected = optim.clip_grad_norm(alone.parameters(), 0.5, p)

    def work() -> tuple[float, dict[str, Any]]:
        net = Net()
        model = distributed.Sharded(net, optim.SGD(net.parameters(), lr=1.0), stage=stage)
        (model(flnb.asarray(np.ones((8, 6)))) ** 2).sum().backward()
        norm = optim.clip_grad_norm(net.parameters(), 0.5, p)
        model.optimizer.step()
        return norm, model.state_dict()

    assert expected > 0.5
    optim.SGD(alone.parameters(), lr=1.0).step()
    for norm, state in distributed.run_threads(4, work):
        np.testing.assert_allclose(norm, expected, rtol=1e-14)
        for key, value in alone.state_dict().items():
            np.testing.assert_allclose(state[key].numpy(), value.numpy(), rtol=0, atol=1e-14)


def test_gradients_that_are_not_finite_are_an_error_on_all_ranks() -> None:
    def work() -> str:
        net = nn.Linear(2, 1, bias=False)
        model = distributed.Sharded(net, optim.Adam, stage=2)
        model(flnb.asarray([[1.0, float("inf")]])).sum().backward()  # rank 1 has the second element
        with pytest.raises(FloatingPointError) as caught:
            optim.clip_grad_norm([flnb.Variable([1.0]), *net.parameters()], 1.0, error_if_nonfinite=True)
        return str(caught.value)

    one, other = distributed.run_threads(2, work)
    assert one.startswith("flnb: clip_grad_norm: the norm of the gradients is inf; look")
    assert other.startswith(
        "flnb: clip_grad_norm: the norm of the gradients is inf, first that of gradient 0, of shape (1,)"
    )


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_loss_scaler_skips_a_step_on_all_ranks(stage: int) -> None:
    def work() -> tuple[bool, bool, list[float]]:
        net = nn.Linear(3, 1, bias=False).half()
        net.load_state_dict({"weight": flnb.ones((1, 3))})
        model = distributed.Sharded(net, optim.SGD(net.parameters(), lr=1.0), stage=stage)
        scaler = optim.LossScaler(model.optimizer, scale=4.0)
        went = []
        for last in (float("inf"), 2.0):  # the element of the last rank overflows
            model.optimizer.zero_grad()
            scaler.scaled(model(flnb.asarray([[1.0, 0.0, last]], dtype="float16")).sum()).backward()
            went.append(scaler.step())
        return went[0], went[1], model.state_dict()["weight"].tolist()[0]

    assert distributed.run_threads(3, work) == [(False, True, [0.0, 1.0, -1.0])] * 3


def test_together_and_an_optimizer_that_has_taken_steps() -> None:
    def train(stage: int) -> Any:
        net = Net()
        optimizer = optim.Together(
            optim.AdamW([net.first, net.second], lr=1e-2), optim.SGD([net.rare, net.unused], lr=1e-2, momentum=0.9)
        )
        stepped(net, optimizer, 2)
        model: Any = distributed.Sharded(net, optimizer, stage=stage) if stage else net
        stepped(model, model.optimizer if stage else optimizer, 2)
        state = (model.optimizer if stage else optimizer).state_dict()
        return model.state_dict(), [part.steps for part in optimizer.parts()], state["0"]["state"]["0.mean"]

    expected, steps, mean = train(0)
    for stage in (1, 2, 3):
        for found, taken, average in distributed.run_threads(2, train, stage):
            assert taken == steps == [4, 4]
            np.testing.assert_allclose(average.numpy(), mean.numpy(), rtol=0, atol=1e-14)
            for key, value in expected.items():
                np.testing.assert_allclose(found[key].numpy(), value.numpy(), rtol=0, atol=1e-12)


def test_what_sharded_refuses() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="got stage=4, expected 1, 2 or 3"):
        distributed.Sharded(net, optim.Adam(net.parameters()), stage=4)
    with pytest.raises(TypeError, match="Novograd stores"):
        distributed.Sharded(net, optim.Novograd(net.parameters(), lr=1.0))
    with pytest.raises(ValueError, match=r"a parameter of shape \(2, 2\) that the module does not train"):
        distributed.Sharded(net, optim.Adam(nn.Linear(2, 2).parameters()))


def test_parameters_that_are_away_can_be_used_inside_gathered_only(numpy_session: None) -> None:
    def work() -> Any:
        net = nn.Linear(2, 2, bias=False)
        model = distributed.Sharded(net, partial(optim.SGD, lr=1.0), stage=3)
        with pytest.raises(RuntimeError, match=r"'module.weight' \(2, 2\) are divided among ranks.*model.gathered"):
            net.weight.detach()
        with model.gathered(), pytest.raises(RuntimeError, match="cannot be replaced"):
            net.half()
        assert repr(net).startswith("Linear")
        assert repr(net.weight) == "Parameter(float32[2,2], numpy, requires_grad, divided among ranks)"
        assert repr(model).startswith("Sharded(stage=3)")
        with model.gathered():
            net.weight.data[...] = flnb.eye(2) * 3.0
        y = model(flnb.asarray([[1.0, 2.0]]))
        model.close()
        return y.tolist(), net(flnb.ones((1, 2))).tolist(), net.weight.tolist(), type(net.weight).__name__

    expected = [[3.0, 6.0]], [[3.0, 3.0]], [[3.0, 0.0], [0.0, 3.0]], "Parameter"
    assert distributed.run_threads(2, work) == [expected] * 2
