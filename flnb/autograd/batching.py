"""Batching rules: how an op on one example becomes the same op on all of them.

A rule takes a `BatchedCall`, whose batched values have the batch as first axis, and returns the result's value, the
batch first again. It calls public ops only, so the values may be Variables, or batched by another vmap. An op without
a rule is run once per example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flnb.dispatch import crossing as dispatch
from flnb.ops.creation import arange, asarray, zeros
from flnb.ops.movement import broadcast_to, concat, permute_dims, reshape, stack

__all__ = ["RULES", "BatchedCall", "batch", "compose"]

NUMBERS = (float, int, bool, complex)


class BatchedCall(NamedTuple):
    """An op's call under vmap: values with the batch as first axis where ``batched``, others unchanged."""

    op: Any
    values: list[Any]
    batched: list[bool]
    attributes: tuple[Any, ...]
    size: int

    def ndim(self, i: int) -> int:
        """Dimensions of an argument as one example sees it."""
        return int(getattr(self.values[i], "ndim", 0)) - self.batched[i]

    def whole(self, i: int) -> Any:
        """An argument with the batch as first axis, repeated if it is not batched."""
        x = asarray(self.values[i])
        return x if self.batched[i] else broadcast_to(x, (self.size, *x.shape))

    def wholes(self) -> list[Any]:
        """All arguments with the batch as first axis."""
        return [self.whole(i) for i in range(len(self.values))]

    def run(self, *values: Any, attributes: tuple[Any, ...] | None = None) -> Any:
        """Run the op on these values."""
        return run(self.op, values, self.attributes if attributes is None else attributes)


def run(op: Any, values: Any, attributes: tuple[Any, ...]) -> Any:
    """Run an op of any kind on values and attributes."""
    made = dispatch.call(op, tuple(values), attributes)
    return made if op.body is None else made[0]


def batch(call: BatchedCall) -> Any:
    """The value of a primitive's call: by its rule, by that of its family, or example by example."""
    call = call._replace(values=[x if isinstance(x, NUMBERS) else asarray(x) for x in call.values])
    rule = RULES.get(call.op.name)
    if rule is None and call.op.family == "elementwise":
        rule = broadcast
    value = rule(call) if rule is not None else None
    return one_by_one(call) if value is None else value


def compose(call: BatchedCall) -> Any:
    """The value of a composite's call if it has a rule, so that it stays one node; None if it has none."""
    if not call.op.decomposes:
        return one_by_one(call)
    rule = RULES.get(call.op.name)
    if rule is None and call.op.family == "elementwise":
        rule = broadcast
    return None if rule is None else rule(call)


def one_by_one(call: BatchedCall) -> Any:
    """Run an op in a loop over the examples: right for every op."""
    if call.size == 0:
        example = [zeros(x.shape[1:], x.dtype) if b else x for x, b in zip(call.values, call.batched, strict=True)]
        made = call.run(*example)
        return zeros((0, *made.shape), made.dtype)
    return stack([
        call.run(*[x[i] if b else x for x, b in zip(call.values, call.batched, strict=True)]) for i in range(call.size)
    ])  # fmt: skip


# Elementwise, and all that broadcasts over leading axes ---------------------------------------------------------------


def aligned(call: BatchedCall) -> list[Any]:
    """The values with equally many dimensions, so that they broadcast with the batch in front."""
    ndim = max(call.ndim(i) for i in range(len(call.values)))
    return [
        _lead(x, ndim - call.ndim(i)) if b else x
        for i, (x, b) in enumerate(zip(call.values, call.batched, strict=True))
    ]


def _lead(x: Any, count: int) -> Any:
    """Insert dimensions of extent 1 after the batch."""
    return reshape(x, (x.shape[0], *(1,) * count, *x.shape[1:])) if count else x


def broadcast(call: BatchedCall) -> Any:
    """The rule of elementwise ops, and of ops on the last axes of stacks, such as matmul."""
    return call.run(*aligned(call))


# Reductions and scans: attributes begin with an axis or several -------------------------------------------------------


def reduce(call: BatchedCall) -> Any:
    """The rule of ops with attributes ``(axes, ...)``, such as ``(axes, keepdims)``."""
    axes, *more = call.attributes
    return call.run(call.whole(0), attributes=(tuple(a + 1 for a in axes), *more))


def along(call: BatchedCall) -> Any:
    """The rule of ops on one tensor with attributes ``(axis, ...)``, counted from the front."""
    axis, *more = call.attributes
    return call.run(call.whole(0), attributes=(axis + 1, *more))


# Movement -------------------------------------------------------------------------------------------------------------


def same(call: BatchedCall) -> Any:
    """The rule of ops that keep the shape and have no axis."""
    return call.run(call.whole(0))


def _broadcast_to(call: BatchedCall) -> Any:
    (shape,) = call.attributes
    return broadcast_to(_lead(call.whole(0), len(shape) - call.ndim(0)), (call.size, *shape))


def _pad(call: BatchedCall) -> Any:
    widths, value = call.attributes
    return call.run(call.whole(0), attributes=(((0, 0), *widths), value))


ALL = ("slice", None, None, None)
"""``:`` in an encoded key."""


def _place(call: BatchedCall) -> Any:
    shape, key = call.attributes
    return call.run(call.whole(0), attributes=((call.size, *shape), (ALL, *key)))


# Indexing with tensors ------------------------------------------------------------------------------------------------


def _layout(key: tuple[Any, ...], ndim: int) -> tuple[int, int]:
    """Where in ``x[key]`` the ``ndim`` dimensions of the indices begin, and how many others there are.

    NumPy puts them where the indices are if those are neighbours, ints among them, and first otherwise.
    """
    advanced = [i for i, k in enumerate(key) if isinstance(k, int) or (isinstance(k, tuple) and k[0] == "index")]
    together = advanced[-1] - advanced[0] == len(advanced) - 1
    return (advanced[0] if together else 0), len(key) - len(advanced)


def _indices(call: BatchedCall, first: int) -> tuple[list[Any], int]:
    """The index tensors, the batched ones ready to broadcast, and the dimensions to which they broadcast."""
    ndim = max(call.ndim(i) for i in range(first, len(call.values)))
    return [
        _lead(x, ndim - (x.ndim - 1)) if b else x
        for x, b in zip(call.values[first:], call.batched[first:], strict=True)
    ], ndim


def _with_examples(call: BatchedCall, key: tuple[Any, ...], first: int) -> tuple[tuple[Any, ...], list[Any], int]:
    """Key and indices with the example's number as one more index in front: then all index dimensions come first."""
    indices, ndim = _indices(call, first)
    numbered = tuple(("index", k[1] + 1) if isinstance(k, tuple) and k[0] == "index" else k for k in key)
    examples = reshape(arange(call.size), (call.size, *(1,) * ndim))
    return (("index", 0), *numbered), [examples, *indices], ndim


def _has_truth(key: tuple[Any, ...]) -> bool:
    """Whether the key contains a bool: its new dimension is in none of the layouts below."""
    return any(isinstance(k, tuple) and k[0] == "truth" for k in key)


def _gather(call: BatchedCall) -> Any:
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
    """Merge the batch, in front, into the dimension that follows at ``axis`` (counted without the batch)."""
    order = (*range(1, axis + 1), 0, *range(axis + 1, x.ndim))
    y = permute_dims(x, order) if axis else x
    return reshape(y, (*y.shape[:axis], y.shape[axis] * y.shape[axis + 1], *y.shape[axis + 2 :]))


def _unfold(y: Any, axis: int, size: int) -> Any:
    """Inverse of `_fold`."""
    split = reshape(y, (*y.shape[:axis], size, y.shape[axis] // size if size else 0, *y.shape[axis + 1 :]))
    return permute_dims(split, (axis, *(a for a in range(split.ndim) if a != axis))) if axis else split


def _folding(first: tuple[int, int] | None, second: tuple[int, int] | None) -> Callable[[BatchedCall], Any]:
    """The rule of a bilinear op: into which axis of an argument the batch is folded, from which of the result unfolded.

    One pair for calls in which only the first argument is batched, one for those in which only the second is; with both
    batched there is one contraction per example.
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
    """The rule of ops that treat every image alike: all images of all examples are one batch."""
    if call.size == 0:
        return None
    return _unfold(call.run(*(_fold(x, 0) for x in call.wholes())), 0, call.size)


# The rule of every op that has one, by the op's name; elementwise ops need none.
RULES: dict[str, Callable[[BatchedCall], Any]] = {
    **dict.fromkeys(("sum", "prod", "max", "min", "any", "all", "argmax", "argmin"), reduce),
    **dict.fromkeys(
        ("cumulative_sum", "cumulative_prod", "sort", "argsort", "argtopk", "softmax", "log_softmax"), along
    ),
    **dict.fromkeys(("astype", "copy"), same),
    "matmul": broadcast,
    "reshape": lambda call: reshape(call.whole(0), (call.size, *call.attributes[0])),
    "permute_dims": lambda call: permute_dims(call.whole(0), (0, *(a + 1 for a in call.attributes[0]))),
    "broadcast_to": _broadcast_to,
    "pad": _pad,
    "concat": lambda call: concat(call.wholes(), axis=call.attributes[0] + 1),
    "flip": reduce,
    "slice": lambda call: call.run(call.whole(0), attributes=((ALL, *call.attributes[0]),)),
    "place": _place,
    "gather": _gather,
    "scatter_add": _scatter_add,
    **dict.fromkeys(("cholesky", "det", "eigh", "eigvalsh", "inv", "qr", "slogdet", "svd", "svdvals"), same),
    **dict.fromkeys(("fftn", "ifftn", "rfftn", "irfftn"), reduce),
    "solve": broadcast,
    "pinv": lambda call: call.run(*call.wholes()),  # its arguments do not broadcast
}
for _rank in (1, 2, 3):
    RULES[f"conv{_rank}d"] = _folding((0, 0), (0, 1))
    RULES[f"conv{_rank}d_input_grad"] = _folding((0, 0), None)
    RULES[f"conv{_rank}d_weight_grad"] = _folding((1, 0), (1, 1))
    RULES |= dict.fromkeys([f"max_pool{_rank}d{_part}" for _part in ("", "_grad", "_select")], _images)
