"""Convolution and pooling by hand, in one to three dimensions. Gradients: tests/ops/test_table.py."""

import itertools

import numpy as np
import pytest

import flnb

RNG = np.random.default_rng(5)


def by_hand(x, w, stride, padding, dilation, groups):
    """Every output element as the sum it is defined to be."""
    rank = x.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:], strict=True)]
    fit = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], spans, stride, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *fit))
    width, many = w.shape[1], w.shape[0] // groups
    for place in itertools.product(*map(range, fit)):
        cut = [slice(i * stride[a], i * stride[a] + spans[a], dilation[a]) for a, i in enumerate(place)]
        window = x[(..., *cut)]
        for o in range(w.shape[0]):
            first = o // many * width
            part = window[:, first : first + width] * w[o]
            out[(slice(None), o, *place)] = part.sum(axis=tuple(range(1, rank + 2)))
    return out


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 3), (1, 2, 2, 1)])
def test_convolution(rank, stride, padding, dilation, groups):
    x, w = RNG.normal(size=(2, 6, *(7, 6, 5)[:rank])), RNG.normal(size=(3, 6 // groups, *(3, 2, 3)[:rank]))
    bias = RNG.normal(size=3)
    function = getattr(flnb, f"conv{rank}d")
    got = function(*map(flnb.asarray, (x, w, bias)), stride, padding, dilation, groups)
    expected = by_hand(x, w, (stride,) * rank, (padding,) * rank, (dilation,) * rank, groups)
    np.testing.assert_allclose(got.numpy(), expected + bias.reshape(-1, *(1,) * rank), rtol=1e-12)


@pytest.mark.parametrize(("channels", "extent"), [(3, 9), (3, 1), (8000, 3)], ids=["places", "tiny", "channels"])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_kernel_of_one_place_is_a_matrix_product(rank, channels, extent):
    """With its gradients, whichever of its ways a backend takes for such sizes."""
    x, w = RNG.normal(size=(2, channels, *(extent,) * rank)), RNG.normal(size=(4, channels, *(1,) * rank))
    images, weight = flnb.Variable(x), flnb.Variable(w)
    y = getattr(flnb, f"conv{rank}d")(images, weight)
    matrix = w.reshape(4, channels)
    np.testing.assert_allclose(y.detach().numpy(), np.einsum("oc,nc...->no...", matrix, x), rtol=1e-9, atol=1e-9)
    g = RNG.normal(size=y.shape)
    y.backward(flnb.asarray(g))
    np.testing.assert_allclose(images.grad.numpy(), np.einsum("oc,no...->nc...", matrix, g), rtol=1e-9, atol=1e-9)
    expected = np.einsum("nop,ncp->oc", g.reshape(2, 4, -1), x.reshape(2, channels, -1))
    np.testing.assert_allclose(weight.grad.numpy().reshape(4, channels), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("channels", "made"), [(2, 5), (5, 2), (3, 3)], ids=["more", "fewer", "as many"])
@pytest.mark.parametrize(("padding", "dilation"), [(0, 1), (1, 1), (2, 1), (3, 1), (1, 2)])
def test_the_gradient_of_the_input_is_the_transposed_map(channels, made, padding, dilation):
    """<conv(x), g> = <x, gradient>, for as many channels made as read, more and fewer: backends may differ there."""
    x, w = RNG.normal(size=(2, channels, 7, 6)), RNG.normal(size=(made, channels, 3, 2))
    images = flnb.Variable(x)
    y = flnb.conv2d(images, flnb.asarray(w), padding=padding, dilation=dilation)
    g = RNG.normal(size=y.shape)
    y.backward(flnb.asarray(g))
    other = RNG.normal(size=x.shape)
    along = by_hand(other, w, (1, 1), (padding,) * 2, (dilation,) * 2, 1)
    assert np.vdot(images.grad.numpy(), other) == pytest.approx(np.vdot(g, along), rel=1e-11)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pooling(rank):
    x = RNG.normal(size=(2, 3, *(4, 6, 2)[:rank]))
    halves = x.reshape(2, 3, *itertools.chain(*((n // 2, 2) for n in x.shape[2:])))
    axes = tuple(3 + 2 * i for i in range(rank))
    largest = getattr(flnb, f"max_pool{rank}d")(flnb.asarray(x), 2)
    np.testing.assert_array_equal(largest.numpy(), halves.max(axis=axes))
    mean = getattr(flnb, f"avg_pool{rank}d")(flnb.asarray(x), 2)
    np.testing.assert_allclose(mean.numpy(), halves.mean(axis=axes), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: flnb.conv1d(x, flnb.ones((4, 3, 3))), r"conv1d: expected x \(N, C, W\) .*float32\[1,4,5,5\]"),
        (lambda x: flnb.conv2d(x, flnb.ones((3, 2, 3, 3)), groups=2), r"4 channels, .*2 in each of 2 groups.* 3 out"),
        (lambda x: flnb.conv2d(x, flnb.ones((1, 4, 3, 3)), dilation=3), r"\(3, 3\), dilated to \(7, 7\), does not fit"),
        (lambda x: flnb.conv2d(x, flnb.ones((1, 4, 3, 3)), stride=(1, 2, 3)), r"one or two ints >= 1, got \(1, 2, 3\)"),
        (lambda x: flnb.conv3d(x[None], flnb.ones((1, 1, 1, 1, 1)), padding=-1), r"one or three ints >= 0, got -1"),
        (lambda x: flnb.conv2d(x, flnb.ones((2, 4, 1, 1)), flnb.ones(3)), r"conv2d: expected a bias of shape \(2,\)"),
        (lambda x: flnb.max_pool2d(x, 2, padding=2), r"padding \(2, 2\) is more than half the kernel \(2, 2\)"),
        (lambda x: flnb.avg_pool1d(x[0], (9,)), r"avg_pool1d: a kernel of \(9,\) does not fit an image of \(5,\)"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call(flnb.ones((1, 4, 5, 5)))
