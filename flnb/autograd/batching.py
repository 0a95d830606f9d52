"""Batching rules of `vmap`: how to run an op once for all examples.

The argument of a rule is a `BatchedCall`, whose batched operands have the examples along their first axis. The rule
returns the result with the examples along the first axis, or None if the rule does not cover the call. A rule calls
public ops only, so operands may be Variables, or batched by another vmap. An op without a rule is run once per example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flnb.dispatch import crossing as dispatch
from flnb.ops.creation import arange, asarray, zeros
from flnb.ops.movement import broadcast_to, concat, permute_dims, reshape, stack

NUMBERS = (float, int, bool, complex)


class BatchedCall(NamedTuple):
    """An op's call under vmap.

    Attributes:
        values: the operands. If an operand's entry in ``batched`` is True, it is a tensor with the examples along the
            first axis; otherwise it is a tensor or number that all examples share.
        attributes: the op's attributes for one example, as passed by the user.
        size: the number of examples.
    """

    op: Any
    values: list[Any]
    batched: list[bool]
    attributes: tuple[Any, ...]
    size: int

    def ndim(self, i: int) -> int:
        """Return the number of dimensions of operand ``i`` in one example."""
        return int(getattr(self.values[i], "ndim", 0)) - self.batched[i]

    def whole(self, i: int) -> Any:
        """Return operand ``i`` with the examples along the first axis, repeated if all examples share it."""
        x = asarray(self.values[i])
        return x if self.batched[i] else broadcast_to(x, (self.size, *x.shape))

    def wholes(self) -> list[Any]:
        """Return all operands with the examples along their first axes."""
        return [self.whole(i) for i in range(len(self.values))]

    def run(self, *values: Any, attributes: tuple[Any, ...] | None = None) -> Any:
        """Run the op on other operands, ``values``, with the attributes of the call unless others are given."""
        made = dispatch.call(self.op, values, self.attributes if attributes is None else attributes)
        return made if self.op.body is None else made[0]


def batch(call: BatchedCall) -> Any:
    """Run a primitive op by its batching rule, or once per example; return the results along a first axis."""
    call = call._replace(values=[x if isinstance(x, NUMBERS) else asarray(x) for x in call.values])
    value = _by_rule(call)
    return one_by_one(call) if value is None else value


def compose(call: BatchedCall) -> Any:
    """Run a composite op like `batch` if it has a batching rule or cannot be run op by op; else return None."""
    return _by_rule(call) if call.op.decomposes else one_by_one(call)


def _by_rule(call: BatchedCall) -> Any:
    """Apply the batching rule of the op, or the rule for elementwise ops; return None if there is no rule."""
    rule = RULES.get(call.op.name) or (broadcast if call.op.family == "elementwise" else None)
    return None if rule is None else rule(call)


def one_by_one(call: BatchedCall) -> Any:
    """Run the op in a loop over the examples, and stack the results; this works for every op."""
    if call.size == 0:
        example = [zeros(x.shape[1:], x.dtype) if b else x for x, b in zip(call.values, call.batched, strict=True)]
        made = call.run(*example)
        return zeros((0, *made.shape), made.dtype)
    return stack([
        call.run(*[x[i] if b else x for x, b in zip(call.values, call.batched, strict=True)]) for i in range(call.size)
    ])  # fmt: skip


# Elementwise, and all that broadcasts over leading axes ---------------------------------------------------------------


def aligned(call: BatchedCall) -> list[Any]:
    """Return the operands for broadcasting: batched ones get dimensions of extent 1 after the axis of the examples."""
    ndim = max(call.ndim(i) for i in range(len(call.values)))
    return [
        _lead(x, ndim - call.ndim(i)) if b else x
        for i, (x, b) in enumerate(zip(call.values, call.batched, strict=True))
    ]


def _lead(x: Any, count: int) -> Any:
    """Return x with ``count`` new dimensions of extent 1 after the first one."""
    return reshape(x, (x.shape[0], *(1,) * count, *x.shape[1:])) if count else x


def broadcast(call: BatchedCall) -> Any:
    """Batching rule of elementwise ops, and of ops on the last axes that broadcast over the others, as matmul does."""
    return call.run(*aligned(call))


# Reductions and scans: attributes begin with an axis or several -------------------------------------------------------


def over_axes(call: BatchedCall) -> Any:
    """Batching rule of ops on one tensor whose first attribute is an axis or a tuple of axes, such as `sum`."""
    axes, *more = call.attributes
    moved = axes + 1 if isinstance(axes, int) else tuple(a + 1 for a in axes)
    return call.run(call.whole(0), attributes=(moved, *more))


# Movement -------------------------------------------------------------------------------------------------------------


def same(call: BatchedCall) -> Any:
    """Batching rule of ops on one tensor whose attributes need no change, such as `copy`."""
    return call.run(call.whole(0))


def _broadcast_to(call: BatchedCall) -> Any:
    """Batching rule of `broadcast_to`: broadcast every example to the shape."""
    (shape,) = call.attributes
    return broadcast_to(_lead(call.whole(0), len(shape) - call.ndim(0)), (call.size, *shape))


def _pad(call: BatchedCall) -> Any:
    """Batching rule of `pad`: pad every example, and nothing along the axis of the examples."""
    widths, value = call.attributes
    return call.run(call.whole(0), attributes=(((0, 0), *widths), value))


ALL = ("slice", None, None, None)
"""The key ``:`` in the encoded form of the attributes of indexing ops."""


def _place(call: BatchedCall) -> Any:
    """Batching rule of the op that writes a tensor into zeros of a given shape, at an index of ints and slices."""
    shape, key = call.attributes
    return call.run(call.whole(0), attributes=((call.size, *shape), (ALL, *key)))


# Indexing with tensors ------------------------------------------------------------------------------------------------


def _layout(key: tuple[Any, ...], ndim: int) -> tuple[int, int]:
    """Return where in ``x[key]`` the dimensions of the index tensors begin, and the number of other dimensions.

    In ``x[key]``, ``ndim`` dimensions come from the index tensors. As in NumPy, these dimensions are at the place of
    the first index (a tensor or int) if all indices are next to each other in the key, otherwise at the beginning.
    """
    advanced = [i for i, k in enumerate(key) if isinstance(k, int) or (isinstance(k, tuple) and k[0] == "index")]
    together = advanced[-1] - advanced[0] == len(advanced) - 1
    return (advanced[0] if together else 0), len(key) - len(advanced)


def _indices(call: BatchedCall, first: int) -> tuple[list[Any], int]:
    """Return the index tensors (operands ``first`` and later), aligned, and their largest ndim in one example."""
    ndim = max(call.ndim(i) for i in range(first, len(call.values)))
    return [
        _lead(x, ndim - (x.ndim - 1)) if b else x
        for x, b in zip(call.values[first:], call.batched[first:], strict=True)
    ], ndim


def _with_examples(call: BatchedCall, key: tuple[Any, ...], first: int) -> tuple[tuple[Any, ...], list[Any], int]:
    """Prepend the example's number to an index, so that each example is indexed separately.

    Returns:
        The new key, the index tensors, and their number of dimensions in one example. In ``x[key]`` with the new key,
        the dimensions of the index tensors come first.
    """
    indices, ndim = _indices(call, first)
    numbered = tuple(("index", k[1] + 1) if isinstance(k, tuple) and k[0] == "index" else k for k in key)
    examples = reshape(arange(call.size), (call.size, *(1,) * ndim))
    return (("index", 0), *numbered), [examples, *indices], ndim


def _has_truth(key: tuple[Any, ...]) -> bool:
    """Return whether the key contains a bool; a bool adds a dimension, which batching rules do not support."""
    return any(isinstance(k, tuple) and k[0] == "truth" for k in key)


def _gather(call: BatchedCall) -> Any:
    """Batching rule of indexing by tensors; the indexed tensor and the index tensors may each be batched or not."""
    (key,) = call.attributes
    if _has_truth(key):
        return None
    if not call.batched[0]:
        indices, ndim = _indices(call, 1)
        y = call.run(call.values[0], *indices)
        start, _ = _layout(key, ndim)
        return permute_dims(y, (start, *(a for a in range(y.ndim) if a != start)))
    full, indices, ndim = _with_examples(call, key, 1)
    y = call.run(call.values[0], *indices, attributes=(full,))
    start, others = _layout(key, ndim)
    found, rest = range(1, 1 + ndim), list(range(1 + ndim, 1 + ndim + others))
    return permute_dims(y, (0, *rest[:start], *found, *rest[start:]))


def _scatter_add(call: BatchedCall) -> Any:
    """Batching rule of the op that adds values into zeros of a given shape, at indices that may be batched."""
    shape, key = call.attributes
    if _has_truth(key):
        return None
    full, indices, ndim = _with_examples(call, key, 1)
    start, others = _layout(key, ndim)
    g = call.whole(0)
    found = range(1 + start, 1 + start + ndim)
    g = permute_dims(g, (0, *found, *(a for a in range(1, 1 + ndim + others) if a not in found)))
    return call.run(g, *indices, attributes=((call.size, *shape), full))


# Convolution and pooling: the batch joins the images, or the channels -------------------------------------------------


def _fold(x: Any, axis: int) -> Any:
    """Merge the first axis, which runs over the examples, into dimension ``axis`` of each example."""
    order = (*range(1, axis + 1), 0, *range(axis + 1, x.ndim))
    y = permute_dims(x, order) if axis else x
    return reshape(y, (*y.shape[:axis], y.shape[axis] * y.shape[axis + 1], *y.shape[axis + 2 :]))


def _unfold(y: Any, axis: int, size: int) -> Any:
    """Inverse of `_fold`: separate ``size`` examples from dimension ``axis`` and move them to the first axis."""
    split = reshape(y, (*y.shape[:axis], size, y.shape[axis] // size if size else 0, *y.shape[axis + 1 :]))
    return permute_dims(split, (axis, *(a for a in range(split.ndim) if a != axis))) if axis else split


def _folding(first: tuple[int, int] | None, second: tuple[int, int] | None) -> Callable[[BatchedCall], Any]:
    """Make the batching rule of a convolution or its gradients, which merges the examples into another dimension.

    Args:
        first: two dimensions, for calls in which only the first operand is batched: the operand's dimension into which
            the examples are merged, and the result's dimension from which they are separated. If None, such calls have
            no rule and run once per example.
        second: the same for calls in which only the second operand is batched.
    """

    def rule(call: BatchedCall) -> Any:
        if all(call.batched) or call.size == 0:
            return None
        at = 0 if call.batched[0] else 1
        axes = (first, second)[at]
        if axes is None or (axes != (0, 0) and call.attributes[3] > 1):  # channels in groups do not mix with the batch
            return None
        values = list(call.values)
        values[at] = _fold(values[at], axes[0])
        return _unfold(call.run(*values), axes[1], call.size)

    return rule


def _images(call: BatchedCall) -> Any:
    """Batching rule of ops that treat every image alike: the images of all examples become one batch of images."""
    if call.size == 0:
        return None
    return _unfold(call.run(*(_fold(x, 0) for x in call.wholes())), 0, call.size)


RULES: dict[str, Callable[[BatchedCall], Any]] = {
    **dict.fromkeys(("sum", "prod", "max", "min", "any", "all", "argmax", "argmin"), over_axes),
    **dict.fromkeys(
        ("cumulative_sum", "cumulative_prod", "sort", "argsort", "argtopk", "softmax", "log_softmax"), over_axes
    ),
    **dict.fromkeys(("astype", "copy"), same),
    "matmul": broadcast,
    "reshape": lambda call: reshape(call.whole(0), (call.size, *call.attributes[0])),
    "permute_dims": lambda call: permute_dims(call.whole(0), (0, *(a + 1 for a in call.attributes[0]))),
    "broadcast_to": _broadcast_to,
    "pad": _pad,
    "concat": lambda call: concat(call.wholes(), axis=call.attributes[0] + 1),
    "flip": over_axes,
    "slice": lambda call: call.run(call.whole(0), attributes=((ALL, *call.attributes[0]),)),
    "place": _place,
    "gather": _gather,
    "scatter_add": _scatter_add,
    **dict.fromkeys(("cholesky", "det", "eigh", "eigvalsh", "inv", "qr", "slogdet", "svd", "svdvals"), same),
    **dict.fromkeys(("fftn", "ifftn", "rfftn", "irfftn"), over_axes),
    "solve": broadcast,
    "pinv": lambda call: call.run(*call.wholes()),  # its arguments do not broadcast
}
"""The batching rules by the op's name; elementwise ops need none."""

for _rank in (1, 2, 3):
    RULES[f"conv{_rank}d"] = _folding((0, 0), (0, 1))
    RULES[f"conv{_rank}d_input_grad"] = _folding((0, 0), None)
    RULES[f"conv{_rank}d_weight_grad"] = _folding((1, 0), (1, 1))
    RULES |= dict.fromkeys([f"max_pool{_rank}d{_part}" for _part in ("", "_grad", "_select")], _images)
