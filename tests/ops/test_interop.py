"""Tensors beside NumPy and torch: shared memory, operators, and what NumPy's functions say."""

import gc

import numpy as np
import pytest

import flnb
from flnb.dispatch.dtypes import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_reads_a_tensors_memory_and_keeps_it(dtype):
    x = flnb.ones((40, 30), dtype=dtype)
    array = np.from_dlpack(x)
    x[1, 1] = 0
    assert (array.dtype, array.shape, array[1, 1]) == (np.dtype(dtype), (40, 30), 0)
    del x
    gc.collect()
    flnb.zeros((40, 30), dtype=dtype)  # would take the block if it were free
    assert array.sum() == 40 * 30 - 1 if dtype != "bool" else not array.all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_on_numpys_memory(dtype):
    array = np.zeros((3, 4), dtype)[:, ::2]
    x = flnb.from_dlpack(array)
    copied = flnb.from_dlpack(array, copy=True)
    array[2, 1] = 1
    assert (x.shape, x.dtype, x[2, 1].item()) == ((3, 2), np.dtype(dtype), 1)
    assert not copied.astype(bool).any()
    x[0, 0] = 1
    assert array[0, 0] == 1
    assert flnb.reshape(x, (6,)).tolist() == array.ravel().tolist()


def test_gradients_flow_through_a_tensor_on_shared_memory():
    array = np.array([1.0, 2.0])
    v = flnb.Variable(flnb.from_dlpack(array))
    (v * v).sum().backward()
    assert v.grad.tolist() == [2.0, 4.0]
    with pytest.raises(RuntimeError, match=r"use \.detach\(\)\.numpy\(\)"):
        np.from_dlpack(v)
    assert np.from_dlpack(v.detach()).tolist() == [1.0, 2.0]


def test_what_cannot_be_shared():
    with pytest.raises(TypeError, match=r"from_dlpack: expected an array with __dlpack__, got list; use flnb\.asarray"):
        flnb.from_dlpack([1.0])
    with pytest.raises(ValueError, match="device must be 'cpu'"):
        flnb.from_dlpack(np.ones(2), device="cuda")
    with pytest.raises(ValueError, match=r"copy=False needs a Tensor, .*; flnb\.from_dlpack\(array\) shares"):
        flnb.asarray(np.ones(2), copy=False)
    with pytest.raises(ValueError, match=r"asarray: float32\[2\] cannot become int8 without a copy"):
        flnb.asarray(flnb.ones((2,)), dtype="int8", copy=False)
    x = flnb.ones((2,))
    assert flnb.asarray(x, copy=False) is x


def test_devices():
    x = flnb.ones((2,), device="cpu")
    assert x.device == "cpu"
    assert x.to_device("cpu") is x
    assert x.__dlpack_device__() == (1, 0)
    for call in (lambda: flnb.zeros((2,), device="cuda"), lambda: x.to_device("gpu"), lambda: x.astype(int, device=0)):
        with pytest.raises(ValueError, match=r"device must be 'cpu' \(or None\), got"):
            call()
    with pytest.raises(ValueError, match="'cpu' has no streams, got 1"):
        x.to_device("cpu", stream=1)


ARRAY = np.array([5.0, 6.0, 7.0], np.float32)
OPERATORS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "**": lambda a, b: a**b, "@": lambda a, b: a @ b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip


@pytest.mark.parametrize("symbol", OPERATORS)
def test_operators_with_an_array_on_the_left_are_ours(symbol):
    operator = OPERATORS[symbol]
    x = flnb.Variable([1.0, 2.0, 4.0])
    y = operator(ARRAY, x)
    assert isinstance(y, flnb.Variable)
    np.testing.assert_allclose(y.data.numpy(), operator(ARRAY, np.array([1.0, 2.0, 4.0], np.float32)), rtol=1e-6)
    assert y.requires_grad == (symbol in ("+", "-", "*", "/", "%", "**", "@"))
    assert isinstance(operator(ARRAY[0], x) if symbol != "@" else y, flnb.Variable)


def test_bits_with_an_array_on_the_left_are_ours():
    left, right = np.array([6, 7]), flnb.asarray([1, 2])
    for got, expected in [
        (left & right, [0, 2]), (left | right, [7, 7]), (left ^ right, [7, 5]), (left << right, [12, 28]),
        (left >> right, [3, 1]),
    ]:  # fmt: skip
        assert isinstance(got, flnb.Tensor)
        assert got.tolist() == expected


def test_an_array_does_not_become_a_tensor_in_place():
    array = np.ones(3, np.float32)
    with pytest.raises(TypeError, match=r"np\.add: a NumPy array cannot take .*; write a = a \+ tensor .*\.numpy\(\)"):
        array += flnb.ones((3,))
    array += flnb.ones((3,)).numpy()
    assert array.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: np.exp(x), r"np\.exp does not compute on flnb Tensors: use flnb\.exp, or give it .*\.numpy\(\)"),
        (lambda x: np.arctan2(x, x), r"np\.arctan2 .*: use flnb\.atan2, or"),
        (lambda x: np.add(x, x), r"np\.add .*: use flnb\.add, or"),
        (lambda x: np.add.reduce(x), r"np\.add .*: use flnb\.add, or"),
        (lambda x: np.cbrt(x), r"np\.cbrt does not compute on flnb Tensors: give it NumPy arrays"),
        (lambda x: np.sum(x), r"np\.sum .*: use flnb\.sum, or"),
        (lambda x: np.concatenate([x, x]), r"np\.concatenate .*: use flnb\.concat, or"),
        (lambda x: np.cumsum(x), r"np\.cumsum .*: use flnb\.cumulative_sum, or"),
        (lambda x: np.where(x > 0, x, 0), r"np\.where .*: use flnb\.where, or"),
    ],
)
def test_numpys_functions_name_ours(call, text):
    with pytest.raises(TypeError, match=text):
        call(flnb.Variable([1.0, 2.0]))


def test_numpys_functions_that_only_numpy_has_get_the_values():
    x = flnb.asarray([1.0, 2.0, 4.0])
    assert np.allclose(x, [1.0, 2.0, 4.0])
    assert np.array_equal(x, x)
    assert np.percentile(x, 50) == 2.0
    assert np.shape([x, x]) == (2, 3)
    assert np.histogram(a=x, bins=2)[0].tolist() == [2, 1]
    with pytest.raises(RuntimeError, match=r"use \.detach\(\)\.numpy\(\)"):
        np.percentile(flnb.Variable([1.0]), 50)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x.sum(dim=1), "sum: no argument is named dim; as in NumPy and the array API it is axis="),
        (lambda x: flnb.mean(x, axis=0, keepdim=True), "mean: no argument is named keepdim; .* it is keepdims="),
        (lambda x: flnb.var(x, unbiased=False), "var: no argument is named unbiased; .* it is correction="),
        (lambda x: flnb.permute_dims(x, dims=(1, 0)), "permute_dims: no argument is named dims; .* it is axes="),
        (lambda x: flnb.concat([x, x], dim=1), "concat: no argument is named dim; .* it is axis="),
        (lambda x: flnb.softmax(x, dim=-1), "softmax: no argument is named dim; .* it is axis="),
        (lambda x: flnb.sort(x, dim=0), "sort: no argument is named dim; .* it is axis="),
    ],
)
def test_torchs_names_are_answered_with_ours(call, text):
    with pytest.raises(TypeError, match=text):
        call(flnb.ones((2, 3)))


def test_other_wrong_arguments_keep_pythons_message():
    with pytest.raises(TypeError, match="unexpected keyword argument 'shoe'"):
        flnb.sum(flnb.ones((2,)), shoe=1)


def test_torch_shares_memory_both_ways():
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to share with")
    x = flnb.asarray(np.arange(2000, dtype=np.float32))
    t = torch.from_dlpack(x)
    t[3] = -1.0
    assert x[3].item() == -1.0
    source = torch.arange(6.0).reshape(2, 3).T
    y = flnb.from_dlpack(source)
    y[1, 1] = 9.0
    assert (y.shape, source[1, 1].item()) == ((3, 2), 9.0)
    assert flnb.asarray(source).tolist() == source.tolist()
    del x
    flnb.zeros((2000,))
    assert t[1999].item() == 1999.0
    for dtype in ("bool", "uint8", "int16", "int64", "float16", "float64", "complex64"):
        there = torch.from_dlpack(flnb.ones((3,), dtype=dtype))
        assert str(there.dtype) == f"torch.{dtype}"
        assert flnb.from_dlpack(there).dtype == dtype
