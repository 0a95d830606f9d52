"""The casts of mixed precision: which inputs, each parameter once, never stale."""

from collections import Counter

import numpy as np

import flnb
import flnb.nn as nn
from flnb.dispatch import state
from tests.dispatch.test_autocast import FULL, HALF, ops_of


def test_float64_and_integers_are_left_alone():
    with flnb.autocast("O3"):
        assert (flnb.ones((2, 2), dtype="float64") @ flnb.ones((2, 2), dtype="float64")).dtype == np.float64
        assert (flnb.asarray([1, 2]) + 1).dtype == np.int64


def test_casts_of_scalars_and_mixed_inputs():
    x = flnb.ones((2, 2))
    with flnb.autocast():
        h = x @ x
        assert [(h * 2.0).dtype, (h + x).dtype, (h * flnb.asarray([1, 2])).dtype] == [HALF, FULL, HALF]


def test_out_is_not_cast():
    x, target = flnb.ones((2, 2)), flnb.zeros((2, 2))
    with flnb.autocast("O3"):
        flnb.add(x, x, out=target)
        x += 1.0
    assert (target.dtype, target.tolist(), x.dtype) == (FULL, [[2.0, 2.0]] * 2, FULL)


def test_a_bias_does_not_widen():
    layer = nn.Linear(3, 2)
    with flnb.autocast():
        assert layer(flnb.ones((1, 3))).dtype == HALF


def casts(run):
    return Counter(ops_of(run))["astype", "float16"]


def test_a_parameter_is_cast_once_in_a_forward():
    w, x = nn.Parameter(flnb.ones((2, 2))), flnb.ones((2, 2)).astype(HALF)
    with flnb.autocast():
        with flnb.record() as run:
            y = x @ w @ w @ w
        assert casts(run) == 1
        y.sum().backward()
        assert w.grad.tolist() == [[24.0, 24.0]] * 2
        with flnb.record() as run:  # backward has emptied the cast's node
            (x @ w).sum().backward()
        assert Counter(ops_of(run))["astype", "float16"] >= 1
        assert w.grad.tolist() == [[26.0, 26.0]] * 2


def test_a_cast_does_not_outlive_a_write():
    w, x = nn.Parameter(flnb.ones((2, 2))), flnb.ones((2, 2))
    with flnb.autocast():
        for expected in (2.0, 4.0, 6.0):
            assert (x @ w)[0, 0].item() == expected
            with flnb.no_grad():
                w += 1.0
        w.data = flnb.ones((2, 2))
        assert (x @ w)[0, 0].item() == 2.0


def test_a_cast_under_no_grad_does_not_cut_the_next_from_its_parameter():
    w, x = nn.Parameter(flnb.ones((2, 2))), flnb.ones((2, 2))
    with flnb.autocast():
        with flnb.no_grad():
            assert (x @ w)._node is None
        (x @ w).sum().backward()
    assert w.grad.tolist() == [[2.0, 2.0]] * 2


def test_casts_are_dropped_at_the_end():
    w = nn.Parameter(flnb.ones((2, 2)))
    with flnb.autocast():
        (region,) = state.current().interpreters
        w @ w
        assert len(region.casts) == 1
    assert not region.casts
