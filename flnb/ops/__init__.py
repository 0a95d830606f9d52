"""The namespace of all public ops, which are also attached to Tensor as operators and methods: ``a + b`` is `add`."""

# ruff: noqa: F403, F405 (`__all__` says what is public)

from __future__ import annotations

from inspect import getattr_static
from typing import Any

from flnb.dispatch.failure import failed_function
from flnb.dispatch.spelling import SPELT, Elsewhere
from flnb.dispatch.state import current
from flnb.ops.activation import elu, gelu, glu, hardtanh, leaky_relu, prelu, relu6, swish, threshold
from flnb.ops.arranging import *
from flnb.ops.attention import scaled_dot_product_attention
from flnb.ops.composite import *
from flnb.ops.convolution import *
from flnb.ops.creation import *
from flnb.ops.documentation import public
from flnb.ops.dtypes import can_cast, finfo, iinfo, isdtype, result_type
from flnb.ops.elementwise import *
from flnb.ops.indexing import getitem, setitem, take, take_along_axis
from flnb.ops.interop import apply_function, apply_ufunc
from flnb.ops.linalg import *
from flnb.ops.loss import *
from flnb.ops.movement import *
from flnb.ops.normalization import batch_norm, group_norm, layer_norm, norm, normalize
from flnb.ops.recurrent import gru, lstm, rnn
from flnb.ops.reduction import *
from flnb.ops.sorting import *
from flnb.tensor import Tensor

__all__ = [
    "abs", "acos", "acosh", "add", "all", "any", "arange", "argmax", "argmin", "argsort", "asarray", "asin", "asinh",
    "assign", "astype", "atan", "atan2", "atanh", "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "bitwise_and", "bitwise_invert", "bitwise_left_shift",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "broadcast_arrays", "broadcast_to", "can_cast", "ceil", "clip",
    "concat", "conj", "conv1d", "conv2d", "conv3d", "copy", "copysign", "cos", "cosh", "count_nonzero", "cross_entropy",
    "cumulative_prod", "cumulative_sum", "diff", "divide", "dropout", "elu", "embedding", "empty", "empty_like",
    "equal", "erf", "exp", "expand_dims", "expm1", "eye", "finfo", "flatten", "flip", "floor", "floor_divide",
    "from_dlpack", "full", "full_like", "gelu", "glu", "greater", "greater_equal", "group_norm", "gru", "hardtanh",
    "hypot", "iinfo", "imag", "iota", "isdtype", "isfinite", "isinf", "isnan", "l1_loss", "layer_norm", "leaky_relu",
    "less", "less_equal", "linear", "linspace", "log", "log10", "log1p", "log2", "log_softmax", "logaddexp",
    "logical_and", "logical_not", "logical_or", "logical_xor", "lstm", "matmul", "matrix_transpose", "max",
    "max_pool1d", "max_pool2d", "max_pool3d", "max_with_indices", "maximum", "mean", "median", "meshgrid", "min",
    "min_with_indices", "minimum", "moveaxis", "mse_loss", "multiply", "negative", "nextafter", "nll_loss", "nonzero",
    "norm", "normalize", "not_equal", "ones", "ones_like", "pad", "permute_dims", "positive", "pow", "prelu", "prod",
    "real", "reciprocal", "relu", "relu6", "remainder", "repeat", "reshape", "result_type", "rnn", "roll", "round",
    "scaled_dot_product_attention", "searchsorted", "sigmoid", "sign", "signbit", "sin", "sinh", "softmax", "sort",
    "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum", "swish", "take", "take_along_axis", "tan", "tanh",
    "tensordot", "threshold", "tile", "topk", "tril", "triu", "trunc", "unique_all", "unique_counts", "unique_inverse",
    "unique_values", "unstack", "var", "vecdot", "where", "zeros", "zeros_like",
]  # fmt: skip

for _name in __all__:
    globals()[_name] = public(globals()[_name])


def _attach() -> None:
    """Attach operators and methods to Tensor; method names of torch and NumPy raise an error with flnb's name."""
    methods: dict[str, Any] = {name: globals()[name] for name in _METHODS}
    methods |= {"__matmul__": matmul, "__rmatmul__": _reflected(matmul), "__imatmul__": _in_place(_matmul, "matmul")}
    for symbol, function in _OPERATORS.items():
        methods[f"__{symbol}__"] = function
        methods[f"__r{symbol}__"] = _reflected(function)
        methods[f"__i{symbol}__"] = _in_place(function, symbol)
    methods |= {f"__{symbol}__": function for symbol, function in _COMPARISONS.items()}
    methods |= {"__neg__": negative, "__pos__": positive, "__abs__": abs, "__invert__": bitwise_invert}
    methods |= {"__getitem__": _getitem, "__setitem__": _setitem, "_of": staticmethod(asarray)}
    methods |= {"__array_ufunc__": apply_ufunc, "__array_function__": apply_function}
    for name, function in methods.items():
        setattr(Tensor, name, function)
    foreign = {name: meant for name, meant in SPELT.items() if name.islower()}
    for name, meant in (foreign | {name: f"flnb.{name}" for name in __all__}).items():
        if not hasattr(Tensor, name):
            setattr(Tensor, name, Elsewhere(name, meant))
    Tensor.__dir__ = _public_names  # type: ignore[method-assign, assignment]


def _public_names(tensor: Any) -> list[str]:
    """Return ``dir(tensor)`` without the method names of torch and NumPy, which only raise an error."""
    return [name for name in object.__dir__(tensor) if not isinstance(getattr_static(tensor, name), Elsewhere)]


def _getitem(self: Any, key: Any) -> Any:
    """Return ``self[key]``; an error is recorded as a failed op."""
    try:
        return getitem(self, key)
    except Exception as error:
        failed_function(error, "getitem", "movement", (self,))
        raise


def _setitem(self: Any, key: Any, value: Any) -> None:
    """Write ``self[key] = value``; an error is recorded as a failed op."""
    try:
        setitem(self, key, value)
    except Exception as error:
        failed_function(error, "setitem", "movement", (self,))
        raise


def _matmul(a: Any, b: Any, out: Any = None) -> Any:
    """Return the matrix product, written into ``out`` if that is given; used for ``a @ b`` and ``a @= b``."""
    product = matmul(a, b)
    if out is not None and product._spec is not out._spec:
        raise ValueError(f"matmul: the result is {product._spec!r} but out is {out._spec!r}; they must be equal")
    return product if out is None else assign(out, product)


def _reflected(function: Any) -> Any:
    """Return the reflected method of a binary operator: ``__radd__`` if ``function(a, b)`` computes a + b."""
    return lambda self, other: function(other, self)


def _in_place(function: Any, symbol: str) -> Any:
    """Make the method of an in-place operator such as ``+=``, named ``symbol`` in errors.

    The method writes the result into the tensor and returns the tensor. While gradients are recorded, the result of an
    op is not overwritten: the method returns a new Variable, and Python binds the name on the left side to it.
    """

    def apply(self: Any, other: Any) -> Any:
        if self._node is None or not current().grad:
            return function(self, other, out=self)
        if self.is_leaf:
            raise RuntimeError(
                f"__i{symbol}__: a leaf that requires grad cannot be changed in place while gradients are recorded; "
                f"wrap the update in `with flnb.no_grad():`"
            )
        return function(self, other)

    return apply


def _unless_none(compare: Any) -> Any:
    """Make the method of ``==`` or ``!=`` from an elementwise comparison; ``x == None`` compares identity instead."""
    return lambda self, other: NotImplemented if other is None else compare(self, other)


_OPERATORS = {
    "add": add, "sub": subtract, "mul": multiply, "truediv": divide, "floordiv": floor_divide, "mod": remainder,
    "pow": pow, "and": bitwise_and, "or": bitwise_or, "xor": bitwise_xor,
    "lshift": bitwise_left_shift, "rshift": bitwise_right_shift,
}  # fmt: skip
_COMPARISONS = {
    "lt": less, "le": less_equal, "gt": greater, "ge": greater_equal,
    "eq": _unless_none(equal), "ne": _unless_none(not_equal),
}  # fmt: skip
_METHODS = (
    "all", "any", "argmax", "argmin", "argsort", "astype", "clip", "copy", "cumulative_sum", "exp", "flatten", "flip",
    "log", "max", "mean", "min", "permute_dims", "pow", "prod", "relu", "repeat", "reshape", "round", "sigmoid", "sort",
    "sqrt", "square", "squeeze", "std", "sum", "take", "tanh", "var",
)  # fmt: skip
_attach()
