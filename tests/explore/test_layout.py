"""Arrays kept with their layout come back bit for bit, as arrays and as code."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flnb.explore.calls import same_bits
from flnb.explore.layout import Layout, canonical, keep
from flnb.explore.script import array_code, literal


@st.composite
def arrays(draw):
    """Arrays of up to four axes: permuted, cut, with steps of either sign, broadcast, of several dtypes."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=0, max_size=4)))
    dtype = draw(st.sampled_from(["float16", "float32", "float64", "int64", "uint8", "bool", "complex64"]))
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    array = array.transpose(draw(st.permutations(range(len(shape)))))
    steps = st.sampled_from(
        [slice(None), slice(None, None, 2), slice(None, None, -1), slice(1, None), slice(None, None, -2)]
    )
    array = array[(*draw(st.tuples(*[steps] * array.ndim)), ...)]
    if array.ndim and array.shape[-1] and draw(st.booleans()):
        array = np.broadcast_to(array[..., :1], (*array.shape[:-1], 3))
    return array


@given(arrays())
def test_a_kept_array_has_the_same_values_strides_and_alignment(array):
    again = keep(array).array()
    assert same_bits(again, array)
    assert again.strides == array.strides or not array.size
    assert not array.size or (again.ctypes.data - array.ctypes.data) % 64 == 0
    assert not np.shares_memory(again, array)


@given(arrays())
def test_canonical_arrays_keep_values_order_and_contiguity(array):
    again = canonical(array)
    assert same_bits(again, array)
    assert again.flags.c_contiguous == array.flags.c_contiguous
    for i, (n, a, b) in enumerate(zip(array.shape, array.strides, again.strides, strict=True)):
        assert n < 2 or not array.size or np.sign(a) == np.sign(b), (i, array.strides, again.strides)
    assert canonical(again).strides == again.strides or not array.size


@given(arrays())
def test_code_makes_the_canonical_array(array):
    code = array_code(keep(array))
    if code is None:  # too many different values to be written out
        assert Layout.of(array).filled(array)[0].size > 64
    else:
        made = eval(code, {"np": np})
        assert same_bits(made, array)
        assert made.strides == canonical(array).strides or not array.size


@pytest.mark.parametrize(
    ("like", "code"),
    [
        (np.ones((2, 3)).T, "B.T"),
        (np.ones((2, 3, 4)).transpose(1, 0, 2), "B.transpose(1, 0, 2)"),
        (np.ones((2, 6))[:, ::2], "B[:2, :6:2]"),
        (np.ones(4)[::-1], "np.flip(B, (0,))"),
        (np.broadcast_to(np.ones((3, 1)), (3, 4)), "np.broadcast_to(B, (3, 4))"),
        (np.ones((2, 3)), "B"),
    ],
)
def test_layouts_read_like_what_was_done(like, code):
    assert Layout.of(like).code("B") == code


@pytest.mark.parametrize(
    "value",
    [(1, 2), ((0,), False), (), None, "x", 2.5, float("inf"), np.dtype("float16"), ((("slice", 0, None, 2),), -1)],
)
def test_attributes_survive_as_code(value):
    assert eval(literal(value), {"np": np}) == value
