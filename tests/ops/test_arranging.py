"""Searching, sorting, sets, and moving elements about, beside NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

import flnb

SHAPES = nps.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
DTYPES = st.sampled_from([np.bool_, np.int8, np.uint16, np.int64, np.float32, np.float64])
ARRAYS = DTYPES.flatmap(lambda dtype: nps.arrays(dtype, SHAPES))


def equal(got, expected):
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got.numpy(), expected)


@settings(max_examples=60, deadline=None)
@given(ARRAYS, st.booleans(), st.data())
def test_sorting(source, descending, data):
    axis = data.draw(st.integers(-source.ndim, source.ndim - 1))
    x = flnb.asarray(source)
    ordered, order = flnb.sort(x, axis, descending), flnb.argsort(x, axis, descending)
    expected = np.sort(source, axis)
    equal(ordered, np.flip(expected, axis) if descending else expected)
    equal(flnb.take_along_axis(x, order, axis), ordered.numpy())
    steps = np.diff(order.numpy(), axis=axis)
    ties = np.equal(*[np.take(ordered.numpy(), range(s, s + steps.shape[axis]), axis) for s in (0, 1)])
    assert (steps[ties] > 0).all()  # stable: equal elements keep their order


@settings(max_examples=60, deadline=None)
@given(ARRAYS)
def test_sets(source):
    found = flnb.unique_all(flnb.asarray(source))
    values, indices, inverse, counts = np.unique(
        source, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    equal(found.values, values)
    equal(found.counts, counts)
    if not (source != source).any():  # which NaN is which is open
        equal(found.indices, indices)
        equal(found.inverse_indices, inverse.reshape(source.shape))
        equal(flnb.unique_inverse(flnb.asarray(source)).inverse_indices, inverse.reshape(source.shape))
    equal(flnb.unique_values(flnb.asarray(source)), values)
    equal(flnb.unique_counts(flnb.asarray(source)).counts, counts)


@settings(max_examples=60, deadline=None)
@given(ARRAYS, st.booleans(), st.data())
def test_searching(source, keepdims, data):
    x = flnb.asarray(source)
    axis = data.draw(st.none() | st.integers(-source.ndim, source.ndim - 1))
    equal(flnb.count_nonzero(x, axis, keepdims), np.count_nonzero(source, axis, keepdims=keepdims))
    for got, expected in zip(flnb.nonzero(x), np.nonzero(source), strict=True):
        equal(got, expected)
    ordered = np.sort(source.ravel())
    ordered = ordered[ordered == ordered]
    for side in ("left", "right"):
        got = flnb.searchsorted(flnb.asarray(ordered), x, side=side)
        equal(got, np.searchsorted(ordered, source, side))
    row = source.ravel()[source.ravel() == source.ravel()]
    order = np.argsort(row)
    equal(
        flnb.searchsorted(flnb.asarray(row), x, sorter=flnb.asarray(order)), np.searchsorted(row, source, sorter=order)
    )


@settings(max_examples=60, deadline=None)
@given(ARRAYS, st.data())
def test_arranging(source, data):
    x, ndim = flnb.asarray(source), source.ndim
    axes = st.integers(-ndim, ndim - 1)
    axis, shift, times = data.draw(axes), data.draw(st.integers(-5, 5)), data.draw(st.integers(0, 3))
    each = data.draw(nps.arrays(np.int64, source.shape[axis], elements=st.integers(0, 3)))
    equal(flnb.roll(x, shift, axis=axis), np.roll(source, shift, axis))
    equal(flnb.roll(x, shift), np.roll(source, shift))
    equal(flnb.roll(x, (shift, 1), axis=(axis, 0)), np.roll(source, (shift, 1), (axis, 0)))
    equal(flnb.repeat(x, times, axis=axis), np.repeat(source, times, axis))
    equal(flnb.repeat(x, times), np.repeat(source, times))
    equal(flnb.repeat(x, flnb.asarray(each), axis=axis), np.repeat(source, each, axis))
    reps = tuple(data.draw(st.lists(st.integers(0, 2), max_size=4)))
    equal(flnb.tile(x, reps), np.tile(source, reps))
    other = data.draw(axes)
    equal(flnb.moveaxis(x, axis, other), np.moveaxis(source, axis, other))
    orders = st.permutations(range(ndim)).map(tuple)
    there, back = data.draw(orders), data.draw(orders)
    equal(flnb.moveaxis(x, there, back), np.moveaxis(source, there, back))
    for got, expected in zip(flnb.unstack(x, axis=axis), np.moveaxis(source, axis, 0), strict=True):
        equal(got, expected)
    equal(flnb.concat([x, x], axis=None), np.concatenate([source, source], axis=None))
    if ndim > 1:
        equal(flnb.tril(x, k=shift), np.tril(source, shift))
        equal(flnb.triu(x, k=shift), np.triu(source, shift))


@settings(max_examples=50, deadline=None)
@given(ARRAYS, st.integers(0, 2), st.data())
def test_differences(source, n, data):
    axis = data.draw(st.integers(-source.ndim, source.ndim - 1))
    x = flnb.asarray(source)
    with np.errstate(all="ignore"):
        equal(flnb.diff(x, axis=axis, n=n), np.diff(source, n, axis))
        equal(flnb.diff(x, axis=axis, prepend=x, append=x), np.diff(source, 1, axis, source, source))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("sizes", [(), (2,), (2, 3), (2, 0, 3), (1, 2, 3, 2)])
def test_grids(sizes, indexing):
    vectors = [np.arange(n, dtype=np.float32) for n in sizes]
    got = flnb.meshgrid(*[flnb.asarray(v) for v in vectors], indexing=indexing)
    for ours, theirs in zip(got, np.meshgrid(*vectors, indexing=indexing), strict=True):
        equal(ours, theirs)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: flnb.nonzero(flnb.asarray(1.0)), "nonzero: a 0-d tensor has no positions"),
        (lambda x: flnb.sort(flnb.asarray(1.0)), "sort: axis -1 is out of range for a tensor of 0 dimensions"),
        (lambda x: flnb.searchsorted(x, x), r"searchsorted: expected a vector of sorted elements, got float32\[2,3\]"),
        (lambda x: flnb.searchsorted(x[0], x, side="up"), "side must be 'left' or 'right', got 'up'"),
        (lambda x: flnb.meshgrid(x), r"meshgrid: expected vectors, got shapes \(2, 3\)"),
        (lambda x: flnb.meshgrid(x[0], indexing="yx"), "indexing must be 'xy' or 'ij', got 'yx'"),
        (lambda x: flnb.broadcast_arrays(x, x.T), r"shapes \(2, 3\) and \(3, 2\) do not broadcast"),
        (lambda x: flnb.repeat(x, [1, 2, 3], axis=0), r"one for each of 2 slices, got int64\[3\]"),
        (lambda x: flnb.repeat(x, -1), "repeat: counts must be 0 or more, got -1"),
        (lambda x: flnb.tile(x, (-1,)), r"tile: repetitions must be 0 or more, got \(-1,\)"),
        (lambda x: flnb.roll(x, (1, 2), axis=0), r"expected as many shifts as axes, got shift \(1, 2\) and axis 0"),
        (lambda x: flnb.roll(x, (1, 2)), r"roll: the shifts \(1, 2\) need as many axes: give axis a tuple of 2 ints"),
        (lambda x: flnb.tril(x[0]), r"tril: expected matrices \(..., M, N\), got float32\[3\]"),
        (lambda x: flnb.moveaxis(x, (0, 1), (0,)), "must name equally many axes, each once"),
        (lambda x: flnb.diff(x, n=-1), "diff: n must be 0 or more, got -1"),
        (lambda x: flnb.cumulative_prod(x), "cumulative_prod: give one axis, the tensor has 2 dimensions"),
        (lambda x: flnb.reshape(x.T, (6,), copy=False), "is not contiguous and needs a copy"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call(flnb.ones((2, 3)))


def test_reshape_copies_only_if_it_may():
    x = flnb.zeros((2, 3))
    flnb.reshape(x, (6,), copy=False)[0] = 1.0
    flnb.reshape(x, (2, 3), copy=True)[1] = 2.0
    assert x.tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
