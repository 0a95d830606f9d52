"""Names and dtypes of other libraries: what is asked for and not there is told in flnb's spelling."""

import re

import numpy as np
import pytest

import flnb
import flnb.nn as nn
from flnb.dispatch.spelling import SPELT

X = flnb.ones((2, 3))


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: nn.BatchNorm2d, r"'flnb.nn' has no attribute 'BatchNorm2d'; in flnb: flnb.nn.BatchNorm\("),
        (lambda: nn.BatchNrom, r"no attribute 'BatchNrom'; did you mean 'BatchNorm'\?"),
        (lambda: nn.Unheard, r"'flnb.nn' has no attribute 'Unheard'$"),
        (lambda: nn.init.xavier_uniform_, r"in flnb: flnb.nn.init.glorot_uniform\(shape\)"),
        (lambda: nn.functional, r"in flnb: the functions of flnb itself, as flnb.softmax"),
        (lambda: flnb.tensor([1.0]), r"'flnb' has no attribute 'tensor'; in flnb: flnb.asarray\(values\)"),
        (lambda: flnb.cat([X, X]), r"in flnb: flnb.concat\(tensors, axis=0\)"),
        (lambda: flnb.matmull, r"no attribute 'matmull'; did you mean 'matmul'\?"),
        (lambda: flnb.__wrapped__, r"'flnb' has no attribute '__wrapped__'$"),
        (lambda: X.view(3, 2), r"'Tensor' object has no attribute 'view'; in flnb: x.reshape\(shape\)"),
        (lambda: flnb.Variable(X).view(3, 2), r"'Variable' object has no attribute 'view'; in flnb: x.reshape"),
        (lambda: X.unsqueeze(0), r"in flnb: flnb.expand_dims\(x, axis=0\)"),
        (lambda: X.backward(), r"in flnb: those of a Variable, flnb.Variable\(x\)"),
        (lambda: X.sin(), r"'Tensor' object has no attribute 'sin'; in flnb: flnb.sin$"),
    ],
)
def test_other_spellings_are_told(ask, text):
    with pytest.raises(AttributeError, match=text):
        ask()


@pytest.mark.parametrize("name", SPELT)
def test_what_is_told_is_there_and_what_is_asked_for_is_not(name):
    for said in re.findall(r"flnb(?:\.\w+)+", SPELT[name]):
        found = flnb
        for part in said.split(".")[1:]:
            found = getattr(found, part)
    for said in re.findall(r"\bx\.(\w+)", SPELT[name]):
        assert hasattr(X, said)
    assert name == "device" or not hasattr(X, name)
    assert name == "device" or name not in dir(X)
    assert not hasattr(nn, name) or name in {"save", "load"}


def test_what_tensors_have_is_listed_and_what_they_have_not_is_not():
    assert {"reshape", "sum", "shape", "T"} <= {*dir(X)}
    assert {"backward", "grad"} <= {*dir(flnb.Variable(X))}
    assert not {"sin", "concat", "view"} & {*dir(X)}


@pytest.mark.parametrize(
    "ask",
    [
        lambda dtype: flnb.ones(3, dtype=dtype),
        lambda dtype: flnb.arange(3, dtype=dtype),
        lambda dtype: flnb.asarray([1.0], dtype=dtype),
        lambda dtype: flnb.asarray(X, dtype=dtype),
        lambda dtype: flnb.rand(3, dtype=dtype),
        lambda dtype: X.astype(dtype),
        lambda dtype: nn.Linear(2, 3).astype(dtype),
        flnb.set_default_dtype,
        flnb.finfo,
    ],
)
def test_a_dtype_that_is_none_is_told_the_known_ones(ask):
    with pytest.raises(
        TypeError, match=r"'float31' is no dtype; did you mean 'float32'\? known are bool, int8, .*float64"
    ):
        ask("float31")
    with pytest.raises(TypeError, match=r"1\.5 is no dtype; known are bool"):
        ask(1.5)


def test_dtypes_are_found_by_whatever_numpy_takes():
    for given in ("float16", np.float16, np.dtype("float16"), flnb.float16):
        assert flnb.ones(1, dtype=given).dtype == np.float16
