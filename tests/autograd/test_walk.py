"""Errors of a walk name the op and the user's line."""

import numpy as np
import pytest

import flnb
from flnb.dispatch.table import OPS
from flnb.interface.tape import PLAN


def test_errors_of_a_walk_name_the_users_line():
    x = flnb.Variable([1.0, 2.0])
    y = flnb.tanh(x)  # made here
    with flnb.no_grad():
        y += 1.0
    with pytest.raises(RuntimeError, match=r"written in place(.|\n)*test_walk\.py:\d+: y = flnb\.tanh\(x\)  # made"):
        y.sum().backward()
    z = (x * x).sum()  # freed here
    z.backward()
    with pytest.raises(RuntimeError, match=r"freed(.|\n)*of float32\[2\], giving float32\[\], made at .*# freed here"):
        z.backward()
    w = x * 3.0  # not a number
    with pytest.raises(RuntimeError, match=r"starts from one number(.|\n)*test_walk\.py:\d+: w = x \* 3\.0"):
        w.backward()


@pytest.mark.parametrize(
    ("pull", "error", "says"),
    [
        (
            lambda g, plan, x, y: g.sum(),
            ValueError,
            r"gradient of 'cos' for argument 0 is float32\[\], expected float32",
        ),
        (lambda g, plan, x, y: g @ g @ g, ValueError, "matmul"),
        (lambda g, plan, x, y: 1 / 0, ZeroDivisionError, "division by zero"),
    ],
)
def test_a_wrong_pull_is_told_with_its_op_and_the_users_line(monkeypatch, pull, error, says):
    (plan,) = [p for p in OPS["cos"].plans.values() if p.spec.shape == (2, 3)] or [
        flnb.cos(flnb.Variable(np.ones((2, 3), np.float32)))._node[PLAN]
    ]
    monkeypatch.setattr(plan, "pulls", (pull,))
    monkeypatch.setattr(plan, "compiled", False)
    x = flnb.Variable(np.ones((2, 3), np.float32))
    y = flnb.cos(x)  # the line
    with pytest.raises(error, match=says) as caught:
        y.sum().backward()
    (note,) = [n for n in caught.value.__notes__ if n.startswith("in backward")]
    assert "with a cotangent float32[2,3], through 'cos' of float32[2,3]" in note
    assert note.endswith("y = flnb.cos(x)  # the line")
