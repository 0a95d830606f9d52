"""What functions of pictures refuse: every error names the function, what it got and what it takes."""

import re

import numpy as np
import pytest

import flnb
from flnb import vision

X = flnb.ones((2, 2))
BYTES = flnb.ones((2, 2), dtype=flnb.uint8)

REFUSED = [
    (
        lambda: vision.resize(flnb.ones(3), (2, 2)),
        "vision.resize: expected pictures (..., H, W) with one pixel or more, got float32[3]",
    ),
    (lambda: vision.shear(flnb.ones((2, 0)), (1, 0)), "vision.shear: expected pictures (..., H, W)"),
    (lambda: vision.rotate(X, 3, method="cubic"), "vision.rotate: method must be 'linear' or 'nearest', got 'cubic'"),
    *(
        (
            lambda size=size: vision.resize(X, size),
            f"vision.resize: expected a size (rows, columns), whole numbers of 1 or more, got {size!r}",
        )
        for size in ((2, 0), 3, (1.5, 2), (2,), "ab", None, (True, "b"))
    ),
    (lambda: vision.affine(X, np.eye(2), size=5), "vision.affine: expected a size (rows, columns), whole numbers"),
    (lambda: vision.affine(X, np.eye(2), size=(-1, 3)), "whole numbers of 1 or more, got (-1, 3)"),
    (
        lambda: vision.affine(X, np.eye(3)),
        "vision.affine: expected matrix to be finite numbers of shape (2, 2), in the order (row, column), got "
        "ndarray float64",
    ),
    (
        lambda: vision.affine(X, flnb.eye(3)),
        "vision.affine: expected matrix to be finite numbers of shape (2, 2), in the order (row, column), got "
        "float32[3,3]",
    ),
    (
        lambda: vision.translate(X, 3),
        "vision.translate: expected shift to be finite numbers of shape (2,), in the order (row, column), got 3",
    ),
    (
        lambda: vision.translate(X, (0, np.nan)),
        "vision.translate: expected shift to be finite numbers of shape (2,), in the order (row, column), got",
    ),
    (lambda: vision.rotate(X, np.inf), "vision.rotate: expected degrees to be a finite number, got inf"),
    (lambda: vision.rotate(X, "left"), "vision.rotate: expected degrees to be a finite number, got 'left'"),
    (lambda: vision.shear(X, 1.0), "vision.shear: expected factors to be two numbers (down, right), got 1.0"),
    (lambda: vision.shear(X, (1, 2, 3)), "expected factors to be two numbers (down, right), got (1, 2, 3)"),
    (lambda: vision.shear(X, (1, np.inf)), "expected both of factors (down, right) to be a finite number, got inf"),
    *(
        (
            lambda sigma=sigma: vision.gaussian_filter(X, sigma),
            "vision.gaussian_filter: expected both of sigma (rows, columns) to be a finite number of 0 or more, got "
            + repr(sigma),
        )
        for sigma in (-1, np.nan, np.inf)
    ),
    (lambda: vision.gaussian_filter(X, (1, 2, 3)), "expected sigma to be two numbers (rows, columns), got (1, 2, 3)"),
    (lambda: vision.gaussian_filter(X, None), "expected sigma to be two numbers (rows, columns), got None"),
    (
        lambda: vision.gaussian_filter(X, 1, truncate=-4),
        "vision.gaussian_filter: expected truncate to be a finite number of 0 or more, got -4",
    ),
    (
        lambda: vision.gaussian_filter(X, 1, mode="wrap"),
        "vision.gaussian_filter: mode must be 'symmetric', 'reflect' or 'edge', got 'wrap'",
    ),
    (
        lambda: vision.sample(X, [0.0], [0.0, 1.0]),
        "vision.sample: rows and columns must have one shape, got (1,) and (2,)",
    ),
    (
        lambda: vision.rotate(BYTES, 9, method="nearest", value=-1),
        "vision.rotate: value, which fills pixels outside of a picture, must be a whole number from 0 to 255 "
        "for uint8 pictures, got -1; for others, cast the pictures first: x.astype(flnb.float32)",
    ),
    (
        lambda: vision.sample(BYTES, [9.0], [0.0], "nearest", 1.5),
        "vision.sample: value, which fills pixels outside of a picture, must be a whole number",
    ),
    (
        lambda: vision.translate(BYTES, (0, 1), "nearest", np.nan),
        "expected value, which fills pixels outside of a picture, to be a finite number, got nan",
    ),
    *(
        (
            lambda bins=bins: vision.histogram(X, bins),
            f"vision.histogram: expected bins to be a whole number of 1 or more, and bounds (low, high) with low < "
            f"high, got {bins!r} and (0, 1)",
        )
        for bins in (0, 2.5, "many")
    ),
    (lambda: vision.equalize(X, -1), "vision.equalize: expected bins to be a whole number of 1 or more"),
    (lambda: vision.histogram(X, 4, (1.0, 1.0)), "vision.histogram: expected bins to be a whole number"),
    (lambda: vision.equalize(X, 4, 3), "vision.equalize: expected bounds to be two numbers (low, high), got 3"),
    (lambda: vision.histogram(X, 4, (0, np.inf)), "expected both of bounds (low, high) to be a finite number, got inf"),
    (
        lambda: vision.equalize(BYTES, bounds=(0, 1000)),
        "vision.equalize: expected bounds that uint8 can represent, from 0 to 255, got 0 and 1000; cast",
    ),
    (lambda: vision.equalize(X.astype(flnb.float16), bounds=(0, 1e6)), "expected bounds that float16 can represent"),
    (
        lambda: vision.equalize(BYTES.astype(flnb.int64), bounds=(0, 2**63 - 1)),
        "expected bounds that int64 can represent",
    ),
]


@pytest.mark.parametrize(("call", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_errors(call, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        call()


@pytest.mark.parametrize("call", [lambda: vision.affine(X, np.zeros((2, 2))), lambda: vision.shear(X, (1.0, 1.0))])
def test_what_has_no_inverse(call):
    with pytest.raises(np.linalg.LinAlgError, match="inv: Singular matrix"):
        call()


@pytest.mark.parametrize("sigma", [np.float32(1.5), np.array(1.5), flnb.asarray(1.5), (1.5, np.float64(1.5))])
def test_one_sigma_or_two_of_any_kind_of_number(sigma):
    x = flnb.asarray([[0.0, 4.0], [2.0, 1.0]])
    assert vision.gaussian_filter(x, sigma).tolist() == vision.gaussian_filter(x, 1.5).tolist()


@pytest.mark.parametrize("size", [[1, 3], np.array([1, 3]), (np.int64(1), 3)])
def test_sizes_of_any_kind_of_whole_number(size):
    assert vision.resize(X, size).shape == vision.affine(X, np.eye(2), size=size).shape == (1, 3)
