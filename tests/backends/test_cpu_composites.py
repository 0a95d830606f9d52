"""Composites of the backend "cpu" by machine code for any shape, beside NumPy's methods and beside float64."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.native import composites, llvm
from flnb_backends.native.llvm import Compiler
from flnb_backends.native.sizes import COLUMNS, ROWS, ByRows
from flnb_backends.tensor import cpu_composites
from flnb_backends.tensor.whole import Whole
from hypothesis import given, settings
from hypothesis import strategies as st

import flnb
from flnb.dispatch.table import OPS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="there is no oneDNN to install"
)
pytest.importorskip("llvmlite")
pytest.importorskip("cffi")

CODE, NUMPY = cpu_composites.Composites(), Whole()
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 1e30, -1e30]
SHAPES = st.lists(st.integers(0, 9), min_size=1, max_size=3) | st.tuples(st.integers(1, 3), st.sampled_from([33, 257]))


def drawn(shape: tuple[int, ...], seed: int = 0, special: bool = False) -> Any:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=shape) * 2
    return np.where(draw.random(shape) < 0.1, draw.choice(SPECIAL, shape), x) if special else x


def calls(name: str, shape: tuple[int, ...], special: bool = False) -> Iterator[tuple[list[Any], tuple[Any, ...]]]:
    """Inputs, in float64, and attributes with which a composite may be called."""
    x = drawn(shape, 0, special)
    if name == "layer_norm":
        for count in range(1, len(shape) + 1):
            row = shape[len(shape) - count :]
            yield from [([x, drawn(row, 1), drawn(row, 2)][: 1 + k], (count, 1e-5)) for k in range(3)]
    elif name == "batch_norm":
        if len(shape) > 1 and x.size:
            yield [x, drawn(shape[1:2], 1), drawn(shape[1:2], 2)], (1e-5,)
    elif name == "cross_entropy":
        if x.size:
            x = x.reshape(x.size // shape[-1], shape[-1])
            targets = np.random.default_rng(1).integers(0, shape[-1], len(x))
            yield from [([x, targets], (reduction,)) for reduction in ("mean", "sum", "none")]
    elif name in ("softmax", "log_softmax"):
        yield from [([x], (axis,)) for axis in range(len(shape)) if x.size]
    else:
        yield [x], ()


def run(methods: Any, name: str, inputs: list[Any], attributes: tuple[Any, ...], g: Any, out: bool = False) -> Any:
    """The results of a composite and of its pull."""
    results = getattr(methods, name)(*inputs, *attributes)
    if out:
        given_arrays = tuple([np.full_like(y, 7) for y in results])
        results = getattr(methods, name)(*inputs, *attributes, out=given_arrays)
        assert all(any(y is z for z in given_arrays) for y in results)
    *reads, reads_result = OPS[name].saved(-1, len(inputs))
    saved = [x if read else None for x, read in zip(inputs, reads, strict=True)]
    arguments = g, *saved, *results[1:], results[0] if reads_result else None, *attributes
    return results, getattr(methods, f"{name}_pull")(*arguments)


def cast(x: Any, dtype: str) -> Any:
    """An array of floating-point numbers in a dtype; one of integers as it is."""
    return x.astype(dtype) if x.dtype.kind == "f" else x


def nudged(x: Any, seed: int) -> Any:
    """An array with elements moved to a neighbouring number, up or down; one of integers as it is."""
    if x.dtype.kind != "f":
        return x
    return np.nextafter(x, np.copysign(np.inf, drawn(x.shape, seed)).astype(x.dtype)) if seed else x


def compare(name: str, inputs: list[Any], attributes: tuple[Any, ...], dtype: str, out: bool = False) -> None:
    """The code computes what NumPy's methods do, with the same NaN and infinities, and as precisely.

    An error may be twice NumPy's, which is the largest for these inputs and some whose last bits differ.
    """
    with np.errstate(all="ignore"):
        inputs = [cast(x, dtype) for x in inputs]
        g = drawn(getattr(NUMPY, name)(*inputs, *attributes)[0].shape, 3).astype(dtype)
        exact = run(NUMPY, name, [cast(x, "d") for x in inputs], attributes, g.astype("d"))
        got = run(CODE, name, inputs, attributes, g, out)
        numpys = [
            run(NUMPY, name, [nudged(x, seed) for x in inputs], attributes, nudged(g, seed and 9)) for seed in range(4)
        ]
    for a, e, *others in zip(*[[*results, *pulled] for results, pulled in (got, exact, *numpys)], strict=True):
        b = others[0]
        if b is None:  # class numbers have no gradient
            assert a is None
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        fine = np.isfinite(b)
        np.testing.assert_array_equal(a[~fine], b[~fine])
        if fine.any():
            error, *allowed = (np.abs(v[fine] - e[fine]).max() for v in (a, *others))
            rounding = 1e-12 if dtype == "d" else 0.0  # with which what is compared was computed
            assert error <= 2 * max(allowed) + 8 * np.finfo(dtype).eps * np.abs(e[fine]).max() + rounding


def kernel(name: str, dtype: str, pulls: bool) -> Any:
    """The machine code for the last of the calls of a composite."""
    inputs, attributes = list(calls(name, (6, 5)))[-1]
    rows = cpu_composites.COMPOSITES[name]
    count = len(inputs) + (2 + rows.kept) * pulls
    return cpu_composites.call(name, pulls, count, (6, 5), np.dtype(dtype), attributes)


@pytest.mark.parametrize("name", cpu_composites.COMPOSITES)
def test_there_is_code_for_float32_and_for_float64_without_exponentials(name: str) -> None:
    for pulls in (False, True):
        assert kernel(name, "f", pulls) is not None
    assert (kernel(name, "d", False) is not None) is (name in ("relu", "layer_norm", "batch_norm"))


@pytest.mark.parametrize("name", cpu_composites.COMPOSITES)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_shape(name: str, data: st.DataObject) -> None:
    shape = tuple(data.draw(SHAPES))
    dtype, out = data.draw(st.sampled_from("fd")), data.draw(st.booleans())
    special = data.draw(st.booleans())
    for inputs, attributes in calls(name, shape, special):
        compare(name, inputs, attributes, dtype, out)


@pytest.mark.parametrize("name", cpu_composites.COMPOSITES)
def test_long_rows_and_many_rows(name: str) -> None:
    """Sums are divided into chunks, and of columns into groups of rows."""
    for shape in ((3, 5001), (301, 7)):
        inputs, attributes = list(calls(name, shape))[-1]
        compare(name, inputs, attributes, "f")


@pytest.mark.parametrize("name", cpu_composites.COMPOSITES)
def test_numpy_computes_what_is_not_contiguous_or_not_aligned(name: str) -> None:
    apart = np.zeros(4 * 36 + 1, np.uint8)[1:].view("f").reshape(6, 6)
    apart[...] = drawn((6, 6))
    swapped = [drawn((6, 6)).astype(">f4")] * (name == "relu")  # NumPy's products take no other byte order
    for x in (drawn((6, 6)).astype("f").T, drawn((6, 12)).astype("f")[:, ::2], apart, *swapped):
        inputs, attributes = list(calls(name, (6, 6)))[-1]
        inputs = [x, *[cast(p, "f") for p in inputs[1:]]]
        got, expected = (getattr(methods, name)(*inputs, *attributes) for methods in (CODE, NUMPY))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", cpu_composites.COMPOSITES)
def test_memory_that_is_shared(name: str) -> None:
    """A result may take its input's memory; where it takes a part of that, NumPy computes."""
    memory = drawn((8, 6)).astype("f")
    inputs, attributes = list(calls(name, (6, 6)))[-1]
    more = [cast(x, "f") for x in inputs[1:]]
    for place in (0, 1):
        x, y = memory[:6], memory[place : 6 + place]
        x[...] = inputs[0]
        expected = getattr(CODE, name)(x.copy(), *more, *attributes)
        out = (None, y) if name == "cross_entropy" else (y, *[None] * (len(expected) - 1))
        found = cpu_composites.call(name, False, len(inputs), x.shape, x.dtype, attributes)
        assert found is not None
        assert (found(x, *more, *attributes, out) is None) is (place > 0)
        if place == 0:
            np.testing.assert_array_equal(y, expected[name == "cross_entropy"])


def test_arrays_of_other_sizes_or_dtypes_are_not_read() -> None:
    x, row = np.ones((4, 6), "f"), np.ones(6, "f")
    found = cpu_composites.call("layer_norm", False, 3, x.shape, x.dtype, (1, 1e-5))
    assert found is not None
    assert found(x, row, row, 1, 1e-5, None) is not None
    assert found(x, row, row[:5], 1, 1e-5, None) is None
    assert found(x, row, row.astype("d"), 1, 1e-5, None) is None
    assert found(x, row, row, 1, 1e-5, (np.ones((4, 5), "f"), None, None, None)) is None


def test_one_kernel_serves_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(Compiler, "address", lambda self, *_: made.append(1) or pytest.fail("compiled again"))
    cpu_composites.call.cache_clear()
    for shape in ((3, 4), (5, 6, 7), (2,)):
        flnb_x = np.ones(shape, "f")
        y = CODE.softmax(flnb_x, len(shape) - 1)
        assert y[0].shape == shape
    assert not made


def test_results_are_the_same_at_every_call_and_without_llvmlite_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn((40, 50)).astype("f")
    first, *others = (CODE.softmax(x, 1)[0] for _ in range(30))
    assert all((y == first).all() for y in others)
    monkeypatch.setattr(llvm, "find_spec", lambda name: None)
    for cached in (cpu_composites.call, composites.composite):
        cached.cache_clear()
    try:
        np.testing.assert_array_equal(CODE.softmax(x, 1)[0], NUMPY.softmax(x, 1)[0])
    finally:
        for cached in (cpu_composites.call, composites.composite):
            cached.cache_clear()


def laid(*names: str) -> Any:
    """The typical shapes and dtypes of inputs."""
    shapes = {"full": composites.MATRIX, "row": composites.MATRIX[1:]}
    return tuple([(shapes[name], np.dtype("f")) for name in names])


def test_an_op_that_loop_nests_lack_is_an_error() -> None:
    with pytest.raises(
        TypeError, match=r"^subtract of \['f', 'f'\] with a result of dtype 'f' has no .* an operand is a red"
    ):
        composites.lowered("batch_norm", laid("full", "row", "row"), (1e-5,), False)  # reads sums of columns


@pytest.mark.parametrize("eps", [np.float64(0.1), np.float32(0.1), 1 / ROWS, 1 / COLUMNS])
def test_any_number_may_be_added_to_the_variance(eps: Any) -> None:
    """An eps may be a NumPy number, or equal to the reciprocal of an extent of the traced matrix."""
    x, found = flnb.asarray(drawn((2, 3)).astype("f") / 100), []
    for backend in ("cpu", "numpy"):
        with flnb.use_backend(backend):
            found.append(flnb.batch_norm(x, flnb.ones(3), flnb.zeros(3), eps=eps).numpy())
            found.append(flnb.layer_norm(x, 3, eps=eps).numpy())
    np.testing.assert_allclose(found[:2], found[2:], rtol=1e-4, atol=1e-6)


def test_a_subclass_sees_the_ops_of_composites() -> None:
    class Mine(flnb.backends.CpuBackend):
        calls = 0

        def exp(self, x: Any, out: Any = None) -> Any:
            self.calls += 1
            return np.exp(x, out)

    x = flnb.asarray(drawn((4, 6)).astype("f"))
    with flnb.use_backend(Mine) as backend:
        flnb.softmax(x)
        flnb.layer_norm(x, 6)
    assert backend.calls == 1


def test_one_event_each_and_memory_of_the_manager() -> None:
    x, w, b = flnb.Variable(drawn((64, 64)).astype("f")), flnb.ones(64), flnb.zeros(64)
    with flnb.use_backend("cpu"), flnb.record() as run:
        flnb.layer_norm(x, 64, w, b).backward(flnb.ones((64, 64)))
    counts = {row.key[0]: row.count for row in run.ops.rows}
    assert counts == {"layer_norm": 1, "layer_norm_pull": 1, "full": 1}
    assert all(run.table("op")["alloc_id"])


def test_the_text_names_the_extents() -> None:
    nest, *_ = composites.lowered("softmax", laid("full"), (1,), False)
    text = ByRows(nest).text()
    assert "i64 %rows, i64 %columns)" in text.splitlines()[0]
    assert str(int(COLUMNS)) not in text


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("shape", [(1,), (7, 9), (3, 5, 67)])
def test_selected_elements_have_the_bits_of_numpy(dtype: str, shape: tuple[int, ...]) -> None:
    a, b = (drawn(shape, seed, special=True).astype(dtype) for seed in (1, 2))
    condition, number = drawn(shape, 3) < 0, np.array(-0.0, dtype)
    for x, y in ((a, b), (a, number), (number, b), (number, number)):
        out = np.full(shape, 7, dtype)
        assert composites.select(condition, x, y, out)
        np.testing.assert_array_equal(out.view(np.uint8), np.where(condition, x, y).view(np.uint8))
    assert composites.select(condition, a, b, a)  # in the place of an operand
    np.testing.assert_array_equal(a, out := np.where(condition, a, b))
    assert out.dtype == dtype


def test_numpy_selects_from_other_arrays() -> None:
    x, condition, out = np.ones((4, 6), "f"), np.ones((4, 6), bool), np.zeros((4, 6), "f")
    memory = np.ones((5, 6), "f")
    for arguments in (
        (condition, x[:1], x, out), (condition[:1], x, x, out), (condition, x.astype("d"), x, out),
        (condition.view("b"), x, x, out), (condition, np.ones((6, 4), "f").T, x, out),
        (condition, x, x.astype("i"), out), (condition, memory[1:], x, memory[:4]), (condition[0, 0], x, x, out),
    ):  # fmt: skip
        assert not composites.select(*arguments)
    assert not out.any()
    assert memory.all()
    c = flnb.asarray(drawn((40, 40)) < 0)
    with flnb.use_backend("cpu"):
        y = flnb.where(c, flnb.ones((1, 40)), flnb.zeros((40, 40))).numpy()
    np.testing.assert_array_equal(y, c.numpy().astype("f"))
