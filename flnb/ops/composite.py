"""Composites: ops that consist of other public ops, such as softmax, but have one backward function of their own.

The body of a composite computes on plain Tensors and returns ``(result, kept)``; ``kept`` holds intermediate values
that the backward function reads. The backward function is called as ``pull(g, plan, *inputs, *kept, result)``: ``g``
is the gradient of the loss with respect to the result, ``plan`` stores the shapes, dtypes and attributes of the call.
It returns one gradient per input. A backend may implement a composite as one method of its own. If a user's backend
overrides an op that a composite consists of, such as ``add``, the body runs instead, so that the override is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from flnb.dispatch import state
from flnb.dispatch.arguments import axis_of
from flnb.dispatch.table import Op, not_inferred
from flnb.ops import elementwise as e
from flnb.ops import reduction as r
from flnb.ops.creation import asarray
from flnb.ops.dtypes import result_type

if TYPE_CHECKING:
    from flnb.tensor import ArrayLike, Tensor

Body = tuple[Any, tuple[Any, ...]]
"""The result of a composite's body, and the intermediate values that its backward function reads."""


class Composite(Op):
    """An op that consists of other public ops and is recorded as one node, with one backward function.

    Args:
        name: the op's name in recordings, and the name of the backend's method for the op, if there is one.
        family: the kind of op, such as "elementwise" or "norm", which decides its colour in the dashboard.
        body: ``body(*inputs, *attributes) -> (result, kept)``, with the intermediate values to save in ``kept``.
        pull: the backward function ``pull(g, plan, *inputs, *kept, result)``, which returns one gradient per input.
        reads: positions of the inputs that ``pull`` reads, and ``"y"`` if it reads the result; None means that it reads
            everything. Other inputs are not saved, and ``pull`` gets None for them. It gets all values in ``kept``.
        remake: needed if the first input is not saved, unless ``pull`` reads the result alone: ``remake(plan, *saved)``
            returns a first input for which the body computes the same result. When a gradient is itself
            differentiated, the body runs again on this input.
    """

    def __init__(
        self, name: str, family: str, body: Callable[..., Body], pull: Callable[..., Any],
        reads: Collection[Any] | None = None, remake: Callable[..., Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, family, not_inferred, body=body, joint=pull, reads=reads)
        self._remake = remake

    def __call__(self, *tensors: Any, attributes: tuple[Any, ...] = ()) -> Body:
        made: Body = self.entries[len(tensors), ""](*tensors, attributes)
        return made

    def remake(self, plan: Any, *saved: Any) -> Any:
        """Recompute the first input, which was not saved, from the saved values; no gradient is recorded."""
        with state.recording(False):
            return self._remake(plan, *saved)  # type: ignore[misc]


def in_one_dtype(*tensors: Any) -> list[Any]:
    """Return tensors cast to their common dtype; the casts are recorded, so that gradients are cast back."""
    first = tensors[0].dtype
    if not [x for x in tensors if x.dtype is not first]:
        return [*tensors]
    dtypes = {x.dtype for x in tensors}
    dtype = dtypes.pop() if len(dtypes) == 1 else result_type(*tensors)
    return [x if x.dtype == dtype else e.astype(x, dtype) for x in tensors]


_relu_op = Composite(
    "relu", "elementwise", lambda x: (e.maximum(x, 0.0), ()),
    lambda g, plan, x, y: (g * e.astype(y > 0.0, g.dtype),), {"y"},
)  # fmt: skip


def relu(x: ArrayLike, /) -> Tensor:
    """Rectified linear unit, max(x, 0), of any shape; the gradient at 0 is 0.

    Raises:
        TypeError: the values are no numbers.

    >>> import flnb
    >>> flnb.relu([-1.0, 0.0, 2.0])
    Tensor([0., 0., 2.], float32[3], numpy)
    """
    return _relu_op(r.floating(x))[0]


_sigmoid_op = Composite(
    "sigmoid", "elementwise", lambda x: ((e.tanh(x * 0.5) + 1.0) * 0.5, ()),
    lambda g, plan, x, y: (g * (y * (1.0 - y)),), {"y"},
)  # fmt: skip


def sigmoid(x: ArrayLike, /) -> Tensor:
    """Sigmoid (logistic function), 1 / (1 + exp(-x)), computed without overflow.

    Raises:
        TypeError: the values are no numbers.

    >>> import flnb
    >>> flnb.sigmoid([-1000.0, 0.0, 1000.0])
    Tensor([0. , 0.5, 1. ], float32[3], numpy)
    """
    return _sigmoid_op(r.floating(x))[0]


def _softmax(x: Any, axis: int) -> Body:
    """Softmax, computed from x minus its maximum to avoid overflow."""
    powers = e.exp(x - r.max(x, axis, keepdims=True))
    return powers / r.sum(powers, axis, keepdims=True), ()


_softmax_op = Composite(
    "softmax", "norm", _softmax,
    lambda g, plan, x, y: (y * (g - r.sum(g * y, *plan.attributes, keepdims=True)),), {"y"},
)  # fmt: skip


def _along(op: Composite, x: Any, axis: int) -> Any:
    """Apply ``op``, softmax or log-softmax, along an axis, after checks; for an empty tensor return an empty one."""
    x = r.floating(x)
    position = axis_of(axis, x.ndim, op.name)
    return op.entries[1, ""](x, (position,))[0] if x._spec.size else e.exp(x)


def softmax(x: ArrayLike, /, axis: int = -1) -> Tensor:
    """Softmax: exponentials of the elements divided by their sum along ``axis``, so that they sum to 1.

    The maximum is subtracted first, so nothing overflows.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.softmax([1.0, 2.0, 3.0])
    Tensor([0.09  , 0.2447, 0.6652], float32[3], numpy)
    """
    return _along(_softmax_op, x, axis)


def log_softmax_body(x: Any, axis: int) -> Body:
    """Logarithm of softmax, computed without the softmax itself, which may underflow to 0."""
    shifted = x - r.max(x, axis, keepdims=True)
    return shifted - e.log(r.sum(e.exp(shifted), axis, keepdims=True)), ()


_log_softmax_op = Composite(
    "log_softmax", "norm", log_softmax_body,
    lambda g, plan, x, y: (g - e.exp(y) * r.sum(g, *plan.attributes, keepdims=True),), {"y"},
)  # fmt: skip


def log_softmax(x: ArrayLike, /, axis: int = -1) -> Tensor:
    """Logarithm of `softmax` along ``axis``, computed without underflow.

    Raises:
        numpy.exceptions.AxisError: an axis is out of range.

    >>> import flnb
    >>> flnb.log_softmax([0.0, 1000.0])
    Tensor([-1000.,     0.], float32[2], numpy)
    """
    return _along(_log_softmax_op, x, axis)


def dropout(x: ArrayLike, /, p: float = 0.5, training: bool = True, generator: Any = None) -> Tensor:
    """Zero each element with probability ``p`` and divide the others by 1 - p; without ``training`` return x unchanged.

    Random numbers are drawn from ``generator`` (`flnb.random.Generator`), or from the session's.

    Raises:
        ValueError: ``p`` is not in [0, 1).

    >>> import flnb
    >>> flnb.dropout(flnb.ones(3), p=0.0)
    Tensor([1., 1., 1.], float32[3], numpy)
    """
    if not 0.0 <= p < 1.0:
        raise ValueError(f"dropout: p must be in [0, 1), got {p}")
    x = asarray(x)
    if not training or p == 0.0:
        return x
    from flnb.random import dropout_mask

    return x * dropout_mask(x, p, generator)
