"""`Sharded` gives the bits of `DataParallel`, takes the memory that arithmetic says, loads on any number of ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import distributed, nn, optim
from flnb.dispatch.memory import drain
from flnb.dispatch.state import CATEGORIES

from .training import Net, sharded_training

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
ADAM = 2 * HALF + WEIGHT // 2  # two averages, and one work tensor for all parts
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
