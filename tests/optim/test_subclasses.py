"""Subclasses of the public optimizers: work tensors of their own, and ``descend(data, gradient, state, work)``."""

import numpy as np
import pytest

import flnb
import flnb.nn as nn
import flnb.optim as optim

KINDS = [optim.SGD, optim.NAG, optim.Adam, optim.AdamW, optim.AMSgrad]


def trained(kind):
    weight = nn.Parameter(flnb.asarray([3.0, -1.0]))
    optimizer = kind([weight], lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        flnb.sum(weight * weight).backward()
        optimizer.step()
    return weight.data.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_work_tensor_is_the_subclass_s_own(kind):
    class Checked(kind):
        scratch = 2

        def update(self, data, gradient, state, scratch):
            flnb.multiply(data, 1.0, out=scratch[1])
            before = data.tolist()
            super().update(data, gradient, state, scratch)
            assert scratch[1].tolist() == before != data.tolist()

    assert trained(Checked) == trained(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_descend_gets_one_work_tensor(kind):
    class Doubled(kind):
        def descend(self, data, gradient, state, work):
            assert isinstance(work, flnb.Tensor)
            super().descend(data, gradient, state, work=work)

    assert trained(Doubled) == trained(kind)


@pytest.mark.parametrize("kind", [optim.RMSProp, optim.Adadelta, optim.Adagrad])
def test_more_work_tensors_than_the_algorithm_needs(kind):
    more = type("More", (kind,), {"scratch": 3})
    np.testing.assert_array_equal(trained(more), trained(kind))
