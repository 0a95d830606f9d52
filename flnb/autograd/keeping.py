"""Tape that moves saved tensors to another place while they are idle, and back when backward needs them.

Moving a saved tensor frees memory only if the tape holds the only reference to the tensor. When a tensor is saved, the
line that computed it still refers to the tensor. So the tape stores a reference to the memory behind the tensor's
array, and only a weak reference to the array itself. When the array no longer exists, the program has dropped the array
and all its views, and the memory is idle. When the tape records a later op on large tensors, it moves the values in
idle memory.
"""

from __future__ import annotations

import weakref
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from flnb_telemetry import bus, schema

from flnb.autograd.packing import PackingTape
from flnb.dispatch import memory
from flnb.dispatch.crossing import detached
from flnb.dispatch.plan import Spec, families, spec_of
from flnb.dispatch.state import ACTIVATION, OPTIMIZER_STATE, PARAMETER
from flnb.interface.tape import PLAN, SEQ

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.autograd.offloading import Store
    from flnb.interface.tape import Node, Tape
    from flnb.tensor import Tensor

STAYING = frozenset((PARAMETER, OPTIMIZER_STATE))
"""Categories of memory that is never moved."""


class Saved(NamedTuple):
    """Facts about a saved tensor, passed to the argument ``select`` of `flnb.memory.offload`.

    Attributes:
        op: name of the op that saved the tensor.
        scope: path of the modules and scopes in which the op ran.
        nbytes: bytes of the tensor's elements.
        category: the category of its memory in telemetry, such as "activation".
        alloc_id: number of its memory's allocation in telemetry.
    """

    op: str
    scope: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int
    category: str
    alloc_id: int


class SavedBlock:
    """A memory block with saved tensors, whose values are in the block, in a store, or in both.

    Attributes:
        owner: the object that owns the block's memory; None while the values are only in the store.
        array: a weak reference to the array in the block, to which the program or a backward refers.
        copy: the array in the store that holds the values; None before the first move.
        notes: the lists in which the tensors that own the block's memory record in-place writes.
    """

    __slots__ = ("__weakref__", "array", "code", "copy", "like", "manager", "node", "notes", "owner", "store")

    def __init__(self, array: Any, block: Any, store: Store, node: Node) -> None:
        self.owner: Any = array.base
        self.array = weakref.ref(array)
        self.copy: Any = None
        self.like = array.shape, array.dtype, array.nbytes
        self.manager, self.store = block.manager, store
        self.code, self.node = node[PLAN].code, node[SEQ]
        self.notes: list[list[int]] = []
        store.held.add(self, block.id)

    def watch(self, x: Tensor) -> None:
        """Store in this block the list in which a tensor records in-place writes; the block outlives the tensor."""
        note = getattr(x, "_root", x)._write_note
        if all(note is not known for known in self.notes):
            self.notes.append(note)

    def idle(self) -> bool:
        """Return whether the program has dropped all arrays in this block and the block is not locked."""
        return self.array() is None and not self.owner.block.locks

    def move(self) -> None:
        """Copy the block's values to the store and free the block; do nothing if the store rejects the values."""
        if self.copy is None:
            block, t0 = self.owner.block, clock()
            self.copy = self.store.put(self.present(), self.code)
            if self.copy is None:
                return
            self._emit(self.store.away, t0, block.id)
        self.owner = None

    def present(self) -> Any:
        """Return an array of the block's values, copied back from the store if necessary."""
        array = self.array()
        if array is None and self.owner is not None:
            array = np.ndarray(*self.like[:2], self.owner)
        elif array is None:
            t0 = clock()
            array = memory.array_in(self.manager, *self.like, self.code, ACTIVATION)
            self.store.get(self.copy, array)
            self.owner = array.base
            self.store.held.add(self, self.owner.block.id)
            self._emit(self.store.back, t0, self.owner.block.id)
            self.store.returned(self)
        self.array = weakref.ref(array)
        return array

    def _emit(self, direction: int, t0: int, block: int) -> None:
        """Count a move of block number ``block``, and emit an event about this move, which began at ``t0`` (ns).

        ``direction`` is the code of the move in telemetry, `Store.away` or `Store.back`.
        """
        t1, nbytes = clock(), self.like[2]
        self.store.moves.add(direction, nbytes, self.copy.nbytes, (t1 - t0) / 1e9)
        if bus.lanes is not None:
            lane = bus.lanes.lane
            code = schema.TRANSFER | direction << schema.AUX_SHIFT
            lane.emit(code, t0, t1, nbytes, block, self.copy.base.block.id, self.node, lane.context)


class SavedTensor:
    """A node's replacement for a saved tensor: the tensor's block, and the offset and strides in the block."""

    __slots__ = ("held", "spec", "view")

    def __init__(self, held: SavedBlock, array: Any, data: Any, spec: Any) -> None:
        self.held, self.spec = held, spec
        self.view: Any = None
        if data is not array:
            offset = data.__array_interface__["data"][0] - array.__array_interface__["data"][0]
            self.view = offset, data.strides

    @property
    def _last_write(self) -> int:
        return max([note[0] for note in self.held.notes])

    def unpacked(self) -> Tensor:
        """Return the tensor, after moving its block back if necessary."""
        array = self.held.present()
        if self.view is None:
            return detached(array, self.spec)
        tensor = detached(np.ndarray(self.spec.shape, self.spec.dtype, array, *self.view), self.spec)
        tensor._root = detached(array, spec_of(array.shape, array.dtype))
        return tensor


class Keeping(PackingTape):
    """The tape of `flnb.memory.offload` and `compress`: while saved tensors are idle, it moves them to a store.

    Args:
        store: the store to which the tensors' blocks are moved.
        min_bytes: blocks with fewer bytes are not moved.
        keep_last: the number of idle blocks that are not moved: the last saved ones, because backward begins with them.
        select: a function of a `Saved` that returns whether the tensor may be moved; None if all tensors may be moved.
        around: the tape that was active before, which records the nodes.
    """

    name: ClassVar[str] = "keeping"

    def __init__(
        self, store: Store, min_bytes: int, keep_last: int, select: Callable[[Saved], bool] | None, around: Tape | None
    ) -> None:
        super().__init__(SavedTensor.unpacked, around)
        self.store, self.min_bytes, self.keep_last, self.select = store, min_bytes, keep_last, select
        self._large: dict[Any, bool] = {}  # by plan: whether an op has an operand or result that may move
        self._waiting: dict[int, weakref.ref[SavedBlock]] = {}  # not moved yet, by id(), those saved last at the end

    def record(self, node: Node) -> Node | None:
        plan = node[PLAN]
        recorded = super().record(node)
        large = self._large.get(plan)
        if large is None:  # an op on small tensors takes less time than looking through all blocks that wait
            sizes = [spec.nbytes for spec in (plan.spec, *plan.specs) if isinstance(spec, Spec)]
            large = self._large[plan] = max(sizes) >= self.min_bytes
        if large:
            self.settle()
        return recorded

    def settle(self) -> None:
        """Move all idle blocks to the store now, except the `keep_last` that were saved last."""
        idle = []
        for key, reference in list(self._waiting.items()):
            held = reference()
            if held is None or held.owner is None:
                del self._waiting[key]
            elif held.idle():
                idle.append(held)
        for held in idle[: max(0, len(idle) - self.keep_last)]:
            held.move()
            del self._waiting[id(held)]

    def packed(self, x: Tensor, node: Node) -> Any:
        block = memory.block_of(x._data) if families[x._spec.kind].reads_host else None
        if block is None or block.requested < self.min_bytes or block.category in STAYING:
            return x
        if self.select is not None:
            facts = x._spec.shape, x._spec.dtype, x._spec.nbytes, schema.CATEGORIES[block.category], block.id
            if not self.select(Saved(node[PLAN].op.name, bus.threads.here.path, *facts)):
                return x
        array = x._data
        while isinstance(array.base, np.ndarray):
            array = array.base
        held = self.store.held.get(block.id)
        if held is None:
            held = SavedBlock(array, block, self.store, node)
        held.owner, held.array = array.base, weakref.ref(array)
        held.watch(x)
        self._waiting.pop(id(held), None)
        self._waiting[id(held)] = weakref.ref(held)
        return SavedTensor(held, array, x._data, x._spec)
