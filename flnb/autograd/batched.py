"""Batched tensors, which a function under `vmap` receives in place of one example, and the running vmap.

A batched tensor has the shape of one example and holds all examples: its *value* is a tensor with the examples along
the first axis. A running vmap is an interpreter (`Vmap`): it applies the batching rule of every op on its tensors to
their values, and wraps the result. A value may be a Variable (if gradients are taken) or batched too (nested vmaps).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from flnb.autograd.batching import BatchedCall, batch, compose
from flnb.autograd.hooks import listen
from flnb.autograd.variable import Variable
from flnb.dispatch.interpreter import Interpreter
from flnb.dispatch.plan import spec_of
from flnb.dispatch.state import vmaps
from flnb.ops.creation import asarray, ones_like
from flnb.ops.elementwise import assign
from flnb.ops.movement import broadcast_to, permute_dims
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.dispatch.table import Op

KIND = "batched"
"""The buffer family in a batched tensor's spec."""


class Vmap(Interpreter):
    """A running vmap: an interpreter that runs ops on its batched tensors for all examples at once.

    Attributes:
        size: the number of examples.
        depth: 1 for the outermost vmap, 2 for a vmap inside it, and so on.
    """

    def __init__(self, size: int, depth: int) -> None:
        self.size = size
        self.depth = depth

    def batched(self, value: Any) -> Batched:
        """Wrap a tensor that holds the examples along its first axis."""
        return Batched(value, self)

    def takes(self, op: Op) -> bool:
        return True

    def apply(self, op: Op, operands: tuple[Any, ...], attributes: tuple[Any, ...]) -> Any:
        """Run an op by its batching rule on the values of its operands; a composite without a rule runs op by op."""
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
        """Run an op, write its result into ``out``, and return ``out``, which must be batched if any operand is."""
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
        assign(out._value, unbatch(result, out._level))
        return out


class Batched(Tensor):
    """A tensor inside `vmap`, which holds the values for all examples but has the shape of one example.

    Args:
        value: a tensor with the examples along its first axis.
        level: the running vmap to which these examples belong.
    """

    __slots__ = ("_level", "_value")

    _level: Vmap  # type: ignore[misc]
    _value: Any
    _lift = Tensor  # not None: a composite op takes the path on which it finds that there is no buffer

    def __init__(self, value: Any, level: Vmap) -> None:
        self._value = value
        self._level = level
        self._spec = spec_of(value.shape[1:], value.dtype, KIND)

    @property
    def _data(self) -> Any:
        raise AttributeError(
            f"vmap: a batched tensor ({self._facts()}) has no buffer of its own; inside vmap use ops of flnb, and "
            f"flnb.grad in place of flnb.Variable"
        )

    @property
    def _node(self) -> Any:
        return self._value._node

    # The value's place on the tape -----------------------------------------------------------------------------------

    is_leaf = Variable.is_leaf
    requires_grad = property(lambda self: self._node is not None, doc="Whether a gradient flows to this tensor.")

    @property
    def data(self) -> Batched:
        """Return a batched tensor that shares memory with this one and through which no gradient flows."""
        return Batched(self._value.data if hasattr(self._value, "data") else self._value, self._level)

    def detach(self) -> Batched:
        """Return a batched tensor that shares memory with this one and through which no gradient flows (as `data`)."""
        return self.data

    def backward(self, grad: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
        """Call `flnb.Variable.backward` for all examples; each leaf gets the sum of their gradients."""
        if grad is None and self.size == 1:
            grad = ones_like(self)
        whole = innermost(self)
        grad = None if grad is None else unbatch_all(asarray(grad), _levels_of(self))
        whole.backward(grad, retain_graph, create_graph)

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """Call `flnb.Variable.register_hook`; the hook gets the gradients of all examples as a batched tensor."""

        batches = _levels_of(self)  # not the tensor itself: its node will hold this function

        def on_all(g: Any) -> Any:
            given = hook(rebatch_all(g, batches))
            return None if given is None else unbatch_all(given, batches)

        return listen(self._node, on_all)

    # Values, of which there is one per example ------------------------------------------------------------------------

    def _values(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"vmap: the value of a batched tensor ({self._facts()}) was read, by bool(), float(), .item(), "
            f".numpy() or the like. There is one value per example: use flnb.where(condition, a, b) instead of "
            f"an `if`, or call the function in a loop instead of vmap"
        )

    numpy = data_of = _values  # type: ignore[assignment]

    def _bounds(self) -> tuple[Any, Any]:
        return self._value._bounds()

    def _are_positions(self, n: int) -> bool:
        return self._value._are_positions(n)

    def _is_contiguous(self) -> bool:
        return True  # reshape asks again for the value

    def _facts(self) -> str:
        spec = self._spec
        return f"{spec!r}, each of {self._level.size} examples"

    def __repr__(self) -> str:
        return f"Batched({self._facts()})"


def _levels_of(x: Any) -> list[Vmap]:
    """Return the running vmaps whose examples a tensor holds, the innermost vmap first."""
    found = []
    while x._level is not None:
        found.append(x._level)
        x = x._value
    return found


def innermost(x: Any) -> Variable | Tensor:
    """Return the tensor inside all `Batched` wrappers, with one leading axis per vmap, outermost vmap first."""
    while x._level is not None:
        x = x._value
    return x


def replaced(x: Any, value: Any) -> Any:
    """Return a tensor batched by the same vmaps as ``x``, but with ``value`` in place of ``innermost(x)``."""
    return value if x._level is None else Batched(replaced(x._value, value), x._level)


def unbatch(x: Any, level: Vmap) -> Any:
    """Return x as a tensor with the examples of vmap ``level`` along the first axis.

    If all examples share x, x is repeated.
    """
    if x._level is level:
        return x._value
    if x._level is None or x._level.depth < level.depth:
        return broadcast_to(x, (level.size, *x.shape))
    inner = unbatch(x._value, level)
    return Batched(permute_dims(inner, (1, 0, *range(2, inner.ndim))), x._level)


def unbatch_all(x: Any, batches: list[Vmap]) -> Any:
    """Apply `unbatch` for several vmaps, the innermost first; the outermost vmap's examples are then the first axis."""
    for level in batches:
        x = unbatch(x, level)
    return x


def rebatch_all(x: Any, batches: list[Vmap]) -> Any:
    """Inverse of `unbatch_all`: make a batched tensor from one whose first axes run over the examples of the vmaps."""
    for level in reversed(batches):
        x = rebatch(x, level)
    return x


def rebatch(x: Any, level: Vmap) -> Any:
    """Inverse of `unbatch`: make a batched tensor from one whose first axis has the examples of vmap ``level``."""
    if x._level is None or x._level.depth < level.depth:
        return Batched(x, level)
    inner = permute_dims(x._value, (1, 0, *range(2, x.ndim + 1)))
    return Batched(rebatch(inner, level), x._level)


def wrap(x: Any) -> Any:
    """Return x repeated for the examples of every running vmap, so that each example has a separate tensor."""
    have = _levels_of(x)
    for level in vmaps.get():
        if level not in have:
            x = rebatch(unbatch(x, level), level)
    return x
