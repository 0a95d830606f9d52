"""Saved-tensor hooks: values that ops save for their gradients pass through ``pack``, and back through ``unpack``."""

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

__all__ = ["saved_tensors_hooks"]


class Packed:
    """A saved tensor as ``pack`` returned it, and the place on the tape that it had."""

    __slots__ = ("_spec", "place", "value")

    def __init__(self, value: Any, spec: Any, place: Node | None) -> None:
        self.value = value
        self._spec = spec
        self.place = place

    @property
    def _last_write(self) -> int:
        """The last write, as of a Tensor, where the value is still the memory that was saved; a copy never changes."""
        return getattr(self.value, "_last_write", 0)


class Unpacking(Intercepted):
    """The plan of a node that saved packed values."""

    __slots__ = ("unpack",)

    def __init__(self, original: Any, unpack: Callable[[Any], Any]) -> None:
        super().__init__(original)
        self.unpack = unpack

    def values(self, saved: list[Any]) -> list[Any]:
        return [self._unpacked(x) if isinstance(x, Packed) else x for x in saved]

    def _unpacked(self, packed: Packed) -> Tensor:
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
    """A tape that records on the one around it and packs the values that nodes save."""

    name: ClassVar[str] = "packing"

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor], around: Tape | None) -> None:
        self.pack, self.unpack, self.around = pack, unpack, around
        self._plans: dict[Any, Unpacking] = {}

    def record(self, node: Node) -> Node | None:
        node[MARK] = None if self.around is None else self.around.mark
        recorded = node if self.around is None else self.around.record(node)
        if recorded is None:
            return None
        plan = recorded[PLAN]
        places = [*recorded[PARENTS], *[None] * len(recorded)]  # inputs come first in what is saved
        saved = zip(recorded[SAVED:], places, strict=False)
        packed = [
            self._packed(x, place, recorded) if isinstance(x, Tensor) and self._takes(x, recorded) else x
            for x, place in saved
        ]
        if not any(type(x) is Packed for x in packed):
            return recorded
        recorded[SAVED:] = packed
        unpacking = self._plans.get(plan)
        if unpacking is None:
            unpacking = self._plans[plan] = Unpacking(plan, self.unpack)
        recorded[PLAN] = unpacking
        return recorded

    def _takes(self, x: Tensor, node: Node) -> bool:
        """Whether a tensor that a node saves is packed."""
        return True

    def _packed(self, x: Tensor, place: Node | None, node: Node) -> Packed:
        given = dispatch.detached(x._data, x._spec)
        given._root = getattr(x, "_root", x)  # writes to the memory are known there
        with state.use(grad=False):
            return Packed(self.pack(given), x._spec, place)


def unpacked_tape() -> Tape | None:
    """The tape that records here, without those that pack: only the innermost block packs."""
    around: Tape | None = state.current().tape
    while isinstance(around, PackingTape):
        around = around.around
    return around


@with_block
def saved_tensors_hooks(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> Iterator[None]:
    """Pass values that ops save for their gradients through functions: to offload, compress or count them.

    Args:
        pack: takes each Tensor that an op inside the block saves, returns anything.
        unpack: takes that again, returns the Tensor (of the same shape and dtype). Called in each backward that needs
            it, wherever that runs. Of nested blocks the innermost applies.

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
        TypeError: in backward, if ``unpack`` returns anything but a tensor of the packed one's spec.
    """
    with state.use(tape=PackingTape(pack, unpack, unpacked_tape())):
        yield
