"""Composites computed whole, beside their bodies and joint pulls: results, what is kept, cotangents."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from flnb_backends.tensor import rows
from flnb_backends.tensor.whole import Whole
from hypothesis import given, settings
from hypothesis import strategies as st

import flnb
from flnb.dispatch.plan import spec_of
from flnb.dispatch.table import OPS

PIECE = rows.PIECE
WHOLE = Whole()
NAMES = sorted(name for name in dir(Whole) if f"{name}_pull" in dir(Whole))
SHAPES = {"(8, 8)": (8, 8), "(64, 256)": (64, 256), "(3, 40, 5, 7)": (3, 40, 5, 7), "(2, 3, 900)": (2, 3, 900)}


def drawn(shape, dtype, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def parameters(shape, dtype):
    return drawn(shape, dtype, 1) + 1, drawn(shape, dtype, 2)


def calls(name, x):
    """Inputs and attributes with which a composite may be called on x."""
    if name in ("softmax", "log_softmax"):
        return [((x,), (axis,)) for axis in range(x.ndim)]
    if name == "swish":
        return [((x,), (1.0,)), ((x,), (0.7,))]
    if name == "cross_entropy":
        scores = x.reshape(x.size // x.shape[-1], x.shape[-1])
        classes = np.random.default_rng(1).integers(0, x.shape[-1], len(scores))
        dtypes = (np.int64, np.int32, np.uint8)
        return [((scores, classes.astype(d)), (r,)) for d, r in zip(dtypes, ("mean", "sum", "none"), strict=True)]
    if name == "layer_norm":
        counts = range(1, x.ndim + 1)
        affine = [parameters(x.shape[x.ndim - count :], x.dtype) for count in counts]
        return [((x, *a[:k]), (c, 1e-5)) for c, a in zip(counts, affine, strict=True) for k in range(3)]
    if name == "batch_norm":
        return [((x, *parameters(x.shape[1:2], x.dtype)), (1e-5,))]
    return [((x,), ())]


def buffers(values):
    return None if values is None else values._data if isinstance(values, flnb.Tensor) else np.asarray(values)


def check(name, inputs, attributes, out=False, g=None):
    """The kernel and its pull compute what the body and the joint pull do, to within rounding."""
    op = OPS[name]
    with np.errstate(all="ignore"):
        tensors = [flnb.asarray(v) for v in inputs]
        made, kept = op.body(*tensors, *attributes)
        expected = [buffers(v) for v in (made, *kept)]
        given = tuple(np.full_like(v, 7, order="C") for v in expected) if out else None
        got = getattr(WHOLE, name)(*inputs, *attributes, out=given)
        compare(got, expected, given)
        g = drawn(expected[0].shape, expected[0].dtype, 3) if g is None else g(expected[0].shape)
        *reads, reads_result = op.saved(-1, len(inputs))
        saved = [t if read else None for read, t in zip(reads, tensors, strict=True)]
        saved += [*kept, made if reads_result else None]
        plan = SimpleNamespace(specs=[spec_of(v.shape, v.dtype) for v in inputs], attributes=attributes)
        expected = [buffers(v) for v in op.joint(flnb.asarray(g), plan, *saved)]
        given = tuple(v if v is None else np.full_like(v, 7, order="C") for v in expected) if out else None
        compare(getattr(WHOLE, f"{name}_pull")(g, *map(buffers, saved), *attributes, out=given), expected, given)


def compare(got, expected, given):
    assert isinstance(got, tuple)
    assert len(got) == len(expected)
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        if b is None:
            assert a is None
            continue
        assert isinstance(a, np.ndarray)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert given is None or a is given[i] or a is given[0]  # what is kept may be the result itself
        size = np.abs(b[np.isfinite(b)]).max(initial=1.0)
        np.testing.assert_allclose(a, b, rtol=(eps := 64 * np.finfo(b.dtype).eps), atol=eps * size, equal_nan=True)


@pytest.mark.parametrize("out", [False, True], ids=["new", "out"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_body(name, shape, dtype, out):
    for inputs, attributes in calls(name, drawn(shape, dtype)):
        check(name, inputs, attributes, out)


@pytest.mark.parametrize("name", NAMES)
def test_layouts(name, monkeypatch):
    """Inputs and cotangents that are transposed, reversed or broadcast, in one block and in many."""
    for piece in (PIECE, 64):
        monkeypatch.setattr(rows, "PIECE", piece)
        for x in (drawn((6, 5, 4), "f").T, drawn((9, 12), "f")[::-2, ::3], drawn((3, 1, 4), "f").repeat(5, 1)[:, ::2]):
            for inputs, attributes in calls(name, x):
                for g in (None, lambda shape: np.broadcast_to(np.float32(0.5), shape)):
                    check(name, inputs, attributes, g=g)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_number(name):
    """Also of long rows, whose maxima are found by another way."""
    for shape in ((8, 8), (64, 64)):
        x = drawn(shape, "f")
        x[0, 1], x[2, 3], x[3, 3], x[4, :] = np.inf, -np.inf, np.nan, -np.inf
        x[5, :], x[6, 0], x[6, 1] = 1e4, 3e4, -3e38
        for inputs, attributes in calls(name, x):
            check(name, inputs, attributes)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_cotangents_that_are_no_numbers(name, dtype, monkeypatch):
    """Values and cotangents from a list of odd ones, contiguous and not, in one block and in many.

    What overflows in sums is infinite or NaN by their order: norms get none that do.
    """
    largest = 1e3 if name.endswith("_norm") else float(np.finfo(dtype).max)
    odd = np.array([0.0, -0.0, np.nan, 1.0, np.inf, -2.0, -np.inf, largest, -largest, 1e-30, 90.0, -90.0], dtype)

    def cotangent(shape):
        return np.resize(np.roll(odd, 5), shape)

    for piece in (PIECE, 64):
        monkeypatch.setattr(rows, "PIECE", piece)
        for x in (np.resize(odd, (7, 9)), np.resize(odd, (5, 4, 6)).T, np.resize(odd[3:4], (3, 4))):
            for inputs, attributes in calls(name, x):
                check(name, inputs, attributes, g=cotangent)


@pytest.mark.parametrize("out", [False, True], ids=["new", "out"])
@pytest.mark.parametrize("name", [name for name in NAMES if OPS[name].family == "elementwise"])
def test_one_number_without_dimensions(name, out):
    for value in (0.5, 0.0, -np.inf, np.nan):
        for inputs, attributes in calls(name, np.array(value)):
            check(name, inputs, attributes, out)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"batch_norm"}))  # which asks for two values a channel
@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (4, 0)], ids=str)
def test_without_elements(name, shape):
    if name == "cross_entropy" and not shape[-1]:
        pytest.skip("there is no class")
    for inputs, attributes in calls(name, drawn(shape, "f")):
        if "softmax" in name and not shape[attributes[0]]:
            assert getattr(WHOLE, name)(*inputs, *attributes)[0].shape == shape  # the body asks for a maximum
        else:
            check(name, inputs, attributes)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 99), st.data())
def test_any_shape_and_order_of_axes(name, shape, seed, data):
    shape[0] += 1  # a batch norm is of two values or more
    x = drawn(shape, "d", seed).transpose(data.draw(st.permutations(range(len(shape)))))
    if name != "batch_norm" or x.size > 2 * x.shape[1]:
        check(name, *data.draw(st.sampled_from(calls(name, x))))


@pytest.mark.parametrize("name", NAMES)
def test_no_temporary_is_as_large_as_a_large_input(name):
    x = drawn((256, 16, 256), "f")
    for inputs, attributes in calls(name, x):
        if x.nbytes == inputs[0].nbytes and attributes[:1] != (0,):
            assert most_allocated(name, inputs, attributes) < x.nbytes / 8


def most_allocated(name, inputs, attributes):
    op = getattr(WHOLE, name)
    out = tuple(op(*inputs, *attributes))
    tracemalloc.start()
    try:
        op(*inputs, *attributes, out=out)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("eps", [-np.inf, -9.0, np.nan, np.inf])
def test_what_is_added_to_variances_may_be_no_number_that_makes_sense(eps: float) -> None:
    """PyTorch's layer norm of these numbers is NaN, too, and 0 for inf; its batch norm refuses negative ones."""
    x = flnb.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    with flnb.use_backend("numpy"):
        found = [flnb.layer_norm(x, 3, eps=eps)]
        if not eps < 0:
            found.append(flnb.batch_norm(x, flnb.ones(3), flnb.zeros(3), eps=eps))
        for y in found:
            assert np.isnan(y.numpy()).all() if eps != np.inf else (y.numpy() == 0).all()
