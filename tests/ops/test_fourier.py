"""Fourier transforms against NumPy's, and what is refused. Gradients: tests/ops/test_table.py."""

import numpy as np
import pytest

import flnb
from flnb import fft

RNG = np.random.default_rng(7)


def close(got, expected):
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 1, 3, 7])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_one_axis(name, n, norm):
    x = RNG.normal(size=(2, 5, 3))
    if name in ("fft", "ifft", "irfft", "hfft"):
        x = x + 1j * RNG.normal(size=x.shape)
    for axis in (-1, 1):
        close(getattr(fft, name)(flnb.asarray(x), n=n, axis=axis, norm=norm), getattr(np.fft, name)(x, n, axis, norm))


@pytest.mark.parametrize(("s", "axes"), [(None, None), ((4, 2), (0, 2)), ((3, 6), (2, 1)), (None, (1,))])
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_several_axes(name, s, axes):
    x = RNG.normal(size=(2, 5, 4)) + (0 if name == "rfftn" else 1j * RNG.normal(size=(2, 5, 4)))
    close(getattr(fft, name)(flnb.asarray(x), s=s, axes=axes), getattr(np.fft, name)(x, s, axes))


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_frequencies_and_shifts(n):
    close(fft.fftfreq(n, d=0.2, dtype=flnb.float64), np.fft.fftfreq(n, 0.2))
    close(fft.rfftfreq(n, d=0.2, dtype=flnb.float64), np.fft.rfftfreq(n, 0.2))
    x = RNG.normal(size=(n, 3))
    for axes in (None, 0, (1,)):
        close(fft.fftshift(flnb.asarray(x), axes=axes), np.fft.fftshift(x, axes))
        close(fft.ifftshift(fft.fftshift(flnb.asarray(x), axes=axes), axes=axes), x)


def test_precision_is_kept():
    x = flnb.ones((4,))
    assert fft.fft(x).dtype == fft.rfft(x).dtype == flnb.complex64
    assert fft.irfft(x).dtype == fft.hfft(x).dtype == flnb.float32
    assert fft.fft(flnb.asarray([1, 2])).dtype == flnb.complex64


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: fft.fft(x, norm="half"), ValueError, "norm must be 'backward', 'ortho' or 'forward', got 'half'"),
        (lambda x: fft.fft(x, axis=2), IndexError, "^fft: axis 2 is out of range for a tensor of 2 dimensions"),
        (lambda x: fft.fft(x), ValueError, r"one element or more along each of the axes \(1,\), got complex64\[2,0\]"),
        (lambda x: fft.fftn(x, s=(1,), axes=(0, 1)), ValueError, "fftn: 1 sizes for 2 axes"),
        (lambda x: fft.fft(x, n=0, axis=0), ValueError, "fft: a size must be at least 1, got 0"),
        (lambda x: fft.irfft(x[:, :1], n=0), ValueError, "irfft: the last axis would have 0 elements; give its size"),
        (lambda x: fft.rfft(x * 1j), TypeError, r"rfft: expected real numbers, got complex64\[2,0\]; use fftn"),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call(flnb.zeros((2, 0)))
