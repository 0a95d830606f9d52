"""The cpu backend: convolutions and matrix products by oneDNN, in every way, against the NumPy backend's."""

from __future__ import annotations

import platform
import sys
import threading

import numpy as np
import pytest
from flnb_backends.native.prepared import contiguous
from flnb_backends.tensor.cpu import EVERY_WAY
from hypothesis import given, settings
from hypothesis import strategies as st

import flnb
from flnb.backends import CpuBackend, NumpyBackend
from flnb.testing import conformance

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="there is no oneDNN to install"
)
NUMPY = NumpyBackend()


def drawn(shape, seed=0, dtype="f"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def strided(x, layout):
    """The same values in another layout of memory."""
    if layout == "channels last":
        order = (0, *range(2, x.ndim), 1)
        return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
    if layout == "every other":
        return np.repeat(x, 2, axis=-1)[..., ::2]
    if layout == "reversed":
        return np.ascontiguousarray(x[::-1])[::-1]
    if layout == "broadcast":
        return np.broadcast_to(x[:1], x.shape)
    return x


LAYOUTS = ["plain", "channels last", "every other", "reversed", "broadcast"]


def close(got, expected):
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    size = np.abs(expected).max(initial=1.0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=4e-5 * size)


def three(backend, x, w, g, placing, groups, out=False):
    """A convolution and both gradients, into ``out`` or not."""
    attributes = *placing, groups
    calls = [
        (backend.conv2d, (x, w, *attributes), g.shape),
        (backend.conv2d_input_grad, (g, w, *attributes, x.shape[2:]), x.shape),
        (backend.conv2d_weight_grad, (g, x, *attributes, w.shape[2:]), w.shape),
    ]
    return [f(*arguments, np.full(shape, 7, x.dtype)) if out else f(*arguments) for f, arguments, shape in calls]


@pytest.mark.parametrize("way", ["", *EVERY_WAY])
def test_conformance(way):
    report = conformance(CpuBackend(1, way))
    assert report, report


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_convolutions_and_their_gradients_are_numpys(data):
    draw = data.draw
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    each = lambda least, most: tuple(draw(st.integers(least, most)) for _ in range(rank))  # noqa: E731
    n, inputs, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 9))
    kernel, stride, padding, dilation = each(1, 3), each(1, 3), each(0, 3), each(1, 2)
    least = [max(d * (k - 1) + 1 - 2 * p, 1) for d, k, p in zip(dilation, kernel, padding, strict=True)]
    size = tuple(m + draw(st.integers(0, 5)) for m in least)
    x = drawn((n, inputs * groups, *size))
    w = drawn((outputs * groups, inputs, *kernel), 1)
    placing = stride, padding, dilation
    y = NUMPY.conv2d(x, w, *placing, groups)
    g = drawn(y.shape, 2)
    x, w, g = (strided(array, draw(st.sampled_from(LAYOUTS))) for array in (x, w, g))
    expected = three(NUMPY, x, w, g, placing, groups)
    backend = CpuBackend(1, draw(st.sampled_from(EVERY_WAY)))
    for out in (False, True):
        for a, b in zip(three(backend, x, w, g, placing, groups, out), expected, strict=True):
            close(a, b)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_matrix_products_are_numpys(data):
    draw = data.draw
    m, k, n = (draw(st.sampled_from([1, 2, 63, 64, 100, 150])) for _ in range(3))
    batch = draw(st.sampled_from([(), (3,), (2, 3), (1, 3)]))
    a, b = drawn((*batch, m, k)), drawn((*draw(st.sampled_from([(), batch, (1,) * len(batch)])), k, n), 1)
    turned = lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)  # noqa: E731
    ways = {"plain": lambda x: x, "turned": turned, "every other": lambda x: strided(x, "every other")}
    a, b = (ways[draw(st.sampled_from(sorted(ways)))](x) for x in (a, b))
    expected = NUMPY.matmul(a, b)
    backend = CpuBackend(1, draw(st.sampled_from(["", "numpy", "gemm", "plain", "blocked"])))
    close(backend.matmul(a, b), expected)
    out = ways[draw(st.sampled_from(sorted(ways)))](np.full(expected.shape, 7, "f"))
    assert backend.matmul(a, b, out) is out
    close(out, expected)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_max_pooling_and_its_gradient_are_numpys(data):
    """Also where elements of a window are equal: the first one gets the gradient."""
    draw = data.draw
    rank = draw(st.integers(1, 3))
    kernel, stride = (tuple(draw(st.integers(1, 3)) for _ in range(rank)) for _ in range(2))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 17)), *(k + draw(st.integers(0, 9)) for k in kernel))
    x = np.round(drawn(shape))
    y = NUMPY.max_pool2d(x, kernel, stride)
    g = drawn(y.shape, 1)
    if draw(st.booleans()):
        x[0, 0], x[-1, -1] = draw(st.sampled_from([np.nan, np.inf, -np.inf])), -np.inf
    x, g = (strided(array, draw(st.sampled_from(LAYOUTS[:-1]))) for array in (x, g))
    backend = CpuBackend(1, draw(st.sampled_from(["", "numpy", "plain", "nhwc"])))
    expected = NUMPY.max_pool2d(x, kernel, stride)
    np.testing.assert_array_equal(backend.max_pool2d(x, kernel, stride), expected)
    np.testing.assert_array_equal(backend.max_pool2d(x, kernel, stride, np.zeros_like(y)), expected)
    close(backend.max_pool2d_grad(g, x, kernel, stride), NUMPY.max_pool2d_grad(g, x, kernel, stride))


@pytest.mark.parametrize("way", ["", *EVERY_WAY])
def test_dtypes_that_onednn_does_not_compute(way):
    backend = CpuBackend(1, way)
    placing = (1, 1), (1, 1), (1, 1)
    for dtype in ("d", "e", ">f4"):
        x, w = drawn((2, 3, 8, 8), dtype=dtype), drawn((4, 3, 3, 3), 1, dtype)
        y = NUMPY.conv2d(x, w, *placing, 1)
        for a, b in zip(three(backend, x, w, y, placing, 1), three(NUMPY, x, w, y, placing, 1), strict=True):
            np.testing.assert_array_equal(a, b, strict=True)
        pooled = backend.max_pool2d(x, (2, 2), (2, 2))
        np.testing.assert_array_equal(pooled, NUMPY.max_pool2d(x, (2, 2), (2, 2)), strict=True)
    for dtype in ("d", "e", "D", "F", "i", "q", "?"):
        a, b = (np.ones((70, 70), dtype),) * 2
        np.testing.assert_array_equal(backend.matmul(a, b), NUMPY.matmul(a, b), strict=True)


@pytest.mark.parametrize("way", ["", *EVERY_WAY])
def test_nothing_to_compute(way):
    backend, placing = CpuBackend(1, way), ((1, 1), (0, 0), (1, 1))
    for n, c, o in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        x, w, g = drawn((n, c, 5, 5)), drawn((o, c, 3, 3)), drawn((n, o, 3, 3))
        for a, b in zip(three(backend, x, w, g, placing, 1), three(NUMPY, x, w, g, placing, 1), strict=True):
            np.testing.assert_array_equal(a, b, strict=True)
    for m, k, n in ((0, 100, 100), (100, 0, 100), (100, 100, 0)):
        product = backend.matmul(drawn((m, k)), drawn((k, n)))
        np.testing.assert_array_equal(product, np.zeros((m, n), "f"), strict=True)


@pytest.mark.parametrize("way", EVERY_WAY)
def test_what_is_no_number_stays(way):
    backend, placing = CpuBackend(1, way), ((1, 1), (0, 0), (1, 1))
    x, w = drawn((1, 8, 12, 12)), drawn((8, 8, 3, 3), 1)
    x[0, 0, 2, 2], x[0, 1, 9, 9] = np.nan, np.inf
    expected = NUMPY.conv2d(x, w, *placing, 1)
    got = backend.conv2d(x, w, *placing, 1)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    a = drawn((80, 80))
    a[3, 4], a[70, 0] = np.nan, -np.inf
    got, expected = backend.matmul(a, drawn((80, 80), 1)), NUMPY.matmul(a, drawn((80, 80), 1))
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))


@pytest.mark.parametrize("way", ["", *EVERY_WAY])
def test_memory_that_is_unaligned_or_shared(way):
    """Arrays that begin between two elements, and results that are written over an operand."""
    backend, placing = CpuBackend(1, way), ((1, 1), (1, 1), (1, 1))
    x, w = drawn((1, 4, 9, 9)), drawn((4, 4, 3, 3), 1)
    expected = NUMPY.conv2d(x, w, *placing, 1)
    memory = np.zeros(x.nbytes + 1, np.uint8)
    unaligned = np.frombuffer(memory, "f", x.size, offset=1).reshape(x.shape)
    unaligned[...] = x
    close(backend.conv2d(x, w, *placing, 1), expected)  # the shapes are known now
    close(backend.conv2d(unaligned, w, *placing, 1), expected)
    both = np.zeros((2, *x.shape), "f")
    both[0] = x
    over = both.reshape(-1)[x.size // 2 :][: x.size].reshape(x.shape)
    close(backend.conv2d(both[0], w, *placing, 1, over), expected)
    a = drawn((80, 80))
    expected = a @ a
    assert backend.matmul(a, a.copy(), a) is a
    close(a, expected)


def test_results_that_are_no_plain_array():
    backend, placing = CpuBackend(1, "nhwc"), ((1, 1), (1, 1), (1, 1))
    x, w = drawn((2, 8, 9, 9)), drawn((8, 8, 3, 3), 1)
    expected = NUMPY.conv2d(x, w, *placing, 1)
    for layout in ("channels last", "every other", "reversed"):
        out = strided(np.zeros_like(expected), layout)
        before = out.strides
        assert backend.conv2d(x, w, *placing, 1, out) is out
        assert out.strides == before
        close(out, expected)


def test_training_computes_what_numpy_does():
    def gradients(backend):
        with flnb.use_backend(backend):
            x, w = (
                flnb.Variable(flnb.asarray(drawn((4, 3, 16, 16)))),
                flnb.Variable(flnb.asarray(drawn((8, 3, 5, 5), 1))),
            )
            v = flnb.Variable(flnb.asarray(drawn((8 * 36, 70), 2)))
            y = flnb.max_pool2d(flnb.relu(flnb.conv2d(x, w)), 2)
            (flnb.reshape(y, (4, 8 * 36)) @ v).mean().backward()
            return [np.array(leaf.grad) for leaf in (x, w, v)]

    for a, b in zip(gradients("cpu"), gradients("numpy"), strict=True):
        close(a, b)


class Counting:
    """Counts the calls of primitives, on any backend."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def conv2d(self, *arguments):
        self.calls.append("conv2d")
        return super().conv2d(*arguments)

    def conv2d_weight_grad(self, *arguments):
        self.calls.append("conv2d_weight_grad")
        return super().conv2d_weight_grad(*arguments)

    def matmul(self, a, b):
        self.calls.append("matmul")
        return super().matmul(a, b)

    def add(self, a, b, out=None):
        self.calls.append("add")
        return np.add(a, b, out=out)


class CountingNumpy(Counting, NumpyBackend):
    pass


class CountingCpu(Counting, CpuBackend):
    pass


def test_primitives_that_a_class_overrides_are_called_as_often_as_on_numpy():
    def calls(backend):
        with flnb.use_backend(backend):
            x, w = flnb.Variable(flnb.ones((2, 3, 12, 12))), flnb.Variable(flnb.ones((64, 3, 3, 3)))
            y = flnb.reshape(flnb.conv2d(x, w, flnb.ones(64)), (200, 64)) @ flnb.ones((64, 64))
            flnb.softmax(y, axis=1).sum().backward()
        return backend.calls

    assert calls(CountingCpu()) == calls(CountingNumpy())


def test_a_derived_class_may_have_a_constructor_of_its_own():
    class Mine(CpuBackend):
        def __init__(self):
            self.calls = 0

        def conv2d(self, *arguments):
            self.calls += 1
            return super().conv2d(*arguments)

    with flnb.use_backend(Mine()) as backend:
        y = flnb.conv2d(flnb.ones((1, 8, 9, 9)), flnb.ones((8, 8, 3, 3)))
    assert (backend.calls, y.tolist()[0][0][0][0]) == (1, 72.0)


def test_choices_show_what_was_timed():
    backend = CpuBackend(1)
    x, w = drawn((1, 5, 21, 21)), drawn((7, 5, 3, 3), 1)
    before = set(CpuBackend.choices)
    backend.conv2d(x, w, (1, 1), (0, 0), (1, 1), 1)
    (made,) = set(CpuBackend.choices) - before
    assert (made.op, made.threads) == ("conv", 1)
    assert made.operands[0] == (x.shape, contiguous(x.shape))
    assert made.attributes == ((1, 1), (0, 0), (1, 1), 1)
    choice = CpuBackend.choices[made]
    assert choice.seconds[choice.way] <= 1.05 * min(choice.seconds.values())
    assert set(choice.seconds) == {"plain", "nhwc", "blocked", "numpy"}
    assert bool(choice.implementation) == (choice.way != "numpy")
    backend.conv2d(x + 1, w, (1, 1), (0, 0), (1, 1), 1)
    assert set(CpuBackend.choices) - before == {made}


def test_a_recording_has_each_op_once():
    with flnb.use_backend(CpuBackend(1)), flnb.record("timed") as run:
        x = flnb.Variable(flnb.ones((1, 5, 22, 22)))
        flnb.conv2d(x, flnb.ones((7, 5, 3, 3))).sum().backward()
    assert run.ops["conv2d"].count == run.ops["conv2d_input_grad"].count == 1


def test_several_threads_at_once():
    """With the same shapes: each has addresses of its own."""
    backend, placing = CpuBackend(1, "blocked"), ((1, 1), (1, 1), (1, 1))
    w = drawn((16, 16, 3, 3), 1)
    images = [drawn((2, 16, 20, 20), seed) for seed in range(4)]
    expected = [NUMPY.conv2d(x, w, *placing, 1) for x in images]
    failed = []

    def work(x, y):
        try:
            for _ in range(50):
                close(backend.conv2d(x, w, *placing, 1), y)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(images, expected, strict=True)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed


def test_as_many_threads_as_asked_for():
    placing = (1, 1), (1, 1), (1, 1)
    x, w = drawn((4, 32, 20, 20)), drawn((32, 32, 3, 3), 1)
    expected = NUMPY.conv2d(x, w, *placing, 1)
    for threads in (1, 2, 1):
        for way in EVERY_WAY:
            close(CpuBackend(threads, way).conv2d(x, w, *placing, 1), expected)
    with flnb.use_backend("cpu:threads=2,prefer=nhwc") as backend:
        assert (backend.threads, backend.prefer) == (2, "nhwc")
    assert CpuBackend().threads >= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threads": 0.5}, "threads must be at least 1, got 0"),
        ({"prefer": "fast"}, "prefer must be guess or one of numpy, gemm, plain"),
    ],
)
def test_settings_that_are_wrong(settings, message):
    with pytest.raises(ValueError, match=message):
        CpuBackend(**settings)
