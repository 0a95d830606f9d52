"""MLP and LeNet: shapes, and errors that say what was expected."""

import re

import pytest

import flnb
from flnb.models import MLP, LeNet

SHAPES = {
    "vectors": (lambda: MLP((6, 4, 3)), (5, 6), (5, 3)),
    "images are flattened": (lambda: MLP((12, 4, 3), dropout=0.5), (5, 3, 2, 2), (5, 3)),
    "LeNet-5": (LeNet, (2, 1, 32, 32), (2, 10)),
    "small colour images": (
        lambda: LeNet(3, 8, 5, widths=(2, 3, 8, 6), kernel=3, padding=1),
        (2, 3, 8, 8),
        (2, 5),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    make, given, expected = SHAPES[name]
    assert make()(flnb.ones(given)).shape == expected


WRONG = {
    "features": (lambda: MLP((6, 3))(flnb.ones((5, 4))), "MLP: expected x (N, ...) of 6 features, got (5, 4)"),
    "one axis": (lambda: MLP((6, 3))(flnb.ones(6)), "MLP: expected x (N, ...) of 6 features, got (6,)"),
    "one width": (lambda: MLP((6,)), "MLP: expected two widths or more, from inputs to outputs, got (6,)"),
    "channels": (
        lambda: LeNet()(flnb.ones((2, 3, 32, 32))),
        "LeNet: expected images (N, 1, 32, 32), got (2, 3, 32, 32)",
    ),
    "extent": (
        lambda: LeNet()(flnb.ones((2, 1, 28, 28))),
        "LeNet: expected images (N, 1, 32, 32), got (2, 1, 28, 28)",
    ),
    "tiny images": (
        lambda: LeNet(image=8),
        "images of 8 x 8 are too small: nothing is left of them after",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_say_what_was_expected(name):
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
