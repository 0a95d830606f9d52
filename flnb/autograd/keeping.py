"""Values that ops save, stored elsewhere while they are idle, and brought back when their gradient is due.

Moving a saved tensor helps only if that frees its block: if only the tape refers to it. That is not so at the moment it
is saved, since the line that computed it still has it. So it waits, and whenever an op on large tensors is recorded,
the references to waiting tensors are counted. CPython counts references, and the tape's own are known here: the block's
array, the tensors that know of writes to it, and views among these. Any other reference belongs to the program.
"""

from __future__ import annotations

import weakref
from collections import Counter
from sys import getrefcount
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from flnb_telemetry import bus, schema

from flnb.autograd.packing import Packed, PackingTape
from flnb.dispatch import memory
from flnb.dispatch.crossing import detached
from flnb.dispatch.plan import Spec, families, spec_of
from flnb.interface.tape import PLAN, SEQ

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.autograd.offloading import Store
    from flnb.interface.tape import Node, Tape
    from flnb.tensor import Tensor

__all__ = ["Keeping", "Saved"]

ACTIVATION = schema.CATEGORIES.index("activation")
STAYING = frozenset(schema.CATEGORIES.index(name) for name in ("parameter", "optimizer_state"))
_ALONE = next(map(getrefcount, [object()]))  # what `getrefcount` says of an item that only a list holds


class Saved(NamedTuple):
    """Facts about a saved tensor, for `select` to decide whether it may move: the op, the place, and the tensor."""

    op: str
    scope: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int
    category: str
    alloc_id: int


class SavedBlock:
    """The block of saved tensors: on its device, away, or both. It lives as long as their nodes do."""

    __slots__ = ("__weakref__", "array", "code", "copy", "last", "like", "manager", "node", "roots", "store", "written")

    def __init__(self, array: Any, block: Any, store: Store, node: Node) -> None:
        self.array: Any = array
        self.last = weakref.ref(array)
        self.copy: Any = None
        self.like = array.shape, array.dtype, array.nbytes
        self.manager, self.store = block.manager, store
        self.code, self.node = node[PLAN].code, node[SEQ]
        self.roots: list[Tensor] = []
        self.written = 0
        store.held.add(self, block.id)

    @property
    def last_write(self) -> int:
        """Sequence number of the last write to the block while it was present (away, nothing can write to it)."""
        return max([self.written, *[root._last_write for root in self.roots]])

    def knows(self, x: Tensor) -> None:
        """Remember the tensors in which writes to a saved tensor's memory are noted."""
        root = getattr(x, "_root", x)
        while root is not None and all(root is not known for known in self.roots):
            self.roots.append(root)
            root = getattr(root, "_root", None)

    def idle(self) -> bool:
        """Whether nothing else refers to the block."""
        roots = self.roots
        named = Counter([id(getattr(root, "_root", None)) for root in roots])
        counts = zip(map(getrefcount, roots), map(id, roots), strict=True)
        if any(count != _ALONE + named[key] for count, key in counts) or self.array.base.block.locks:
            return False
        arrays = list({id(x): x for x in (self.array, *[root._data for root in roots])}.values())
        ours = Counter(map(id, [self.array, *[root._data for root in roots], *[x.base for x in arrays]]))
        counts = zip(map(getrefcount, arrays), map(id, arrays), strict=True)
        if any(count != _ALONE + ours[key] for count, key in counts):
            return False
        return next(map(getrefcount, [self.array.base])) == _ALONE + 1

    def move(self) -> None:
        """Release the block after storing its bytes elsewhere, unless that is not worth it."""
        if self.copy is None:
            block, t0 = self.array.base.block, clock()
            self.copy = self.store.put(self.array, self.code)
            if self.copy is None:
                return
            self._tell(self.store.away, t0, block.id)
        self.written, self.roots, self.array = self.last_write, [], None

    def present(self) -> Any:
        """The block's array, brought back if it is away."""
        array = self.array
        if array is None:
            array = self.last()
        if array is None:
            t0 = clock()
            array = memory.array_in(self.manager, *self.like, self.code, ACTIVATION)
            self.store.get(self.copy, array)
            self.array, self.last = array, weakref.ref(array)
            block: Any = memory.block_of(array)
            self.store.held.add(self, block.id)
            self._tell(self.store.back, t0, block.id)
            self.store.returned(self)
        return array

    def _tell(self, direction: int, t0: int, block: int) -> None:
        t1, nbytes = clock(), self.like[2]
        self.store.moves.add(direction, nbytes, self.copy.nbytes, (t1 - t0) / 1e9)
        if bus.lanes is not None:
            lane = bus.lanes.lane
            code = schema.TRANSFER | direction << schema.AUX_SHIFT
            lane.emit(code, t0, t1, nbytes, block, self.copy.base.block.id, self.node, lane.context)


class SavedTensor:
    """One saved tensor: its place in its block. It represents the tensor on the tape."""

    __slots__ = ("held", "spec", "view")

    def __init__(self, held: SavedBlock, array: Any, data: Any, spec: Any) -> None:
        self.held, self.spec = held, spec
        self.view: Any = None
        if data is not array:
            offset = data.__array_interface__["data"][0] - array.__array_interface__["data"][0]
            self.view = offset, data.strides

    @property
    def _last_write(self) -> int:
        return self.held.last_write

    def unpacked(self) -> Tensor:
        """The tensor, back in its place."""
        array = self.held.present()
        if self.view is None:
            return detached(array, self.spec)
        tensor = detached(np.ndarray(self.spec.shape, self.spec.dtype, array, *self.view), self.spec)
        tensor._root = detached(array, spec_of(array.shape, array.dtype))
        return tensor


class Keeping(PackingTape):
    """A tape that records on the one around it and moves values that nodes save to a store while they are idle.

    Args:
        store: the store (`flnb.memory.offload`).
        min_bytes: smaller blocks stay.
        keep_last: so many idle ones stay, those saved last: backward begins with them.
        select: called with each tensor (`Saved`); returns whether it may move. None: all may.
    """

    name: ClassVar[str] = "keeping"

    def __init__(
        self, store: Store, min_bytes: int, keep_last: int, select: Callable[[Saved], bool] | None, around: Tape | None
    ) -> None:
        super().__init__(_no_pack, SavedTensor.unpacked, around)
        self.store, self.min_bytes, self.keep_last, self.select = store, min_bytes, keep_last, select
        self._large: dict[Any, bool] = {}  # by plan
        self._waiting: dict[int, weakref.ref[SavedBlock]] = {}  # by id, those saved last at the end

    def record(self, node: Node) -> Node | None:
        plan = node[PLAN]
        recorded = super().record(node)
        large = self._large.get(plan)
        if large is None:  # an op on small tensors is quicker than counting references
            sizes = [spec.nbytes for spec in (plan.spec, *plan.specs) if isinstance(spec, Spec)]
            large = self._large[plan] = max(sizes) >= self.min_bytes
        if large:
            self.settle()
        return recorded

    def settle(self) -> None:
        """Move all idle tensors now, except those saved last."""
        idle = []
        for key, reference in list(self._waiting.items()):
            held = reference()
            if held is None or held.array is None:
                del self._waiting[key]
            elif held.idle():
                idle.append(held)
        for held in idle[: max(0, len(idle) - self.keep_last)]:
            held.move()
            del self._waiting[id(held)]

    def _takes(self, x: Tensor, node: Node) -> bool:
        block = memory.block_of(x._data) if families[x._spec.kind].reads_host else None
        if block is None or block.requested < self.min_bytes or block.category in STAYING:
            return False
        if self.select is None:
            return True
        facts = x._spec.shape, x._spec.dtype, x._spec.nbytes, schema.CATEGORIES[block.category], block.id
        return bool(self.select(Saved(node[PLAN].op.name, bus.threads.here.path, *facts)))

    def _packed(self, x: Tensor, place: Node | None, node: Node) -> Packed:
        array = x._data
        while isinstance(array.base, np.ndarray):
            array = array.base
        block = array.base.block
        held = self.store.held.get(block.id)
        if held is None:
            held = SavedBlock(array, block, self.store, node)
        held.array = array
        held.knows(x)
        self._waiting.pop(id(held), None)
        self._waiting[id(held)] = weakref.ref(held)
        return Packed(SavedTensor(held, array, x._data, x._spec), x._spec, place)


def _no_pack(_: Tensor) -> Any:
    raise RuntimeError("what a keeping tape saves is no matter of a function")
