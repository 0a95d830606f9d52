"""Planning: groups and places in memory are those of plain searches, however many values a program has."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.dispatch import lent
from flnb.graph import planning, repetition


def place_plainly(tenants: list[planning._Tenant], order: Callable[[planning._Tenant], Any]) -> list[int]:
    """Offsets of tenants, each looked for among all that were placed before."""
    placed: list[tuple[int, planning._Tenant]] = []
    for tenant in sorted(tenants, key=order):
        offset = 0
        for begin, other in sorted(placed, key=lambda each: each[0]):
            if other.first <= tenant.last and tenant.first <= other.last:
                if begin - offset >= tenant.size:
                    break
                offset = max(offset, begin + other.size)
        placed.append((offset, tenant))
    return [next(begin for begin, other in placed if other is tenant) for tenant in tenants]


def test_places_are_the_lowest_that_are_free() -> None:
    rng = np.random.default_rng(0)
    for count in (0, 1, 2, 5, 40, 120):
        for spread in (2, 10, 100):
            first = rng.integers(0, 100, count)
            lives = zip(first, first + rng.integers(0, spread, count), 64 * rng.integers(1, 9, count), strict=True)
            tenants = [planning._Tenant([], int(a), int(b), int(size)) for a, b, size in lives]
            for order in planning.ORDERS:
                size = planning._packed(tenants, order)
                assert [each.offset for each in tenants] == place_plainly(tenants, order)
                assert size == max((each.offset + each.size for each in tenants), default=0)


def test_groups_of_a_long_recurrent_step_come_behind_those_that_they_read() -> None:
    flnb.manual_seed(0)
    cell, out = nn.Linear(6, 12), nn.Linear(4, 1)
    x = flnb.asarray(np.random.default_rng(1).standard_normal((40, 2, 2)).astype(np.float32))

    def step(x: flnb.Tensor) -> flnb.Tensor:
        for layer in (cell, out):
            layer.zero_grad()
        h = flnb.zeros((2, 4))
        loss = flnb.zeros(())
        for row in x:
            mixed = cell(flnb.concat([h, row], axis=1))
            gate = flnb.sigmoid(mixed[:, :4])
            h = gate * h + (1.0 - gate) * flnb.tanh(mixed[:, 4:8]) * mixed[:, 8:]
            loss = loss + (out(h) ** 2).mean()
        loss.backward()
        return loss

    expected = step(x).item()
    gradient = cell.weight.grad.numpy().copy()
    for fuse in (True, False):
        captured = flnb.jit(step, fuse=fuse)
        for _ in range(3):
            np.testing.assert_allclose(captured(x).item(), expected, rtol=1e-5)
        np.testing.assert_allclose(cell.weight.grad.numpy(), gradient, rtol=1e-4, atol=1e-6)
        (program,) = captured.programs
        number = {value: i for i, group in enumerate(program.groups) for value in group.members}
        for value, i in number.items():
            roots = [program.layouts[read].root for read in value.inputs]
            assert all(number.get(root, -1) <= i for root in roots), value


def chain(x: flnb.Tensor) -> flnb.Tensor:
    for _ in range(30):
        x = flnb.tanh(x * 0.5) + 1.0
    return x


def test_a_function_with_very_many_ops_warns_and_is_a_program_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["flnb.capture"], "MOST_OPS", 50)
    x, captured = flnb.ones(3), flnb.jit(chain)
    captured(x)
    with pytest.warns(RuntimeWarning, match=r"chain has 90 ops, .* more than 50 takes long: jit a part of it"):
        captured(x)
    np.testing.assert_allclose(captured(x).numpy(), chain(x).numpy(), rtol=1e-5)
    assert len(captured.programs) == 1


def test_a_loop_that_records_very_many_ops_runs_them_one_by_one_and_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "MOST_OPS", 50)
    expected = chain(flnb.ones(3)).numpy()
    with flnb.use_backend("deferred"):
        np.testing.assert_allclose(chain(flnb.ones(3)).numpy(), expected, rtol=1e-5)
        with pytest.warns(RuntimeWarning, match=r"deferred recorded 91 ops .* at most 50 ops. Call flnb.sync\(\) more"):
            chain(flnb.ones(3)).numpy()
        chain(flnb.ones(3)).numpy()  # a second warning would be an error


class Doubled(nn.Module):
    """Two convolutions whose windows NumPy unrolls to scratch memory that is larger than the images."""

    def __init__(self) -> None:
        self.first, self.second = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: flnb.Tensor) -> flnb.Tensor:
        return self.second(flnb.relu(self.first(x)))


def test_scratch_memory_of_methods_shares_the_block_with_values_of_other_times() -> None:
    flnb.manual_seed(0)
    model, x = Doubled(), flnb.asarray(np.random.default_rng(0).standard_normal((4, 2, 24, 24)).astype(np.float32))

    def step(x: flnb.Tensor) -> flnb.Tensor:
        model.zero_grad()
        made = model(x).reshape((8, 576))
        loss = ((made.T @ made) ** 2).mean()
        loss.backward()
        return loss

    with flnb.use_backend("numpy"), flnb.use_memory_manager("caching"):
        expected = step(x).item()
        gradients = [parameter.grad.numpy().copy() for parameter in model.parameters()]
        captured = flnb.jit(step)
        for _ in range(3):
            captured(x)
        (program,) = captured.programs
        alone, asked = program.memory, [call.asked for call in program._calls()]
        assert not alone.scratch
        captured(x)
        assert program.memory.scratch
        assert program.memory.size < alone.size + max(asked) / 2
        assert lent.here.memory is None
        for _ in range(2):
            assert captured(x).item() == pytest.approx(expected, rel=1e-5)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                np.testing.assert_allclose(parameter.grad.numpy(), gradient, rtol=1e-4, atol=1e-6)
        model.zero_grad()
        before = flnb.memory.stats()["allocated"] - program.memory.size - program.scratch_bytes
        with flnb.record() as run:
            captured(x)
        assert run.memory.peak.allocated - before == pytest.approx(program.peak, rel=0.02)
