"""Pooling of integers, which is that of floating point, by hand."""

import numpy as np
import pytest

import flnb

IMAGE = np.arange(16).reshape(1, 1, 4, 4)


def windows(x, fill):
    """The windows of 2 x 2 of an image with one row and column of padding, flat."""
    around = np.pad(x[0, 0].astype(float), 1, constant_values=fill)
    return around.reshape(3, 2, 3, 2).transpose(0, 2, 1, 3).reshape(3, 3, 4)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.bool_])
def test_integers_are_padded_as_floating_point(dtype):
    image = (IMAGE * 17).astype(dtype) if dtype != np.bool_ else IMAGE % 3 == 5
    for x in (image, ~image if dtype == np.bool_ else image // 2):
        most, mean = flnb.max_pool2d(x, 2, padding=1), flnb.avg_pool2d(x, 2, padding=1)
        assert most.dtype == mean.dtype == np.float32
        assert most[0, 0].tolist() == windows(x, -np.inf).max(-1).tolist()
        assert mean[0, 0].tolist() == windows(x, 0).mean(-1).tolist()
