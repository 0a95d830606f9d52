"""The batched tensor: what a function under `vmap` sees in place of each of its examples.

It looks like one example and holds all of them, the batch as first axis of its value. It has no buffer and its spec is
in no op's plans, so the fast paths do not know it: every op on one ends in `Batched._apply`, which finds the batching
rule, runs public ops on the values, and wraps the result. The value may be a Variable (a gradient is taken through the
vmap) or batched again (vmaps inside each other).
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from flnb.autograd.batching import Call, batch, compose
from flnb.autograd.hooks import listen
from flnb.dispatch.plan import spec_of
from flnb.dispatch.state import vmaps
from flnb.ops.creation import asarray, ones_like
from flnb.ops.elementwise import assign
from flnb.ops.movement import broadcast_to, permute_dims
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.autograd.variable import Variable
    from flnb.ops.table import Op

__all__ = ["Batched", "Level", "enclose", "expose", "innermost", "replaced", "wrap"]

KIND = "batched"
"""The buffer family in a batched tensor's spec."""


class Level:
    """One running vmap: how many examples, and how deep inside other vmaps."""

    __slots__ = ("depth", "size")

    def __init__(self, size: int, depth: int) -> None:
        self.size = size
        self.depth = depth

    def batched(self, value: Any) -> Batched:
        """A tensor that holds the examples along its first axis, looking like one of them."""
        return Batched(value, self)


class Batched(Tensor):
    """All examples of a tensor under `vmap`, looking like one of them."""

    __slots__ = ("_batch", "_value")

    _batch: Level
    _value: Any
    _lift = Tensor  # not None: a composite op takes the path on which it finds that there is no buffer

    def __init__(self, value: Any, level: Level) -> None:
        self._value = value
        self._batch = level
        self._spec = spec_of(value.shape[1:], value.dtype, KIND)

    @property
    def _level(self) -> Level:
        return self._batch

    @property
    def _data(self) -> Any:
        raise AttributeError(
            f"vmap: a batched tensor ({self._facts()}) has no buffer of its own; inside vmap use ops of flnb, and "
            f"flnb.grad in place of flnb.Variable"
        )

    @property
    def _node(self) -> Any:
        return self._value._node

    # Ops --------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _apply(op: Op, arguments: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        """Run an op of which an argument is batched: by its rule, on the values of the innermost vmap."""
        level, call = _call(op, arguments, attributes)
        return Batched(batch(call), level)

    @staticmethod
    def _compose(op: Any, body: Callable[..., Any], arguments: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        """Run a composite of which an argument is batched: by its rule, or its body op by op."""
        level, call = _call(op, arguments, attributes)
        made = compose(call)
        return body(*arguments, *attributes) if made is None else (Batched(made, level), ())

    def _receive(self, result: Any) -> Batched:
        """Be written over by a result, in place."""
        assign(self._value, expose(result, self._batch))
        return self

    def _gather(self, term: Any) -> None:
        """Add a term, which belongs to nobody else, to this cotangent."""
        self._value = self._value + expose(term, self._batch)

    # Place on the tape: the value's -----------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows to this tensor."""
        return self._node is not None

    @property
    def is_leaf(self) -> bool:
        """Whether the value is a leaf of the tape."""
        return self._node is None or self._node[0] is None

    @property
    def data(self) -> Batched:
        """The same examples without a place on the tape, sharing memory."""
        return Batched(self._value.data if hasattr(self._value, "data") else self._value, self._batch)

    def detach(self) -> Batched:
        """The same examples without a place on the tape, sharing memory."""
        return self.data

    def backward(self, grad: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
        """`flnb.Variable.backward` of every example: the leaves get the sum over the batch."""
        if grad is None and self.size == 1:
            grad = ones_like(self)
        whole = innermost(self)
        grad = None if grad is None else exposed(asarray(grad), _levels_of(self))
        whole.backward(grad, retain_graph, create_graph)

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """`flnb.Variable.register_hook`, with the gradient of every example in one batched tensor."""

        batches = _levels_of(self)  # not the tensor itself: its node will hold this function

        def on_all(g: Any) -> Any:
            given = hook(enclosed(g, batches))
            return None if given is None else exposed(given, batches)

        return listen(self._node, on_all)

    # Values: there is not one answer ----------------------------------------------------------------------------------

    def _values(self) -> NoReturn:
        raise TypeError(
            f"vmap: the value of a batched tensor ({self._facts()}) was asked for, by bool(), float(), .item(), "
            f".numpy() or the like. There is one value per example: choose by flnb.where(condition, a, b) instead of "
            f"an `if`, or call the function in a loop instead of vmap"
        )

    def numpy(self) -> NoReturn:
        self._values()

    def data_of(self, backend: Any) -> NoReturn:
        self._values()

    def _bounds(self) -> tuple[Any, Any]:
        return self._value._bounds()  # type: ignore[no-any-return]

    def _is_contiguous(self) -> bool:
        return True  # reshape asks again for the value

    def _facts(self) -> str:
        spec = self._spec
        return f"{spec!r}, each of {self._batch.size} examples"

    def __repr__(self) -> str:
        return f"Batched({self._facts()})"


def _call(op: Any, arguments: tuple[Any, ...], attributes: tuple[Any, ...]) -> tuple[Level, Call]:
    """The innermost vmap among the arguments, and the call with the arguments of that vmap replaced by their values."""
    found = [x._level for x in arguments if getattr(x, "_level", None) is not None]
    level = max(found, key=attrgetter("depth"))
    whole = [getattr(x, "_level", None) is level for x in arguments]
    values = [x._value if b else x for x, b in zip(arguments, whole, strict=True)]
    return level, Call(op, values, whole, attributes, level.size)


def _levels_of(x: Any) -> list[Level]:
    """The vmaps a tensor is batched by, the innermost first."""
    found = []
    while x._level is not None:
        found.append(x._level)
        x = x._value
    return found


def innermost(x: Any) -> Variable | Tensor:
    """The tensor inside all batches, with every batch as an axis: the outermost vmap's first."""
    while x._level is not None:
        x = x._value
    return x  # type: ignore[no-any-return]


def replaced(x: Any, value: Any) -> Any:
    """A tensor batched like another, with another tensor inside all batches."""
    return value if x._level is None else Batched(replaced(x._value, value), x._level)


def expose(x: Any, level: Level) -> Any:
    """A tensor with the batch of one vmap as its first axis; what is not batched by it is repeated along it."""
    if x._level is level:
        return x._value
    if x._level is None or x._level.depth < level.depth:
        return broadcast_to(x, (level.size, *x.shape))
    inner = expose(x._value, level)
    return Batched(permute_dims(inner, (1, 0, *range(2, inner.ndim))), x._level)


def exposed(x: Any, batches: list[Level]) -> Any:
    """A tensor with the batch of each of these vmaps, the innermost first, as an axis: the outermost vmap's first."""
    for level in batches:
        x = expose(x, level)
    return x


def enclosed(x: Any, batches: list[Level]) -> Any:
    """`exposed` undone."""
    for level in reversed(batches):
        x = enclose(x, level)
    return x


def enclose(x: Any, level: Level) -> Any:
    """`expose` undone: the first axis is the batch of a vmap."""
    if x._level is None or x._level.depth < level.depth:
        return Batched(x, level)
    inner = permute_dims(x._value, (1, 0, *range(2, x.ndim + 1)))
    return Batched(enclose(inner, level), x._level)


def wrap(x: Any) -> Any:
    """A tensor, batched by every vmap that runs here: each example gets its own."""
    have = _levels_of(x)
    for level in vmaps.get():
        if level not in have:
            x = enclose(expose(x, level), level)
    return x
