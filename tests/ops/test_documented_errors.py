"""Errors that docstrings of ops announce are those that calls with wrong arguments raise."""

import functools
import inspect
import re

import numpy as np
import pytest

import flnb

X, V, C = np.ones((2, 3), np.float32), np.ones(2, np.float32), np.ones(2, np.complex64)
EMPTY, FOUR = np.ones((0, 2), np.float32), np.ones(4, np.float32)
AXIS, VALUE, INDEX, TYPE = np.exceptions.AxisError, ValueError, IndexError, TypeError
MESSAGE = "expect|got|must|out of range|known|broadcast|agree|larger|required|but the|does not fit"

WRONG = [
    *((name, (X,), {"axis": 7}, AXIS) for name in (
        "softmax", "log_softmax", "mean", "var", "std", "sort", "argsort", "median", "count_nonzero", "diff", "flip",
        "expand_dims", "unstack", "max_with_indices", "min_with_indices", "linalg.vector_norm", "norm", "normalize",
        "prod", "argmax", "argmin", "cumulative_sum", "cumulative_prod")),
    *((name, (EMPTY,), {"axis": 0}, VALUE) for name in ("median", "max_with_indices", "min_with_indices")),
    *((name, (V,), {}, VALUE) for name in (
        "tril", "triu", "matrix_transpose", "linalg.qr", "linalg.svd", "linalg.svdvals", "linalg.pinv", "linalg.trace",
        "linalg.diagonal", "linalg.matrix_norm", "linalg.matrix_rank")),
    *((name, (X,), {}, VALUE) for name in (
        "linalg.det", "linalg.slogdet", "linalg.eigh", "linalg.eigvalsh")),
    *((name, (-1,), {}, VALUE) for name in (
        "zeros", "ones", "empty", "eye", "rand", "randn", "random.normal", "random.uniform", "random.permutation")),
    *((name, (X, V), {}, VALUE) for name in (
        "mse_loss", "l1_loss", "binary_cross_entropy_with_logits", "vecdot", "clip", "linalg.outer", "linalg.cross",
        "linear")),
    *((name, ("none of these",), {}, VALUE) for name in (
        "use_backend", "use_memory_manager", "use_memory_device", "use_tape", "set_backend", "set_memory_manager",
        "set_memory_device", "set_tape", "category")),
    *((f"fft.{name}", (X,), {"axis": 7}, AXIS) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")),
    ("fft.rfft", (C,), {}, TYPE),
    ("full", (-1, 0.0), {}, VALUE),
    ("arange", (0, 1, 0), {}, VALUE),
    ("linspace", (0, 1, -1), {}, VALUE),
    ("moveaxis", (X, 0, 7), {}, AXIS),
    ("roll", (X, 1), {"axis": 7}, AXIS),
    ("take", (X, [0]), {}, VALUE),
    ("take", (V, [9]), {}, INDEX),
    ("take", (V, [0.5]), {}, TYPE),
    ("take_along_axis", (V, [9]), {}, INDEX),
    ("take_along_axis", (V, [0.5]), {}, TYPE),
    ("stack", ([V, FOUR],), {}, VALUE),
    ("tile", (V, (-1,)), {}, VALUE),
    ("repeat", (V, -1), {}, VALUE),
    ("pad", (V, ((1,),)), {}, VALUE),
    ("pad", (V, 1), {}, VALUE),
    ("pad", (V, ((1, 1),)), {"mode": "wrong"}, VALUE),
    ("pad", (V, ((1, 1),)), {"value": 1j}, TYPE),
    ("nll_loss", (X, [0, 9]), {}, INDEX),
    ("dropout", (X,), {"p": 2.0}, VALUE),
    ("random.bernoulli", (2,), {"p": 2.0}, VALUE),
    ("gelu", (X,), {"approximate": "wrong"}, VALUE),
    ("scaled_dot_product_attention", (X, np.ones((2, 4)), X), {}, VALUE),
    ("searchsorted", (X, X), {}, VALUE),
    ("lstm", (X, (X, X), X, X), {}, VALUE),
    ("gru", (X, X, X, X), {}, VALUE),
    ("rnn", (X, X, X, X), {}, VALUE),
    ("norm", (X, "wrong"), {}, VALUE),
    ("linalg.vector_norm", (X,), {"ord": "wrong"}, VALUE),
    ("linalg.matrix_power", (X, 2), {}, VALUE),
    *((f"fft.{name}", (X,), {"axes": (7,)}, AXIS) for name in (
        "ifftn", "rfftn", "irfftn", "fftshift", "ifftshift")),
    *((f"fft.{name}", (X,), {"norm": "wrong"}, VALUE) for name in ("ifftn", "rfftn", "irfftn")),
    ("fft.rfftn", (C,), {}, TYPE),
    ("finfo", ("int8",), {}, TYPE),
    ("iinfo", ("float32",), {}, TYPE),
    ("isdtype", ("float32", "wrong"), {}, VALUE),
    ("result_type", (), {}, VALUE),
    ("meshgrid", (X,), {}, VALUE),
    *((name, ("a",), {}, TYPE) for name in (
        "zeros_like", "ones_like", "empty_like", "swish", "elu", "leaky_relu", "relu6", "relu", "sigmoid",
        "unique_all", "unique_counts", "unique_inverse", "unique_values")),
    ("full_like", ("a", 1.0), {}, TYPE),
    ("threshold", ("a", 0.0), {}, TYPE),
    ("nn.init.constant", ((-1,), 1.0), {}, VALUE),
    *((f"nn.init.{name}", ((3,),), {}, VALUE) for name in ("kaiming_uniform", "glorot_uniform", "glorot_normal")),
    *((f"distributed.{name}", ("wrong",), {}, VALUE) for name in ("use_communicator", "set_communicator")),
    ("why", (X, 3), {}, TYPE),
    ("sparse.from_dense", (V,), {}, VALUE),
]  # fmt: skip


@pytest.mark.parametrize(("path", "arguments", "keywords", "error"), WRONG, ids=str)
def test_what_a_wrong_argument_raises_is_documented(path, arguments, keywords, error):
    function = flnb
    for name in path.split("."):
        function = getattr(function, name)
    with pytest.raises(error, match=MESSAGE) as raised, function(*arguments, **keywords):
        pass  # what is no context manager has raised by now
    assert type(raised.value) is error
    section = re.search(r"^Raises:\n((?: +.*\n?)+)", inspect.getdoc(function), re.MULTILINE)
    assert section, f"{path}: no section on errors"
    assert f"{error.__name__}: " in section[1]


NAMED = [
    *((name, (X,), {"axis": 7}, AXIS) for name in ("mean", "var", "std", "unstack", "fft.fft", "fft.irfft")),
    *((name, (-1,), {}, VALUE) for name in (
        "zeros", "ones", "empty", "eye", "rand", "randn", "random.normal", "random.uniform", "random.bernoulli")),
    *((name, ((2,),), {"dtype": "wrong"}, TYPE) for name in ("zeros", "random.uniform")),
    *((name, (flnb.Variable(1.0), 1, 3), {}, TYPE) for name in ("linspace", "arange")),
    ("arange", ("a",), {}, TYPE),
    ("zeros", ("a",), {}, TYPE),
    ("mean", ("a",), {}, TYPE),
    ("clip", (X, V), {}, VALUE),
    ("stack", ([V, FOUR],), {}, VALUE),
    ("linalg.trace", (V,), {}, VALUE),
]  # fmt: skip


@pytest.mark.parametrize(("path", "arguments", "keywords", "error"), NAMED, ids=str)
def test_an_error_begins_with_the_name_of_the_called_function(path, arguments, keywords, error):
    *_, name = path.split(".")
    function = functools.reduce(getattr, path.split("."), flnb)
    with pytest.raises(error) as raised:
        function(*arguments, **keywords)
    assert str(raised.value).startswith(f"{name}: ")
    assert type(raised.value) is error
    assert "np." not in str(raised.value)


def test_errors_of_python_and_of_backends_stay_as_they_are():
    class Broken(flnb.backends.NumpyBackend):
        def sum(self, *arguments):
            raise ValueError("cable: not plugged in")

    with flnb.use_backend(Broken()), pytest.raises(ValueError, match=r"^cable: not plugged in\nin 'sum'"):
        flnb.mean(flnb.ones(3))
    with pytest.raises(TypeError, match=r"^normal\(\) got an unexpected keyword argument 'size'"):
        flnb.random.normal(size=3)
