"""Every public op. `flnb.add(a, b)` and ``a + b`` are one function; Tensor's operators are attached here."""

# ruff: noqa: F403, F405 (`__all__` says what is public)

from __future__ import annotations

from typing import Any

from flnb.dispatch.state import current
from flnb.ops.composite import *
from flnb.ops.convolution import *
from flnb.ops.creation import *
from flnb.ops.elementwise import *
from flnb.ops.linalg import *
from flnb.ops.movement import *
from flnb.ops.reduction import *
from flnb.tensor import Tensor

__all__ = [
    "abs", "add", "all", "any", "arange", "argmax", "argmin", "asarray", "assign", "astype", "avg_pool2d",
    "batch_norm", "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "broadcast_to", "ceil", "clip", "concat", "conv2d", "copy", "cos", "cross_entropy",
    "cumulative_sum", "divide", "dropout", "equal", "erf", "exp", "expand_dims", "expm1", "eye", "flatten", "flip",
    "floor", "floor_divide", "full", "full_like", "greater", "greater_equal", "isfinite", "isinf", "isnan", "less",
    "less_equal", "linear", "log", "log1p", "log_softmax", "logical_and", "logical_not", "logical_or", "logical_xor",
    "matmul", "max", "max_pool2d", "maximum", "mean", "min", "minimum", "multiply", "negative", "nll_loss",
    "not_equal", "ones", "ones_like", "pad", "permute_dims", "pow", "prod", "relu", "remainder", "reshape", "round",
    "sigmoid", "sign", "sin", "softmax", "sqrt", "square", "squeeze", "stack", "std", "subtract", "sum",
    "tanh", "var", "where", "zeros", "zeros_like",
]  # fmt: skip


def _attach() -> None:
    """Give Tensor its operators and methods."""
    methods: dict[str, Any] = {name: globals()[name] for name in _METHODS}
    for symbol, function in _OPERATORS.items():
        methods[f"__{symbol}__"] = function
        methods[f"__r{symbol}__"] = _reflected(function)
        methods[f"__i{symbol}__"] = _in_place(function, symbol)
    methods |= {f"__{symbol}__": function for symbol, function in _COMPARISONS.items()}
    methods |= {"__matmul__": matmul, "__rmatmul__": _reflected(matmul)}
    methods |= {"__neg__": negative, "__abs__": abs, "__invert__": _invert}
    for name, function in methods.items():
        setattr(Tensor, name, function)


def _reflected(function: Any) -> Any:
    return lambda self, other: function(other, self)


def _in_place(function: Any, symbol: str) -> Any:
    def apply(self: Any, other: Any) -> Any:
        if self._node is None or not current().grad:
            return function(self, other, out=self)
        if self.is_leaf:
            raise RuntimeError(
                f"__i{symbol}__: a leaf that requires grad cannot be changed in place while gradients are recorded; "
                f"wrap the update in `with flnb.no_grad():`"
            )
        return function(self, other)  # a result on the tape: the name is bound to a new Variable

    return apply


def _unless_none(compare: Any) -> Any:
    """``x == None`` is a question about identity, which Python answers itself."""
    return lambda self, other: NotImplemented if other is None else compare(self, other)


def _invert(x: Any) -> Any:
    return logical_not(x) if x.dtype.kind == "b" else bitwise_invert(x)


def _bits(logical: Any, bitwise: Any) -> Any:
    def apply(a: Any, b: Any, out: Any = None) -> Any:
        return logical(a, b, out=out) if _is_bool(a) and _is_bool(b) else bitwise(a, b, out=out)

    return apply


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "") == "b"


_OPERATORS = {
    "add": add, "sub": subtract, "mul": multiply, "truediv": divide, "floordiv": floor_divide, "mod": remainder,
    "pow": pow, "and": _bits(logical_and, bitwise_and), "or": _bits(logical_or, bitwise_or),
    "xor": _bits(logical_xor, bitwise_xor), "lshift": bitwise_left_shift, "rshift": bitwise_right_shift,
}  # fmt: skip
_COMPARISONS = {
    "lt": less, "le": less_equal, "gt": greater, "ge": greater_equal,
    "eq": _unless_none(equal), "ne": _unless_none(not_equal),
}  # fmt: skip
_METHODS = (
    "all", "any", "argmax", "argmin", "astype", "copy", "exp", "flatten", "log", "max", "mean", "min", "permute_dims",
    "pow", "prod", "relu", "reshape", "round", "sigmoid", "sqrt", "square", "squeeze", "std", "sum", "tanh", "var",
)  # fmt: skip
_attach()
