"""Layers over ranks, batch normalization and divided linear layers, against one process with the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flnb
from flnb import distributed, nn, optim

DRAW = np.random.default_rng(0)


def normalized(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """Batch normalization by NumPy."""
    axes, shape = (0, *range(2, x.ndim)), (1, -1, *(1,) * (x.ndim - 2))
    mean, variance = x.mean(axes).reshape(shape), x.var(axes).reshape(shape)
    return (x - mean) / np.sqrt(variance + eps) * weight.reshape(shape) + bias.reshape(shape)


@pytest.mark.parametrize("rows", [(4, 4), (1, 6), (0, 5), (2, 3, 1, 4)])
@pytest.mark.parametrize("dims", [(), (3, 2)])
def test_batch_norm_over_ranks_is_that_of_the_whole_batch(rows: tuple[int, ...], dims: tuple[int, ...]) -> None:
    whole = DRAW.normal(2.0, 3.0, size=(sum(rows), 5, *dims))
    cotangent = DRAW.normal(size=whole.shape)
    weight, bias = DRAW.normal(size=5), DRAW.normal(size=5)

    def compute(norm: nn.BatchNorm, x: Any, g: Any) -> list[Any]:
        norm.astype(flnb.float64)
        norm.load_state_dict({**norm.state_dict(), "weight": weight, "bias": bias})
        given = flnb.Variable(x)
        y = norm(given)
        (y * flnb.asarray(g)).sum().backward()
        found = [y.detach(), given.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]
        return [np.array(tensor.numpy()) for tensor in found]

    def work() -> list[Any]:
        begin = sum(rows[: distributed.rank()])
        part = slice(begin, begin + rows[distributed.rank()])
        return compute(distributed.SyncBatchNorm(5), whole[part], cotangent[part])

    found = distributed.run_threads(len(rows), work)
    y, g_x, g_weight, g_bias, mean, variance = compute(nn.BatchNorm(5), whole, cotangent)
    np.testing.assert_allclose(np.concatenate([f[0] for f in found]), y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(y, normalized(whole, weight, bias), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([f[1] for f in found]), g_x, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(sum(f[2] for f in found), g_weight, rtol=1e-11)
    np.testing.assert_allclose(sum(f[3] for f in found), g_bias, rtol=1e-12)
    for f in found:
        np.testing.assert_allclose(f[4], mean, rtol=1e-13)
        np.testing.assert_allclose(f[5], variance, rtol=1e-13)


def test_networks_are_converted_and_evaluated_and_trained_as_one() -> None:
    data = DRAW.normal(size=(5, 8, 3))

    def net() -> nn.Module:
        # A bias before a batch norm would get noise as its gradient, which Adam makes as large as any.
        made = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm(4), nn.Tanh(), nn.Linear(4, 1)).astype(
            flnb.float64
        )
        draw = np.random.default_rng(1)
        made.load_state_dict(
            {k: draw.normal(size=v.shape) if v.ndim > 1 else v for k, v in made.state_dict().items()}
            | {"3.bias": np.zeros(1)}
        )
        return made

    def train(parts: int) -> tuple[list[float], Any]:
        module = net()
        model: Any = module
        if parts > 1:
            model = distributed.DataParallel(distributed.SyncBatchNorm.convert(module))
        optimizer = optim.Adam(module.parameters(), lr=1e-2)
        for batch in data:
            optimizer.zero_grad()
            (model(flnb.asarray(np.split(batch, parts)[distributed.rank()])) ** 2).mean().backward()
            optimizer.step()
        module.eval()
        return module(flnb.asarray(data[0])).detach().numpy().tolist(), module[1].running_var.numpy().tolist()

    expected, variance = train(1)
    for y, running in distributed.run_threads(4, train, 4):
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(running, variance, rtol=1e-12)


def test_batch_norm_in_half_precision_and_what_it_refuses() -> None:
    def work() -> tuple[str, Any]:
        norm = distributed.SyncBatchNorm(1)
        x = flnb.asarray([[1000.0 + 2.0 * distributed.rank()]], dtype="float16")
        y = norm(x)
        with pytest.raises(ValueError, match=r"expected x \(N, 1, ...\), got \(2, 3\)"):
            norm(flnb.ones((2, 3)))
        rows = 1 if distributed.rank() == 0 else 0
        with pytest.raises(ValueError, match="more than one value per channel"):
            norm(flnb.ones((rows, 1)))
        return y.dtype.name, round(y.item(), 2)

    assert distributed.run_threads(2, work) == [("float16", -1.0), ("float16", 1.0)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("joined", [True, False])
def test_divided_linear_layers_are_one_process_ones(ranks: int, bias: bool, joined: bool) -> None:
    x, cotangent = DRAW.normal(size=(4, 5)), DRAW.normal(size=(4, 2))
    first = DRAW.normal(size=(6, 5)), DRAW.normal(size=6)
    second = DRAW.normal(size=(2, 6)), DRAW.normal(size=2)

    def work() -> list[Any]:
        rank = distributed.rank()
        up: Any = distributed.ColumnLinear(5, 6, bias=bias, join=joined).astype(flnb.float64)
        down: Any = (nn.Linear if joined else distributed.RowLinear)(6, 2, bias=bias).astype(flnb.float64)
        up.load_whole(*map(flnb.asarray, first))
        if joined:
            down.load_state_dict({"weight": second[0], **({"bias": second[1]} if bias else {})})
        else:
            down.load_whole(*map(flnb.asarray, second))
        given = flnb.Variable(x)
        y = down(flnb.tanh(up(given)))
        (y * flnb.asarray(cotangent)).sum().backward()
        part = slice(rank * 6 // ranks, (rank + 1) * 6 // ranks)
        whole_of = [part, slice(None) if joined else (slice(None), part)]
        return [
            y.detach().numpy().copy(), given.grad.numpy().copy(), up.weight.grad.numpy().copy(),
            down.weight.grad.numpy().copy(), whole_of,
            [b.grad.numpy().copy() for b in (up.bias, down.bias)] if bias else [],
        ]  # fmt: skip

    hidden = np.tanh(x @ first[0].T + (first[1] if bias else 0.0))
    y = hidden @ second[0].T + (second[1] if bias else 0.0)
    g_hidden = cotangent @ second[0] * (1.0 - hidden**2)
    for found, g_x, g_up, g_down, (part, columns), g_bias in distributed.run_threads(ranks, work):
        np.testing.assert_allclose(found, y, rtol=1e-12)
        np.testing.assert_allclose(g_x, g_hidden @ first[0], rtol=1e-12)
        np.testing.assert_allclose(g_up, (g_hidden.T @ x)[part], rtol=1e-12)
        np.testing.assert_allclose(g_down, (cotangent.T @ hidden)[columns], rtol=1e-12)
        if bias:
            np.testing.assert_allclose(g_bias[0], g_hidden.sum(0)[part], rtol=1e-12)
            np.testing.assert_allclose(g_bias[1], cotangent.sum(0), rtol=1e-12)


def test_divided_layers_begin_alike_and_are_not_made_equal() -> None:
    def work() -> Any:
        up = distributed.ColumnLinear(3, 4)
        with pytest.raises(ValueError, match="5 outputs cannot be divided among 2 ranks"):
            distributed.ColumnLinear(3, 5)
        with pytest.raises(TypeError, match=r"DataParallel: 0, ColumnLinear, has different parameters on each rank"):
            distributed.DataParallel(nn.Sequential(up, nn.Tanh()))
        return distributed.all_gather(up.weight.detach()).numpy().copy()

    one, other = distributed.run_threads(2, work)
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one[0], one[1])


def test_recordings_show_communication_on_the_tape() -> None:
    def work() -> None:
        x = flnb.Variable([1.0, 2.0])
        distributed.all_reduce(x * x).sum().backward()
        distributed.SyncBatchNorm(1)(flnb.Variable([[1.0 + distributed.rank()]])).sum().backward()

    with flnb.record() as run:
        distributed.run_threads(2, work)
    plans = run.catalog.plans.items
    nodes = {(plans[i].op, plans[i].family) for i in run.table("edge")["plan"].tolist()}
    assert {("all_reduce", "communication"), ("batch_statistics", "communication")} <= nodes
    calls = [plans[i] for i in run.table("collective")["plan"].tolist()]
    assert {plan.family for plan in calls} == {"communication"}
    assert sorted(plan.op for plan in calls) == ["all_gather"] * 2 + ["all_reduce"] * 6
