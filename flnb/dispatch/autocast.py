"""Automatic mixed precision: lists of ops determine the dtype to which the inputs of each op are cast.

Micikevicius et al., 2018, "Mixed precision training"; levels as in NVIDIA's Apex and Flashlight. Casts are ordinary
`astype` ops. They are on the tape, so that a gradient has the dtype of the tensor before the cast, and they appear in
recordings.

A region, the inside of a ``with flnb.autocast(...)`` block, is an interpreter (`flnb.dispatch.interpreter`): it casts
the inputs of each op. A composite op such as softmax counts as one op. Backward is not affected by regions: it computes
in the dtypes of the forward pass. The inputs of ops that write with ``out=`` are not cast.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry.extras import require

from flnb.dispatch import state
from flnb.dispatch.brief import brief
from flnb.dispatch.crossing import enter
from flnb.dispatch.interpreter import Interpreter
from flnb.dispatch.table import OPS
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Collection

    from flnb.dispatch.state import State
    from flnb.dispatch.table import Op

FLOAT32, HALVES = np.dtype(np.float32), ("float16", "bfloat16")
EVERYTHING = ("*",)
COMPUTING = ("elementwise", "matmul", "reduction", "norm")
"""The values of `Op.family` that ``"*"`` selects; for ops that move or compare elements, the dtype does not matter."""

PRODUCTS = ("matmul", "conv1d", "conv2d", "conv3d", "rnn", "lstm", "gru")
NORMS_AND_LOSSES = (
    "softmax", "log_softmax", "layer_norm", "cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits",
)  # fmt: skip
SENSITIVE = (
    *NORMS_AND_LOSSES, "sum", "prod", "cumulative_sum", "cumulative_prod",
    "exp", "expm1", "log", "log1p", "log2", "log10", "logaddexp", "pow", "square", "reciprocal", "hypot",
    "tan", "sinh", "cosh", "asin", "acos", "acosh", "atanh",
    "solve", "inv", "det", "slogdet", "pinv", "cholesky", "eigh", "eigvalsh", "qr", "svd", "svdvals",
)  # fmt: skip
"""Ops too inaccurate in half precision: sums of many numbers, steep functions, differences of large numbers."""


MIXED = ("batch_norm",)
"""Ops that take and return half precision but compute in float32; their inputs are not cast."""


class CastLevel(NamedTuple):
    """Two lists of op names: ops in ``half`` compute in half precision, ops in ``full`` in float32.

    ``"*"`` stands for all ops that compute. An op in both lists computes in float32. The inputs of an op in neither
    list are not cast; if they have different dtypes, the op computes in the larger dtype.
    """

    half: tuple[str, ...]
    full: tuple[str, ...]


LEVELS = {
    "O0": CastLevel((), ()),
    "O1": CastLevel(PRODUCTS, SENSITIVE),
    "O2": CastLevel(EVERYTHING, NORMS_AND_LOSSES),
    "O3": CastLevel(EVERYTHING, ()),
}


class autocast(state.use):
    """Compute chosen ops in half precision until the block, or the decorated function, ends.

    Args:
        level: "O0" casts nothing, even inside another region. "O1" computes matrix products and convolutions in half
            precision; sums, powers, logarithms, norms and losses in float32; and other ops in the dtype of their
            inputs. Batch norm of half-precision inputs computes in float32 and returns half precision, so that the
            memory for saved tensors is halved. "O2" computes all ops except norms and losses in half precision, for a
            model with parameters in half precision (``model.astype(flnb.float16, keep=nn.BatchNorm)``; optimizers then
            store master weights in float32). "O3" computes everything in half precision.
        dtype: the half-precision dtype, float16 or bfloat16 (which needs the extra "bfloat16").
        half: names of the ops computed in half precision, instead of the level's list (see `LEVELS`). These ops are
            removed from the other list. A composite such as "layer_norm" is one op. Pass a `custom_op` itself.
        full: names of the ops computed in float32, instead of the level's list.

    A parameter is cast once in a region, and again after it was written or after a backward pass. With float16, scale
    the loss: `flnb.optim.LossScaler` has an example of a training loop.

    >>> import flnb
    >>> w = flnb.Variable(flnb.ones((2, 2)))
    >>> with flnb.autocast("O1"):
    ...     y = w @ w
    ...     loss = y.sum()
    >>> y.dtype.name, loss.dtype.name
    ('float16', 'float32')
    >>> loss.backward()
    >>> w.grad.dtype.name
    'float32'
    >>> with flnb.autocast(half=["matmul", "exp"]):
    ...     flnb.exp(flnb.ones(2)).dtype.name
    'float16'

    Raises:
        ValueError: no such level, an op that is not in the table, or a dtype that is not half precision.
        ImportError: bfloat16 without its extra.
    """

    def __init__(
        self, level: str = "O1", dtype: Any = "float16", *,
        half: Collection[Any] | None = None, full: Collection[Any] | None = None,
    ) -> None:  # fmt: skip
        if level not in LEVELS:
            raise ValueError(
                f"autocast: got level {brief(level)}, expected one of {', '.join(LEVELS)}; pass a dtype as dtype="
            )
        chosen, precision = LEVELS[level], _half_precision(dtype)
        names_half = _known("half", chosen.half if half is None else half)
        names_full = _known("full", [n for n in chosen.full if n not in (half or ())] if full is None else full)
        self._targets = dict.fromkeys(names_half, precision) | dict.fromkeys(names_full, FLOAT32)
        super().__init__()

    def chosen(self) -> State:
        self._changes = {"interpreters": (*without_casts(), *([Region(self._targets)] if self._targets else []))}
        return super().chosen()

    def end(self, error: BaseException | None) -> None:
        forget_casts()
        super().end(error)


def _known(which: str, names: Collection[Any]) -> set[str]:
    """Return a set of op names in which ``"*"`` is replaced by all ops that compute.

    ``which`` is the name of the argument of `autocast` that had these names, for error messages.

    Raises:
        ValueError: a name is not in the op table.
        TypeError: ``names`` is a single text.
    """
    if isinstance(names, str):
        raise TypeError(f"autocast: {which} must be a list of op names, got the text {names!r}; write [{names!r}]")
    given = {item if isinstance(item, str) else item.name for item in names}
    ops = {name: op for name, op in OPS.items() if op.separately is None}
    for name in sorted({item for item in names if isinstance(item, str)} - ops.keys() - set(EVERYTHING)):
        near = difflib.get_close_matches(name, ops, 3)
        raise ValueError(
            f"autocast: {which} names {name!r}, which is not an op{', similar ops: ' * bool(near)}"
            f"{', '.join(near)}; for a function made of several ops, name these (flnb.record() shows them)"
        )
    if "*" not in given:
        return given
    computing = {n for n, op in ops.items() if op.family in COMPUTING and (op.differentiable or op.joint is not None)}
    return given - {"*"} | computing.difference(MIXED)


def _half_precision(dtype: Any) -> np.dtype[Any]:
    """Return the dtype for a dtype's name or type; raise an error unless it is float16 or bfloat16."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name not in HALVES:
        raise ValueError(f"autocast: expected the dtype float16 or bfloat16, got {name}")
    if name == "float16":
        return np.dtype(np.float16)
    return np.dtype(require("ml_dtypes", "bfloat16", "the dtype bfloat16").bfloat16)


class Region(Interpreter):
    """Casts the inputs of the ops that are called inside one block of `autocast`.

    Args:
        targets: a dict from an op's name to the dtype to which its inputs are cast; other ops run without casts.
    """

    def __init__(self, targets: dict[str, np.dtype[Any]]) -> None:
        self.targets = targets
        self.casts: dict[tuple[int, np.dtype[Any]], _Cast] = {}

    def takes(self, op: Op) -> bool:
        return True

    def apply(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        grad = state.current().grad
        with self.outside():
            return enter(op, self._cast(grad, op, operands), attributes)

    def _cast(self, grad: bool, op: Op, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return an op's arguments, cast if the region has a dtype for the op; ``grad`` says if casts are recorded."""
        target = self.targets.get(op.name)
        if target is None:
            return arguments
        return tuple([
            x if not isinstance(x, Tensor) or not _is_cast(x._spec.dtype, target)
            else self._parameter(x, target, grad) if getattr(x, "_is_parameter", False)
            else x.astype(target)
            for x in arguments
        ])  # fmt: skip

    def _parameter(self, x: Any, target: np.dtype[Any], grad: bool) -> Any:
        """Return the parameter ``x`` cast to ``target``: a stored cast if it is still valid, else a new cast.

        ``grad`` says whether gradients must be able to flow back through the cast to ``x``.
        """
        kept = self.casts.get((id(x), target))
        if kept is None or not kept.serves(x, grad):
            kept = self.casts[id(x), target] = _Cast(x, x._last_write, x.astype(target))
        return kept.result


class _Cast(NamedTuple):
    """A stored cast of a parameter.

    Attributes:
        parameter: the parameter.
        written: the sequence number of the last write to the parameter before the cast.
        result: the cast parameter.
    """

    parameter: Any
    written: int
    result: Any

    def serves(self, x: Any, grad: bool) -> bool:
        """Return whether the cast is valid: ``x`` is unchanged and, if ``grad``, gradients can flow back to ``x``."""
        node = self.result._node
        walked = node is not None and node[1] is None
        recorded = node is not None or not grad or x._node is None
        return self.written == x._last_write and recorded and not walked


def _is_cast(dtype: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether autocast casts ``dtype`` to ``target``: only between half precision and float32, never float64."""
    return dtype.name in HALVES if target is FLOAT32 else dtype == FLOAT32


def _regions() -> list[Region]:
    """Return the active autocast regions, outermost first."""
    return [i for i in state.current().interpreters if isinstance(i, Region)]


def forget_casts() -> None:
    """Release the casts of parameters that the active regions have stored."""
    for region in _regions():
        region.casts.clear()


def without_casts() -> tuple[Interpreter, ...]:
    """Return the active interpreters without autocast regions."""
    return tuple([i for i in state.current().interpreters if not isinstance(i, Region)])


def with_own_casts() -> tuple[Interpreter, ...]:
    """Return the active interpreters, with autocast regions replaced by copies without stored casts."""
    return tuple([Region(i.targets) if isinstance(i, Region) else i for i in state.current().interpreters])


def cast_target(name: str) -> np.dtype[Any] | None:
    """Return the dtype to which active regions cast the inputs of the op ``name``; None if they are not cast."""
    return next((region.targets.get(name) for region in _regions()), None)
