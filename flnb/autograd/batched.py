"""The batched tensor, which replaces each example in a function under `vmap`, and the interpreter that handles it.

It has the shape of one example and holds all of them: the batch is the first axis of its value. A running vmap is an
interpreter (`Vmap`): it finds the batching rule of every op on its tensors, runs public ops on the values, and wraps
the result. The value may be a Variable (a gradient is taken through the vmap) or batched again (nested vmaps).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from flnb.autograd.batching import BatchedCall, batch, compose
from flnb.autograd.hooks import listen
from flnb.dispatch.interpreter import Interpreter
from flnb.dispatch.plan import spec_of
from flnb.dispatch.state import vmaps
from flnb.ops.creation import asarray, ones_like
from flnb.ops.elementwise import assign
from flnb.ops.movement import broadcast_to, permute_dims
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.autograd.variable import Variable
    from flnb.dispatch.table import Op

__all__ = ["Batched", "Vmap", "enclose", "expose", "innermost", "replaced", "wrap"]

KIND = "batched"
"""The buffer family in a batched tensor's spec."""


class Vmap(Interpreter):
    """One running vmap: its number of examples, and its depth inside other vmaps."""

    def __init__(self, size: int, depth: int) -> None:
        self.size = size
        self.depth = depth

    def batched(self, value: Any) -> Batched:
        """Wrap a tensor that holds the examples along its first axis, so that it has the shape of one of them."""
        return Batched(value, self)

    def takes(self, op: Op) -> bool:
        return True

    def apply(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        """Run an op by its batching rule, on the values of this vmap; a composite without a rule by its body."""
        whole = [getattr(x, "_level", None) is self for x in operands]
        if not any(whole):
            return self.run(op, operands, attributes)
        values = [x._value if b else x for x, b in zip(operands, whole, strict=True)]
        call = BatchedCall(op, values, whole, attributes, self.size)
        with self.outside():
            made = batch(call) if op.body is None else compose(call)
        if op.body is None:
            return Batched(made, self)
        return op.body(*operands, *attributes) if made is None else (Batched(made, self), ())

    def write(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...], out: Any) -> Any:
        """Write a result over an existing tensor, which must have a value for each example as well."""
        if getattr(out, "_level", None) is not self and not any(getattr(x, "_level", None) is self for x in operands):
            return self.run(op, operands, attributes, out)
        result = self.apply(op, operands, attributes)
        if getattr(out, "_level", None) is None:
            raise TypeError(
                f"{op.name}: under vmap a result that differs between examples ({result!r}) cannot be written into one "
                f"tensor that all examples share; make the target from a batched one, for example zeros_like(x) + 0 * x"
            )
        if (out.shape, out.dtype) != (result.shape, result.dtype):
            raise ValueError(f"{op.name}: the result is {result._spec!r} but out is {out._spec!r}; they must be equal")
        assign(out._value, expose(result, out._level))
        return out


class Batched(Tensor):
    """All examples of a tensor under `vmap`, in the shape of one of them."""

    __slots__ = ("_batch", "_value")

    _batch: Vmap
    _value: Any
    _lift = Tensor  # not None: a composite op takes the path on which it finds that there is no buffer

    def __init__(self, value: Any, level: Vmap) -> None:
        self._value = value
        self._batch = level
        self._spec = spec_of(value.shape[1:], value.dtype, KIND)

    @property
    def _level(self) -> Vmap:
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
        """The same examples off the tape, sharing memory."""
        return Batched(self._value.data if hasattr(self._value, "data") else self._value, self._batch)

    def detach(self) -> Batched:
        """The same examples off the tape, sharing memory."""
        return self.data

    def backward(self, grad: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
        """`flnb.Variable.backward` of every example: the leaves receive the sum over the batch."""
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

    def _are_positions(self, n: int) -> bool:
        return self._value._are_positions(n)  # type: ignore[no-any-return]

    def _is_contiguous(self) -> bool:
        return True  # reshape asks again for the value

    def _facts(self) -> str:
        spec = self._spec
        return f"{spec!r}, each of {self._batch.size} examples"

    def __repr__(self) -> str:
        return f"Batched({self._facts()})"


def _levels_of(x: Any) -> list[Vmap]:
    """The vmaps by which a tensor is batched, the innermost first."""
    found = []
    while x._level is not None:
        found.append(x._level)
        x = x._value
    return found


def innermost(x: Any) -> Variable | Tensor:
    """The tensor inside all batches, with every batch as an axis, the outermost vmap's first."""
    while x._level is not None:
        x = x._value
    return x  # type: ignore[no-any-return]


def replaced(x: Any, value: Any) -> Any:
    """A tensor batched like another, with another tensor inside all batches."""
    return value if x._level is None else Batched(replaced(x._value, value), x._level)


def expose(x: Any, level: Vmap) -> Any:
    """A tensor with the batch of one vmap as its first axis; a tensor that is not batched by it is repeated."""
    if x._level is level:
        return x._value
    if x._level is None or x._level.depth < level.depth:
        return broadcast_to(x, (level.size, *x.shape))
    inner = expose(x._value, level)
    return Batched(permute_dims(inner, (1, 0, *range(2, inner.ndim))), x._level)


def exposed(x: Any, batches: list[Vmap]) -> Any:
    """A tensor with the batches of these vmaps (innermost first) as its first axes, the outermost vmap's first."""
    for level in batches:
        x = expose(x, level)
    return x


def enclosed(x: Any, batches: list[Vmap]) -> Any:
    """Inverse of `exposed`."""
    for level in reversed(batches):
        x = enclose(x, level)
    return x


def enclose(x: Any, level: Vmap) -> Any:
    """Inverse of `expose`: take the first axis as the batch of a vmap."""
    if x._level is None or x._level.depth < level.depth:
        return Batched(x, level)
    inner = permute_dims(x._value, (1, 0, *range(2, x.ndim + 1)))
    return Batched(enclose(inner, level), x._level)


def wrap(x: Any) -> Any:
    """A tensor batched by every vmap that runs here: each example gets its own."""
    have = _levels_of(x)
    for level in vmaps.get():
        if level not in have:
            x = enclose(expose(x, level), level)
    return x
