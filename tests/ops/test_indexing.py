"""`x[key]` and `x[key] = value` beside NumPy's, on keys of every kind."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

import flnb
from flnb.ops.indexing import _positions

SHAPES = nps.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4)


def numbered(shape):
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


@st.composite
def keyed(draw):
    """A shape and a key for it: of basic parts, of index arrays, of both, or a mask."""
    shape = draw(SHAPES)
    kind = draw(st.sampled_from(["basic", "arrays", "mixed", "mask"]))
    if kind == "basic":
        return shape, draw(nps.basic_indices(shape, allow_newaxis=True))
    if kind == "mask":
        return shape, draw(nps.arrays(bool, shape[: draw(st.integers(0, len(shape)))]))
    count = draw(st.integers(1, len(shape)))
    broadcast = draw(nps.array_shapes(max_dims=2, max_side=3))
    parts = []
    for n in shape[:count]:
        array = nps.arrays(np.int64, broadcast, elements=st.integers(-n, n - 1))
        other = st.integers(-n, n - 1) | nps.basic_indices((n,), allow_ellipsis=False, allow_newaxis=True)
        parts.append(draw(array if kind == "arrays" or not parts else array | other))
    flat = []
    for part in parts:
        flat += part if isinstance(part, tuple) else [part]
    return shape, tuple(flat)


def ours(key):
    """The same key with Tensors for arrays."""
    if isinstance(key, tuple):
        return tuple(ours(k) for k in key)
    return flnb.asarray(key) if isinstance(key, np.ndarray) else key


@settings(max_examples=150, deadline=None)
@given(keyed())
def test_reading_and_writing_are_numpys(case):
    shape, key = case
    source = numbered(shape)
    x = flnb.asarray(source)
    expected = source[key]
    got = x[ours(key)]
    assert got.shape == expected.shape
    assert np.array_equal(got.numpy(), expected)

    x[ours(key)] = -1.0
    source[key] = -1.0
    assert np.array_equal(x.numpy(), source)

    values = -2.0 - np.arange(expected.size, dtype=np.float32).reshape(expected.shape)
    if len(np.unique(numbered(shape)[key])) == expected.size:  # of equal positions, which one is written last is open
        x[ours(key)] = flnb.asarray(values)
        source[key] = values
        assert np.array_equal(x.numpy(), source)


@settings(max_examples=150, deadline=None)
@given(keyed())
def test_the_gradient_of_reading_counts_how_often_an_element_is_read(case):
    shape, key = case
    x = flnb.Variable(numbered(shape))
    x[ours(key)].sum().backward()
    counts = np.zeros(shape, np.float32)
    np.add.at(counts, key, 1.0)
    assert np.array_equal(x.grad.numpy(), counts)


@pytest.mark.parametrize(
    "key", [True, False, np.True_, np.asarray(False), (True, None, 0), (slice(None), True, [0, 1]), (..., False)]
)
def test_truth_values_keep_all_or_nothing(key):
    source = numbered((2, 3))
    x = flnb.asarray(source)
    assert np.array_equal(x[ours(key)].numpy(), source[key])
    x[ours(key)] = 5.0
    source[key] = 5.0
    assert np.array_equal(x.numpy(), source)


def test_a_mask_of_an_empty_extent_selects_nothing():
    assert flnb.ones((3, 2))[flnb.zeros((0,), dtype=bool)].shape == (0, 2)
    with pytest.raises(IndexError, match=r"a mask of shape \(2,\), expected \(3,\), the extents from axis 0 on"):
        flnb.ones((3, 2))[flnb.zeros((2,), dtype=bool)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_take_and_take_along_axis_are_numpys(data):
    source = numbered(data.draw(SHAPES))
    axis = data.draw(st.integers(-source.ndim, source.ndim - 1))
    n = source.shape[axis]
    chosen = data.draw(nps.arrays(np.int64, st.integers(0, 4), elements=st.integers(-n, n - 1)))
    x = flnb.asarray(source)
    assert np.array_equal(flnb.take(x, flnb.asarray(chosen), axis=axis).numpy(), np.take(source, chosen, axis=axis))

    shape = list(source.shape)
    shape[axis] = data.draw(st.integers(1, 3))
    along = data.draw(nps.arrays(np.int64, tuple(shape), elements=st.integers(-n, n - 1)))
    got = flnb.take_along_axis(x, flnb.asarray(along), axis=axis)
    assert np.array_equal(got.numpy(), np.take_along_axis(source, along, axis))


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: flnb.take(x, [0]), ValueError, r"take: axis= is required for a tensor of 2 dimensions, shape"),
        (
            lambda x: flnb.take(x, [0.5], axis=0),
            TypeError,
            r"take: expected integer indices, got float32\[1\]; convert",
        ),
        (
            lambda x: flnb.take(x, flnb.ones(2), axis=0),
            TypeError,
            r"got float32\[2\]; convert them with \.astype\(flnb",
        ),
        (
            lambda x: flnb.embedding(flnb.ones(2), x),
            TypeError,
            r"embedding: expected integer indices, got float32\[2\]",
        ),
        (
            lambda x: x[flnb.ones(2)],
            IndexError,
            r"getitem: expected integer or bool indices, got float32\[2\]; convert",
        ),
        (lambda x: flnb.take(x, [7], axis=1), IndexError, r"index 7 is out of range for axis 1"),
        (lambda x: flnb.take(x, [0], axis=2), IndexError, r"take: axis 2 is out of range for a tensor of 2"),
        (lambda x: flnb.take_along_axis(x, [0]), ValueError, r"same number of dimensions, got shapes \(2, 3\) and"),
        (
            lambda x: flnb.take_along_axis(x, [[0], [0], [0]]),
            ValueError,
            r"x \(2, 3\), indices \(3, 1\): expected .* in axis 0",
        ),
    ],
)
def test_bad_indices(call, kind, text):
    with pytest.raises(kind, match=text):
        call(flnb.zeros((2, 3)))


@pytest.mark.parametrize("key", [(0, 2), (True, False, True), (), ((0, 1), (2, 0))], ids=str)
def test_a_tuple_inside_an_index_is_a_list(key):
    source = np.arange(6.0).reshape(2, 3)
    x = flnb.asarray(source)
    assert x[:, key].tolist() == source[:, key].tolist()
    assert x[..., key, None].shape == source[..., key, None].shape
    x[:, key] = 7.0
    source[:, key] = 7.0
    assert x.tolist() == source.tolist()


@pytest.mark.parametrize("shape", [(3,), (0,), (2, 3), (3, 0), (0, 3), (2, 3, 4), (1, 1, 5, 2)])
def test_the_positions_of_a_mask_are_numpys(shape):
    for mask in (np.arange(np.prod(shape)).reshape(shape) % 3 == 1, np.ones(shape, bool), np.ones(shape, bool).T):
        for got, expected in zip(_positions(mask), np.nonzero(mask), strict=True):
            np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (3, 4, 2), (0, 4)])
def test_a_mask_over_the_first_axes_selects_as_in_numpy_and_gradients_return(shape):
    """Also from a transposed tensor, whose axes cannot be joined without a copy."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=shape).astype(np.float32)
    for axes in range(1, len(shape) + 1):
        mask = draw.random(shape[:axes]) < 0.5
        x = flnb.Variable(values)
        for view in (x, flnb.permute_dims(flnb.Variable(values.T), range(len(shape))[::-1])):
            y = view[flnb.asarray(mask)]
            np.testing.assert_array_equal(y.detach().numpy(), values[mask])
        x[flnb.asarray(mask)].backward(flnb.asarray(values[mask]))
        expected = np.zeros_like(values)
        expected[mask] = values[mask]
        np.testing.assert_array_equal(x.grad.numpy(), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "uint32", "uint64"])
def test_gradients_reach_the_rows_that_indices_of_any_dtype_name(dtype):
    """The places of their elements do not fit 8 or 16 bits."""
    rows = np.array([5, 120, 5])
    x = flnb.Variable(flnb.zeros((300, 400)))
    flnb.take(x, flnb.asarray(rows, dtype=dtype), axis=0).sum().backward()
    assert np.array_equal(x.grad.numpy(), np.repeat(np.bincount(rows, minlength=300), 400).reshape(300, 400))
