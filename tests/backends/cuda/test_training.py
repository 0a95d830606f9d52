"""Training on the emulated device: equal in every order of streams and threads, without a wait for the device."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest

import flnb
from tests.backends.cuda.schedules import NETS, differing, train

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice

WAITS = (
    "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2",
    "cuMemcpyDtoHAsync_v2", "cuMemAlloc_v2", "cuMemFree_v2", "bytes to the host",
)  # fmt: skip
"""Calls that wait for the device, or may."""
COUNTED = ("launches", "bytes to the device")


@pytest.mark.parametrize("net", NETS)
def test_every_order_gives_the_same_bits(net: str, cuda: EmulatedDevice) -> None:
    """A sample; ``python -m tests.backends.cuda.schedules`` does 20 steps in 52 orders."""
    assert differing(cuda, NETS[net], 3, [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]) == []


@pytest.mark.parametrize("net", NETS)
def test_a_step_waits_for_nothing(net: str, cuda: EmulatedDevice, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[dict[str, int]] = []
    train(NETS[net], 5, lambda i: told.append({what: cuda.count(what) for what in (*WAITS, *COUNTED)}))
    steps = [{what: b[what] - a[what] for what in a} for a, b in itertools.pairwise(told[1:])]
    for step in steps:  # after two steps of warm-up
        assert {what: step[what] for what in WAITS if step[what]} == {}
    assert len({step["launches"] for step in steps}) == 1
    with capsys.disabled():
        counts = ", ".join(f"{steps[0][what]} {what}" for what in COUNTED)
        print(f"\n{net}: a step has {counts}, and waits for nothing")


@pytest.mark.parametrize("net", NETS)
def test_training_agrees_with_numpy(net: str, cuda: EmulatedDevice) -> None:
    """Left out are dropout, which draws other numbers, and Adam, which makes much of small differences."""
    with flnb.use_backend("numpy"):
        flnb.manual_seed(0)
        state = {name: value.numpy() for name, value in NETS[net](0.0)[0].state_dict().items()}
    found = []
    for name in ("numpy", "cuda"):
        with flnb.use_backend(name):
            model, batch = NETS[net](0.0)
            model.load_state_dict({key: flnb.asarray(value) for key, value in state.items()})
            optimizer = flnb.optim.SGD(model.parameters(), lr=0.1)
            for i in range(3):
                x, y = map(flnb.asarray, batch(i))
                loss = flnb.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            found.append([x.detach().numpy() for x in (loss, *model.parameters())])
    for got, wanted in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
