"""Losses by hand in NumPy and beside torch, with each reduction, and at the ends of their domains."""

import importlib.util
import math

import numpy as np
import pytest

import flnb
import flnb.nn as nn

RNG = np.random.default_rng(6)
X = RNG.normal(size=(4, 3)).astype(np.float32)
P, T = (RNG.uniform(0.05, 0.95, (4, 3)).astype(np.float32) for _ in range(2))
LABELS = np.array([0, 2, 1, 2])


def cross_entropy(x, labels):
    shifted = x - x.max(1, keepdims=True)
    return (np.log(np.exp(shifted).sum(1, keepdims=True)) - shifted)[np.arange(len(x)), labels]


def bce(p, t):
    return -(t * np.log(p) + (1 - t) * np.log(1 - p))


LOSSES = {
    "MSELoss": (X, T, lambda x, t: (x - t) ** 2),
    "L1Loss": (X, T, lambda x, t: abs(x - t)),
    "BCELoss": (P, T, bce),
    "BCEWithLogitsLoss": (X, T, lambda x, t: bce(1 / (1 + np.exp(-x)), t)),
    "CrossEntropyLoss": (X, LABELS, cross_entropy),
}


def test_every_loss_is_in_the_table():
    losses = {name for name in nn.__all__ if name.endswith("Loss")}
    assert losses - set(LOSSES) == {"AdaptiveSoftmaxLoss"}  # it has parameters: tests/nn/cases.py


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_by_hand(name, reduction):
    x, targets, hand = LOSSES[name]
    each = hand(x.astype(np.float64), targets)
    expected = each if reduction == "none" else getattr(each, reduction)()
    got = getattr(nn, name)(reduction)(flnb.asarray(x), flnb.asarray(targets))
    assert got.shape == np.shape(expected)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_torchs(name, reduction):
    torch = pytest.importorskip("torch", reason="torch is not installed: the comparison by hand runs above")
    arrays = LOSSES[name][:2]
    ours = [flnb.Variable(flnb.asarray(a)) if a.dtype == np.float32 else flnb.asarray(a) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=a.dtype == np.float32) for a in arrays]
    y, t = getattr(nn, name)(reduction)(*ours), getattr(torch.nn, name)(reduction=reduction)(*theirs)
    np.testing.assert_allclose(y.detach().numpy(), t.numpy(force=True), rtol=1e-5)
    weight = RNG.normal(size=y.shape).astype(np.float32)
    (y * flnb.asarray(weight)).sum().backward()
    (t * torch.as_tensor(weight)).sum().backward()
    for v, w in zip(ours, theirs, strict=True):
        if w.requires_grad:
            np.testing.assert_allclose(v.grad.numpy(), w.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "steepest"), [("float16", 65504 / 2), ("float32", 1e12), ("float64", 1e12)])
def test_a_certain_mistake_costs_a_hundred_and_has_a_finite_gradient(dtype, steepest):
    p = flnb.Variable(flnb.asarray([0.0, 1.0, 0.0, 1.0], dtype=dtype))
    losses = nn.BCELoss("none")(p, flnb.asarray([1.0, 0.0, 0.0, 1.0]))
    assert losses.detach().tolist() == [100.0, 100.0, 0.0, 0.0]
    losses.sum().backward()
    np.testing.assert_allclose(p.grad.numpy(), [-steepest, steepest, 0.0, 0.0], rtol=1e-3)


def test_logits_do_not_overflow():
    x = flnb.Variable(flnb.asarray([1e4, -1e4, 1e4]))
    losses = nn.BCEWithLogitsLoss("none")(x, flnb.asarray([0.0, 1.0, 1.0]))
    assert losses.detach().tolist() == [1e4, 1e4, 0.0]
    losses.sum().backward()
    assert x.grad.tolist() == [1.0, -1.0, 0.0]


def test_the_mean_absolute_error_is_flat_where_it_is_zero():
    x = flnb.Variable(flnb.asarray([1.0, 2.0]))
    nn.L1Loss("sum")(x, flnb.asarray([1.0, 0.0])).backward()
    assert x.grad.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("name", ["MSELoss", "L1Loss", "BCELoss", "BCEWithLogitsLoss"])
def test_targets_are_not_broadcast_and_reductions_are_named(name):
    loss, p = getattr(nn, name), flnb.asarray(P)
    with pytest.raises(ValueError, match=r"expected targets of the predictions' shape \(4, 3\), got \(4, 1\)"):
        loss()(p, p[:, :1])
    with pytest.raises(ValueError, match="reduction must be 'mean', 'sum' or 'none', got 'average'"):
        loss("average")(p, p)
    assert math.isclose(
        loss("sum")(p, flnb.ones((4, 3), dtype="int64")).item(), loss("sum")(p, flnb.ones((4, 3))).item()
    )


@pytest.mark.parametrize("wrong", [-0.5, 1.5, math.nan])
def test_what_is_no_probability_is_an_error(wrong):
    with pytest.raises(ValueError, match=r"expected probabilities in \[0, 1\], got values .*with_logits"):
        nn.BCELoss()(flnb.asarray([0.5, wrong]), flnb.asarray([1.0, 1.0]))


def test_a_loss_over_examples_without_a_target_is_an_error():
    loss = nn.AdaptiveSoftmaxLoss(nn.AdaptiveSoftmax(8, 20, [4, 10]), "none")
    x = flnb.ones((3, 8))
    assert loss(x, flnb.asarray([19, 0, 7])).shape == (3,)
    with pytest.raises(IndexError, match="targets go from 0 to 20, expected 0 to 19"):
        loss(x, flnb.asarray([20, 0, 7]))
    for targets in (flnb.asarray([0, 1]), flnb.ones(3)):
        with pytest.raises(ValueError, match=r"expected integer targets \(3,\)"):
            loss(x, targets)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_adaptive_loss_is_minus_the_log_probability_of_each_target(reduction):
    softmax = nn.AdaptiveSoftmax(8, 20, [4, 10])
    x, targets = flnb.asarray(RNG.normal(size=(6, 8)).astype(np.float32)), np.array([19, 0, 7, 3, 12, 4])
    each = -softmax(x).detach().numpy()[np.arange(6), targets]
    got = nn.AdaptiveSoftmaxLoss(softmax, reduction)(x, flnb.asarray(targets)).detach().numpy()
    np.testing.assert_allclose(got, each if reduction == "none" else getattr(each, reduction)(), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64"])
def test_fillers_need_not_fit_the_dtype_of_the_targets(dtype):
    x, labels = flnb.asarray(RNG.normal(size=(3, 3))), flnb.asarray([0, 1, 2], dtype=dtype)
    expected = pytest.approx(flnb.cross_entropy(x, labels).item())
    for filler in (-1000, 1000):
        assert flnb.cross_entropy(x, labels, ignore_index=filler).item() == expected


WEIGHT = np.array([0.5, 1.0, 3.0], np.float32)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("filler", [-100, 2])
def test_targets_that_fill_up_cost_nothing_and_are_not_counted(reduction, weight, filler):
    labels = np.array([0, filler, 1, filler, 2])
    x = flnb.Variable(RNG.normal(size=(5, 3)).astype(np.float32))
    loss = nn.CrossEntropyLoss(reduction, weight, ignore_index=filler)(x, flnb.asarray(labels))
    kept = labels != filler
    each = np.where(kept, 1.0, 0.0) * (1.0 if weight is None else weight[np.where(kept, labels, 0)])
    losses = cross_entropy(x.data.numpy().astype(np.float64), np.where(kept, labels, 0)) * each
    expected = {"mean": losses.sum() / each.sum(), "sum": losses.sum(), "none": losses}[reduction]
    np.testing.assert_allclose(loss.detach().numpy(), expected, rtol=1e-5)
    loss.sum().backward()
    assert (x.grad.numpy()[~kept] == 0).all()
    assert (x.grad.numpy()[kept] != 0).all()
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    theirs = torch.from_numpy(x.data.numpy().copy()).requires_grad_()
    of_torch = torch.nn.CrossEntropyLoss(
        None if weight is None else torch.from_numpy(weight), ignore_index=filler, reduction=reduction
    )(theirs, torch.from_numpy(labels))
    of_torch.sum().backward()
    np.testing.assert_allclose(loss.detach().numpy(), of_torch.numpy(force=True), rtol=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["unweighted", "weighted"])
def test_what_stands_at_fillers_does_not_reach_loss_or_gradients(reduction, weight):
    values, labels = RNG.normal(size=(4, 3)).astype(np.float32), flnb.asarray([0, -1, 2, -1])
    results = []
    for fill in (0.0, np.nan, np.inf):
        values[1::2] = fill
        x = flnb.Variable(values.copy())
        loss = nn.CrossEntropyLoss(reduction, weight, ignore_index=-1)(x, labels)
        loss.sum().backward()
        results.append((loss.detach().numpy(), x.grad.numpy()))
    for loss, gradient in results[1:]:
        np.testing.assert_array_equal(loss, results[0][0])
        np.testing.assert_array_equal(gradient, results[0][1])
