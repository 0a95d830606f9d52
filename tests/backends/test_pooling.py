"""Pooling on NumPy beside windows taken one by one: ties, NaN, overlapping windows, what no window reaches, layouts."""

import itertools

import numpy as np
import pytest
from flnb_backends.tensor import pooling, rows
from flnb_backends.tensor.numpy import NumpyBackend

BACKEND = NumpyBackend()
CASES = {
    "tiles": ((2, 3, 8, 6), (2, 2), (2, 2)),
    "a rest": ((2, 3, 7, 9), (2, 4), (2, 4)),
    "overlapping": ((2, 2, 9, 8), (3, 2), (2, 1)),
    "gaps": ((2, 2, 9, 8), (2, 1), (3, 2)),
    "one place": ((1, 2, 3, 3), (1, 1), (1, 1)),
    "line": ((3, 2, 11), (3,), (2,)),
    "volume": ((2, 2, 4, 5, 6), (2, 2, 3), (2, 1, 3)),
    "no example": ((0, 2, 4, 4), (2, 2), (2, 2)),
}


def expected(x, g, v, kernel, stride):
    """Maxima, the gradient, and the elements of v at the first maxima, in row-major order."""
    spread, y, chosen = np.zeros_like(x), np.empty_like(g), np.zeros_like(g)
    for window in np.ndindex(g.shape):
        starts = [i * s for i, s in zip(window[2:], stride, strict=True)]
        places = [
            (*window[:2], *(i + p for i, p in zip(starts, place, strict=True)))
            for place in itertools.product(*map(range, kernel))
        ]
        values = [x[place] for place in places]
        y[window] = np.max(values)
        if not np.isnan(y[window]):
            place = places[values.index(y[window])]
            spread[place] += g[window]
            chosen[window] = v[place]
    return y, spread, chosen


@pytest.mark.parametrize(("piece", "small"), [(64, 0), (1 << 18, 0), (1 << 18, 1 << 10)], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("values", ["ties", "nan", "different"])
@pytest.mark.parametrize(("shape", "kernel", "stride"), CASES.values(), ids=CASES)
def test_pooling(shape, kernel, stride, values, dtype, piece, small, monkeypatch):
    monkeypatch.setattr(rows, "PIECE", piece)
    monkeypatch.setattr(pooling, "SMALL", small)
    pooling.tiling.cache_clear()
    draw = np.random.default_rng(0)
    x, v = draw.normal(size=(2, *shape)).astype(dtype)
    if values != "different":
        x = np.round(x)
    if values == "nan":
        x[draw.random(shape) < 0.1] = np.nan
        x[draw.random(shape) < 0.1] = -np.inf
    fit = [(n - k) // s + 1 for n, k, s in zip(shape[2:], kernel, stride, strict=True)]
    g = draw.integers(-9, 9, (*shape[:2], *fit)).astype(dtype)
    for a, b, c in ((x, g, v), tuple(np.asfortranarray(each) for each in (x, g, v))):
        y, spread, chosen = expected(a, b, c, kernel, stride)
        for out in (False, True):
            into = [np.full_like(each, 7, order="C") if out else None for each in (y, spread, chosen)]
            np.testing.assert_array_equal(BACKEND.max_pool2d(a, kernel, stride, into[0]), y)
            np.testing.assert_array_equal(BACKEND.max_pool2d_grad(b, a, kernel, stride, into[1]), spread)
            np.testing.assert_array_equal(BACKEND.max_pool2d_select(c, a, kernel, stride, into[2]), chosen)
