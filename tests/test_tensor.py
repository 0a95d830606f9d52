"""A Tensor among Python and NumPy values."""

import pickle
from copy import copy, deepcopy

import numpy as np
import pytest

import flnb

IMAGE = flnb.ones((1, 3, 8, 8))


def test_values_go_in_and_out():
    source = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = flnb.asarray(source)
    source[0, 0] = 99
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (x.shape, x.ndim, x.size, x.nbytes, x.dtype) == ((2, 3), 2, 6, 24, np.float32)
    assert np.asarray(x).base is not None or np.shares_memory(np.asarray(x), x.numpy())
    assert flnb.asarray(x) is x
    assert flnb.asarray(x, copy=True) is not x


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, "int64"),
        (1.5, "float32"),
        (True, "bool"),
        ([1, 2.5], "float32"),
        (np.float64(1), "float64"),
        ([], "float32"),
    ],
)
def test_default_dtypes(value, dtype):
    assert flnb.asarray(value).dtype == dtype


@pytest.mark.parametrize(
    ("a", "b", "dtype"),
    [
        ("int64", "float32", "float32"), ("int32", "int64", "int64"), ("float32", "float64", "float64"),
        ("bool", "float32", "float32"), ("uint8", "int8", "int16"), ("int64", "float16", "float16"),
    ],
)  # fmt: skip
def test_promotion(a, b, dtype):
    x, y = flnb.ones((2,), dtype=a), flnb.ones((2,), dtype=b)
    assert (x + y).dtype == dtype
    assert (y + x).dtype == dtype


def test_scalars_are_weak():
    assert (flnb.ones((2,), dtype="float16") * 2.5).dtype == np.float16
    assert (flnb.ones((2,), dtype="int32") + 1).dtype == np.int32
    assert (flnb.ones((2,), dtype="int32") * 0.5).dtype == np.float32
    assert (flnb.ones((2,), dtype="int64") / 2).dtype == np.float32
    assert flnb.sqrt(flnb.asarray([4])).dtype == np.float32


def test_signed_zero_scalars_are_kept_apart():
    x = flnb.asarray([1.0])
    assert np.signbit((x * 0.0).item()) == np.False_
    assert np.signbit((x * -0.0).item()) == np.True_


def test_numpy_arrays_on_the_left_are_ours():
    v = flnb.Variable(np.ones(3, np.float32))
    y = np.array([1.0, 2.0, 3.0], np.float32) * v
    assert isinstance(y, flnb.Variable)
    assert y.requires_grad
    assert (np.float32(2) * v).tolist() == [2.0, 2.0, 2.0]


def test_truth_length_iteration_and_numbers():
    x = flnb.asarray([[1.0, 0.0], [0.0, 2.0]])
    assert len(x) == 2
    assert [row.tolist() for row in x] == [[1.0, 0.0], [0.0, 2.0]]
    assert bool(flnb.asarray(2.0))
    assert not flnb.asarray([0])
    assert float(flnb.asarray([2.5])) == 2.5
    assert [10, 20, 30][flnb.asarray(1)] == 20
    assert 2.0 in x
    assert f"{flnb.asarray(3.14159):.2f}" == "3.14"
    with pytest.raises(ValueError, match=r"truth value of a tensor of shape \(2, 2\) is ambiguous; use \.any\(\)"):
        bool(x)
    with pytest.raises(ValueError, match=r"has shape \(2, 2\); reduce it first"):
        float(x)
    with pytest.raises(TypeError, match="0-d tensor has no length"):
        len(flnb.asarray(1.0))
    with pytest.raises(TypeError, match="0-d tensor cannot be iterated"):
        iter(flnb.asarray(1.0))
    with pytest.raises(TypeError, match=r"only an integer tensor can be an index, this one is float32\[\]"):
        [1, 2][flnb.asarray(1.0)]


def test_copies_and_pickles_have_memory_of_their_own():
    x = flnb.asarray(np.ones((40, 40)))
    for twin in (copy(x), deepcopy(x), pickle.loads(pickle.dumps(x))):
        twin[0, 0] = 7.0
        assert x[0, 0].item() == 1.0
        assert twin.dtype == x.dtype


@pytest.mark.parametrize(
    "key",
    [
        0, -1, slice(1, None), (slice(None), 1), (..., 2), None, (0, 1, 2), (slice(None, None, -2), None, [0, 2]),
        [0, 0, 1], np.array([[1, 0], [1, 1]]), (np.array([0, 1]), slice(None), np.array([1, 3])), ([0, 1], ..., [0, 1]),
    ],
    ids=str,
)  # fmt: skip
def test_indexing_like_numpy(key):
    source = np.arange(24.0).reshape(2, 3, 4)
    x = flnb.asarray(source)
    assert np.array_equal(x[key].numpy(), source[key])
    changed = source.copy()
    changed[key] = -1.0
    x[key] = -1.0
    assert np.array_equal(x.numpy(), changed)


def test_masks_read_and_write():
    source = np.arange(6.0).reshape(2, 3)
    x = flnb.asarray(source)
    assert x[x > 2.0].tolist() == [3.0, 4.0, 5.0]
    x[x > 2.0] = 0.0
    assert x.tolist() == [[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ((0, 0, 0), r"3 indices for a tensor of 2 dimensions, shape \(2, 3\)"),
        (2, r"index 2 is out of range for axis 0 of shape \(2, 3\)"),
        ([0, 5], r"indices 0 to 5 are out of range for axis 0"),
        (np.array([True, False, True]), r"a mask of shape \(3,\), expected \(2,\)"),
        (1.5, "cannot index with float"),
        ("a", "cannot index with str"),
        ((..., ...), r"expected at most one \.\.\. in an index, got 2"),
    ],
)
def test_bad_indices(key, text):
    with pytest.raises(IndexError, match=text):
        flnb.zeros((2, 3))[key]


def test_printing(numpy_session: None):
    assert repr(flnb.asarray([1.0, 2.5])) == "Tensor([1. , 2.5], float32[2], numpy)"
    v = flnb.Variable([1.0])
    assert repr(v) == "Variable([1.], float32[1], numpy, requires_grad)"
    assert repr(v * 2.0) == "Variable([2.], float32[1], numpy, from multiply)"
    assert len(repr(flnb.zeros((1000, 1000)))) < 1000


def test_a_surviving_view_keeps_its_memory():
    x = flnb.asarray(np.arange(10_000, dtype=np.float32))
    view = x[5000:5010]
    array = x.numpy()[1:3]
    del x
    for _ in range(20):
        flnb.ones((10_000,))
    assert view.tolist() == list(range(5000, 5010))
    assert array.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: flnb.ones((2, 3)) + flnb.ones((4,)), ValueError, r"add: shapes \(2, 3\) and \(4,\) do not broadcast"),
        (lambda: flnb.ones((2, 3)) @ flnb.ones((2, 3)), ValueError, r"matmul: inner .* 3 columns and 2 rows"),
        (lambda: flnb.ones((2,)) @ flnb.asarray(1.0), ValueError, r"matmul: expected tensors of one dimension"),
        (lambda: flnb.ones((2, 3)).reshape(7), ValueError, r"reshape: 6 elements of shape \(2, 3\) do not fit"),
        (lambda: flnb.ones((2, 3)).sum(axis=2), ValueError, r"sum: axis 2 is out of range for a tensor of 2"),
        (lambda: flnb.ones((2, 3)).sum(axis=(0, 0)), ValueError, r"sum: axis \(0, 0\) names a dimension twice"),
        (lambda: flnb.max(flnb.zeros((0,))), ValueError, r"max: no element to choose"),
        (lambda: flnb.ones((2,)) + "a", TypeError, r"add: expected tensors, arrays or numbers, got str"),
        (lambda: flnb.ones((2,)) + None, TypeError, r"add: expected tensors, arrays or numbers, got NoneType"),
        (lambda: flnb.asarray(["a"]), TypeError, r"asarray: expected numbers, got list"),
        (lambda: flnb.asarray([[1], [1, 2]]), ValueError, r"asarray: .* expected numbers in nested lists of equal"),
        (lambda: flnb.bitwise_and(flnb.ones((2,)), 1), TypeError, r"bitwise_and: expected integer or bool .* float32"),
        (lambda: -flnb.asarray([True]), TypeError, r"negative: bool tensors have no negative; cast with"),
        (lambda: flnb.where(flnb.ones((2,)), 1.0, 2.0), TypeError, r"where: the condition must be bool"),
        (lambda: flnb.concat([flnb.ones((2, 3)), flnb.ones((3, 2))]), ValueError, r"concat: shapes must agree except"),
        (lambda: flnb.concat([]), ValueError, "expected one tensor or more"),
        (lambda: flnb.conv2d(IMAGE, flnb.ones((4, 1, 3, 3))), ValueError, r"3 channels, .* expects 1"),
        (lambda: flnb.conv2d(flnb.ones((1, 1, 2, 2)), flnb.ones((4, 1, 3, 3))), ValueError, r"kernel .* does not fit"),
        (lambda: flnb.cross_entropy(flnb.ones((2, 3)), [0.5, 1.0]), TypeError, r"must be integers, got float32"),
        (lambda: flnb.cross_entropy(flnb.ones((2, 3)), [1]), ValueError, r"shapes \(2, 3\) and \(1,\)"),
        (lambda: flnb.add(flnb.ones((2,)), 1.0, out=flnb.ones((3,))), ValueError, r"result is float32\[2\] but out"),
        (lambda: flnb.cross_entropy(flnb.ones((2, 3)), [0, -1]), IndexError, r"cross_entropy: labels go from -1 to 0"),
        (lambda: flnb.cross_entropy(flnb.ones((2, 3)), [0, 7]), IndexError, r"must lie between 0 and 2"),
        (lambda: flnb.zeros(2, 3), TypeError, r"a shape is one tuple: zeros\(\(2, 3\)\)"),
        (lambda: flnb.dropout(flnb.ones((2,)), 1.5), ValueError, r"p must be in \[0, 1\), got 1.5"),
        (lambda: flnb.full((-1,), 0), ValueError, r"extents >= 0, got \(-1,\)"),
        (lambda: flnb.Tensor([1.0]), TypeError, r"use flnb\.asarray"),
        (lambda: flnb.log(flnb.ones((2,)), loss=1.0), TypeError, r"keywords alone, as in log"),
    ],
)  # fmt: skip
def test_errors_say_what_was_got_and_what_to_do(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_small_int_kinds_and_shifts():
    x = flnb.asarray(np.array([1, 2, 3], np.uint8))
    assert (x << 2).tolist() == [4, 8, 12]
    assert (x & 1).tolist() == [1, 0, 1]
    assert (~flnb.asarray([True, False])).tolist() == [False, True]
    assert (flnb.asarray([True, False]) | flnb.asarray([True, True])).dtype == np.bool_
    assert flnb.sum(x).dtype == np.uint64
    assert (7 // x).tolist() == [7, 3, 2]
    assert (2**x).tolist() == [2, 4, 8]


def test_random_is_seeded_and_generators_are_independent():
    flnb.manual_seed(3)
    a = flnb.random.normal((4,))
    flnb.manual_seed(3)
    assert (flnb.random.normal((4,)) == a).all()
    g = flnb.random.Generator(1)
    saved = g.state
    first = flnb.random.uniform((3,), generator=g)
    g.state = saved
    assert (flnb.random.uniform((3,), generator=g) == first).all()
    assert sorted(flnb.random.permutation(5, g).tolist()) == [0, 1, 2, 3, 4]
    drawn = flnb.random.bernoulli((1000,), 0.3, generator=g)
    assert 200 < drawn.sum().item() < 400
    assert set(drawn.tolist()) == {0.0, 1.0}


def test_default_dtype_can_be_changed():
    flnb.set_default_dtype("float64")
    try:
        assert flnb.zeros((1,)).dtype == np.float64
    finally:
        flnb.set_default_dtype("float32")
    with pytest.raises(TypeError, match="expected a floating-point dtype, got int64"):
        flnb.set_default_dtype("int64")


def test_equality_with_none_is_identity():
    x = flnb.ones((2,))
    assert (x == None) is False  # noqa: E711
    assert (x != None) is True  # noqa: E711


def test_a_variable_is_not_copied_to_another_backend_behind_the_tapes_back():
    v = flnb.Variable([1.0, 2.0])
    assert v.to("numpy") is v
    with pytest.raises(RuntimeError, match=r"to: this Variable requires grad.*use .detach\(\).to"):
        v.to("deferred")
    assert v.detach().to("deferred").tolist() == [1.0, 2.0]
