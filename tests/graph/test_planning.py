"""Planning: groups and places in memory are those of plain searches, however many values a program has."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import flnb
from flnb import nn
from flnb.graph import planning, repetition


def place_plainly(tenants: list[planning._Tenant]) -> list[int]:
    """Offsets of tenants, each looked for among all that were placed before."""
    placed: list[tuple[int, planning._Tenant]] = []
    for tenant in sorted(tenants, key=lambda each: -each.size):
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
            size = planning._packed(tenants)
            assert [each.offset for each in tenants] == place_plainly(tenants)
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
