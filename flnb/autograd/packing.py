"""Saved-tensor hooks: ``pack`` replaces the tensors that ops save for backward, ``unpack`` restores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from flnb_telemetry.withblock import with_block

from flnb.autograd.hooks import Intercepted
from flnb.autograd.variable import placed
from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.interface.tape import MARK, PARENTS, PLAN, SAVED, Node, Tape
from flnb.tensor import Tensor


class Packed:
    """A node's replacement for a saved tensor: the value that ``pack`` returned.

    Attributes:
        _spec: shape and dtype of the tensor, which ``unpack`` must return.
        place: the node whose result is the tensor; None if no gradient flows to the tensor.
    """

    __slots__ = ("_spec", "place", "value")

    def __init__(self, value: Any, spec: Any, place: Node | None) -> None:
        self.value = value
        self._spec = spec
        self.place = place

    @property
    def _last_write(self) -> int:
        """Return the number of the last in-place write to the packed value if that is a tensor, else 0."""
        return getattr(self.value, "_last_write", 0)


class Unpacking(Intercepted):
    """The plan (op, shapes, gradient rules) of a node that stores `Packed` values, which are unpacked in backward."""

    __slots__ = ("unpack",)

    def __init__(self, original: Any, unpack: Callable[[Any], Any]) -> None:
        super().__init__(original)
        self.unpack = unpack

    def values(self, saved: list[Any]) -> list[Any]:
        return [self._unpacked(x) if isinstance(x, Packed) else x for x in saved]

    def _unpacked(self, packed: Packed) -> Tensor:
        """Call the user's ``unpack`` and check its result; return it with the node of the tensor that was packed."""
        with state.use(grad=False):
            x = self.unpack(packed.value)
        if not isinstance(x, Tensor) or x._spec is not packed._spec:
            got = repr(x._spec) if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(
                f"saved_tensors_hooks: unpack must return the tensor that was packed, {packed._spec!r} saved by "
                f"{self.op.name!r}; it returned {got}"
            )
        return x if packed.place is None else placed(x, packed.place)


class PackingTape(Tape):
    """Base class of tapes whose nodes store other objects in place of the tensors that ops save.

    Args:
        unpack: a function of such an object that returns the tensor.
        around: the tape that was active before and that records the nodes; None for the default tape.
    """

    name: ClassVar[str] = "packing"

    def __init__(self, unpack: Callable[[Any], Tensor], around: Tape | None) -> None:
        self.unpack, self.around = unpack, around
        self._plans: dict[Any, Unpacking] = {}

    def packed(self, x: Tensor, node: Node) -> Any:
        """Return the object that ``node`` stores in place of the saved tensor ``x``; it may be ``x`` itself."""
        return x

    def record(self, node: Node) -> Node | None:
        node[MARK] = None if self.around is None else self.around.mark
        recorded = node if self.around is None else self.around.record(node)
        if recorded is None:
            return None
        plan = recorded[PLAN]
        places = [*recorded[PARENTS], *[None] * len(recorded)]  # inputs come first in what is saved
        for i, (x, place) in enumerate(zip(recorded[SAVED:], places, strict=False), start=SAVED):
            value = self.packed(x, recorded) if isinstance(x, Tensor) else x
            if value is not x:
                recorded[i] = Packed(value, x._spec, place)
                recorded[PLAN] = self._plans.get(plan) or self._plans.setdefault(plan, Unpacking(plan, self.unpack))
        return recorded


class _Hooks(PackingTape):
    """The tape of `saved_tensors_hooks`, which calls the user's functions."""

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor], around: Tape | None) -> None:
        super().__init__(unpack, around)
        self.pack = pack

    def packed(self, x: Tensor, node: Node) -> Any:
        given = dispatch.detached(x._data, x._spec)
        given._root = getattr(x, "_root", x)  # writes to the memory are noted there
        with state.use(grad=False):
            return self.pack(given)


def unpacked_tape() -> Tape | None:
    """Return the innermost active tape that is not a `PackingTape`; so only the innermost of nested blocks packs."""
    around: Tape | None = state.current().tape
    while isinstance(around, PackingTape):
        around = around.around
    return around


@with_block
def saved_tensors_hooks(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> Iterator[None]:
    """Call ``pack`` when an op inside the block saves a tensor for its gradient, and ``unpack`` in backward.

    The functions may, for example, move, compress or count the tensors. Of nested blocks, only the innermost applies.

    Args:
        pack: called with each Tensor that an op saves; its result is stored in place of the tensor.
        unpack: called with a result of ``pack`` in each backward that needs the tensor, also after the block; returns a
            Tensor of the same shape and dtype.

    >>> import flnb, numpy as np
    >>> saved = []
    >>> def pack(x):
    ...     saved.append(x.shape)
    ...     return x.numpy().astype(np.float16)
    >>> with flnb.saved_tensors_hooks(pack, lambda h: flnb.asarray(h, dtype="float32")):
    ...     x = flnb.Variable([1.0, 2.0])
    ...     y = flnb.exp(x).sum()
    >>> y.backward()
    >>> saved, x.grad.tolist()
    ([(2,)], [2.71875, 7.390625])

    Raises:
        TypeError: in backward, if ``unpack`` returns anything but a tensor of the shape and dtype that were packed.
    """
    with state.use(tape=_Hooks(pack, unpack, unpacked_tape())):
        yield
