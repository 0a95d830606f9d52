"""Saved tensors that are compressed while they are idle: lossless, lossy, codecs of one's own."""

import numpy as np
import pytest

import flnb
from flnb.memory import Codec, LossyCast, Zlib, compress
from tests.memory.test_offloading import N, live, tower

pytestmark = pytest.mark.usefixtures("nothing_held")


def halves():
    """Half of it is zero after a ReLU, the rest of few values."""
    return flnb.Variable(np.tile(np.array([-1.0, -2.0, -3.0, 0.25], np.float32), (N, N // 4)))


def rectified(x):
    for _ in range(4):
        x = flnb.relu(x) * 0.5
    return x.sum()


def test_lossless_gradients_are_the_same(manager):
    x = halves()
    with compress("zlib", keep_last=0) as moves:
        y = rectified(x)
    assert moves.away >= 3
    assert moves.stored_bytes < 0.05 * moves.away_bytes
    y.backward()
    assert x.grad.numpy().tobytes() == flnb.grad(rectified)(x.data).numpy().tobytes()
    assert moves.back == moves.away
    del y
    x.zero_grad()
    assert live(manager) == 0 or live(manager) == x.nbytes


def test_what_does_not_shrink_stays(manager):
    x = flnb.Variable(flnb.random.normal((N, N)))
    with compress(Zlib(level=6), keep_last=0) as moves:
        y = tower(x, 1)
    assert (moves.away, moves.stored_bytes) == (0, 0)
    y.backward()


def test_lossy_gradients_are_near(manager):
    x = flnb.Variable(flnb.random.normal((N, N)))
    with compress("lossy-float16", keep_last=0) as moves:
        y = tower(x)
    y.backward()
    expected = flnb.grad(tower)(x.data).numpy()
    assert moves.stored_bytes == moves.away_bytes // 2 > 0
    assert x.grad.numpy().tobytes() != expected.tobytes()
    np.testing.assert_allclose(x.grad.numpy(), expected, atol=2e-3)


@pytest.mark.parametrize("value", [7e4, np.inf])
def test_what_a_cast_would_change_to_infinity_stays(value):
    array = np.array([value, 1.0], np.float32)
    encoded = LossyCast().encode(array)
    assert (encoded is None) == np.isfinite(value)
    assert LossyCast().encode(np.arange(4)) is None


def test_a_codec_of_ones_own(manager):
    class Signs(Codec):
        name = "lossy-signs"

        def encode(self, array):
            return np.packbits(array > 0)

        def decode(self, encoded, out):
            out.reshape(-1)[:] = np.unpackbits(encoded, count=out.size)

    x = halves()
    with compress(Signs(), keep_last=0) as moves:
        y = flnb.relu(flnb.relu(x)).sum()
    y.backward()
    assert moves.stored_bytes * 32 == moves.away_bytes
    np.testing.assert_array_equal(x.grad.numpy(), x.detach().numpy() > 0)
    with (
        pytest.raises(ValueError, match="compress: unknown codec 'zip'; expected 'zlib', 'lossy-float16'"),
        compress("zip"),
    ):
        pass
    with pytest.raises(NotImplementedError, match="codec 'codec' does not implement 'encode'"):
        Codec().encode(np.zeros(1))
    with pytest.raises(NotImplementedError, match="codec 'codec' does not implement 'decode'"):
        Codec().decode(np.zeros(1), np.zeros(1))
