"""Offloading: tensors saved for backward are stored on another device, or compressed, until they are needed.

`flnb.autograd.keeping` decides when a tensor moves; this module has the place where it is stored (`Store`), the methods
of compression (`Codec`) and the counts of what moved (`Moves`).

A tensor is copied back when backward needs it, not in advance by another thread. Copying in advance would require
memory for one more tensor on the device. It could save the time for which backward waits for copies from the host's
memory: 0.6% of a step (`python -m benchmarks offloading`, two cores).
"""

from __future__ import annotations

import weakref
import zlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_backends.memory.caching import Caching
from flnb_backends.memory.host import HostDevice
from flnb_telemetry import quantity, schema
from flnb_telemetry.withblock import with_block

from flnb.autograd.keeping import Keeping
from flnb.autograd.packing import unpacked_tape
from flnb.dispatch import memory, registry, state
from flnb.dispatch.announcing import aside
from flnb.interface.living import Living
from flnb.interface.memory import MemoryDevice, MemoryManager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flnb.autograd.keeping import Saved, SavedBlock


@dataclass
class Moves:
    """Counts of the tensors that `offload` or `compress` moved.

    Attributes:
        manager: the memory manager that stores the tensors' values while they are not on the device.
        away, back: the numbers of memory blocks that were moved away from the device, and back.
        away_bytes, back_bytes: the total sizes of these blocks.
        away_seconds, back_seconds: the time that the moves took.
        stored_bytes: the memory used by the moved values, less than ``away_bytes`` if they are compressed.
    """

    manager: MemoryManager
    away: int = 0
    back: int = 0
    away_bytes: int = 0
    back_bytes: int = 0
    stored_bytes: int = 0
    away_seconds: float = 0.0
    back_seconds: float = 0.0

    def add(self, direction: int, nbytes: int, stored: int, seconds: float) -> None:
        """Count the move of one memory block.

        Args:
            direction: the code of the move in telemetry: `Store.away` or `Store.back`.
            nbytes: the size of the block.
            stored: the bytes that the block's values take in the store.
            seconds: the time that the move took.
        """
        if direction in (schema.AWAY, schema.COMPRESSED):
            self.away, self.away_bytes = self.away + 1, self.away_bytes + nbytes
            self.stored_bytes, self.away_seconds = self.stored_bytes + stored, self.away_seconds + seconds
        else:
            self.back, self.back_bytes = self.back + 1, self.back_bytes + nbytes
            self.back_seconds += seconds

    def __repr__(self) -> str:
        sums = (self.away, self.away_bytes, self.away_seconds), (self.back, self.back_bytes, self.back_seconds)
        away, back = (f"{n} ({quantity.size(nbytes)}, {quantity.duration(t * 1e9)})" for n, nbytes, t in sums)
        return f"<{away} away to {self.manager.name}, {back} back>"


class Store:
    """Storage for the values of memory blocks, plain or compressed, in blocks of a memory manager.

    Attributes:
        away, back: the telemetry codes of a move to the store, and of a move back.
        held: the `SavedBlock` of each block, by the block's number.
        recent: the blocks that were moved back last; they stay on the device, because another op may need them too.
        keep_last: the largest number of blocks in ``recent``.
    """

    def __init__(self, manager: MemoryManager, keep_last: int, codec: Codec | None = None) -> None:
        self.manager, self.moves, self.codec = manager, Moves(manager), codec
        directions = (schema.AWAY, schema.BACK), (schema.COMPRESSED, schema.RESTORED)
        self.away, self.back = directions[codec is not None]
        self.held: Living[SavedBlock] = Living()
        self.recent: deque[weakref.ref[SavedBlock]] = deque()
        self.keep_last = max(2, keep_last)  # both inputs of an op may be needed again by the ops that made them

    def put(self, array: Any, code: int) -> Any:
        """Return a stored copy of an array, from which `get` restores it; None if the codec does not make it smaller.

        ``code`` is the number of the plan to which telemetry attributes the memory.
        """
        kept = array if self.codec is None else self.codec.encode(array)
        if kept is None or (kept is not array and kept.nbytes >= array.nbytes):
            return None
        copy = memory.array_in(self.manager, kept.shape, kept.dtype, kept.nbytes, code, state.ACTIVATION)
        np.copyto(copy, kept)
        return copy

    def get(self, copy: Any, out: Any) -> None:
        """Write the values of a stored copy into the array ``out``."""
        if self.codec is None:
            np.copyto(out, copy)
        else:
            self.codec.decode(copy, out)

    def returned(self, held: SavedBlock) -> None:
        """Add a block that was moved back to ``recent``, and free older blocks if there are more than `keep_last`."""
        self.recent.append(weakref.ref(held))
        while len(self.recent) > self.keep_last:
            old = self.recent.popleft()()
            if old is not None and old is not held:
                old.owner = None


class Codec:
    """Base class of compression methods for `compress`: a subclass implements `encode` and `decode`.

    Attributes:
        name: the name in messages; it begins with "lossy" if decoded values may differ from the original values.
    """

    name = "codec"

    def encode(self, array: Any) -> Any:
        """Return a smaller array from which `decode` restores ``array``; None if it should stay uncompressed."""
        raise NotImplementedError(f"codec {self.name!r} does not implement 'encode': define encode(self, array)")

    def decode(self, encoded: Any, out: Any) -> None:
        """Write the decoded array into ``out``, which has the shape and dtype of the array that was encoded."""
        raise NotImplementedError(f"codec {self.name!r} does not implement 'decode': define decode(self, encoded, out)")


class Zlib(Codec):
    """Lossless compression by DEFLATE (RFC 1951), for values that repeat, such as the zeros after a ReLU.

    Args:
        level: the compression level from 1 (fastest) to 9 (smallest result).
    """

    def __init__(self, level: int = 1) -> None:
        self.name, self.level = "zlib", level

    def encode(self, array: Any) -> Any:
        """Return the compressed bytes; None if they exceed nine tenths of the original size."""
        found = np.frombuffer(zlib.compress(array.reshape(-1).view(np.uint8), self.level), np.uint8)
        return found if found.nbytes <= 0.9 * array.nbytes else None

    def decode(self, encoded: Any, out: Any) -> None:
        """Write the decompressed values into ``out``."""
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(zlib.decompress(encoded), np.uint8)


class LossyCast(Codec):
    """Compression by a cast to a smaller floating dtype, after which gradients are no longer exact.

    An array with a value that the smaller dtype cannot represent is not compressed.
    """

    def __init__(self, dtype: Any = "float16") -> None:
        self.dtype = np.dtype(dtype)
        self.name = f"lossy-{self.dtype.name}"

    def encode(self, array: Any) -> Any:
        """Return the cast array, or None if it would not be smaller, is not floating, or would overflow."""
        if array.dtype.kind != "f" or array.dtype.itemsize <= self.dtype.itemsize:
            return None
        try:
            with np.errstate(over="raise"):
                return array.astype(self.dtype)
        except FloatingPointError:
            return None

    def decode(self, encoded: Any, out: Any) -> None:
        """Write the values into ``out``, cast to its dtype."""
        np.copyto(out, encoded)


@with_block
def offload(
    to: Any = None, min_bytes: int | str = "1MiB", keep_last: int = 2, select: Callable[[Saved], bool] | None = None
) -> Iterator[Moves]:
    """Move saved tensors to other memory while they are idle, and back to the device before backward uses them.

    This applies to the tensors that ops inside the ``with`` block save for backward.

    A tensor's memory block is moved when the program has dropped the tensor and all its views (otherwise no memory
    would be freed) and a later op saves a tensor. The block is copied back to its original manager when backward needs
    the tensor, inside the ``with`` block or after it. Values stay the same, bit by bit. Parameters are not moved.

    Args:
        to: the destination: a memory manager (name, class or instance) or a memory device. By default a new caching
            manager of the host's memory, ``moves.manager``. If each step gets the same instance, later steps use its
            segments again and reserve no new memory.
        min_bytes: smaller memory blocks stay on the device.
        keep_last: the number of idle memory blocks that stay on the device: the last saved ones, which backward needs
            first. The same number of blocks that were copied back last stay on the device, because two ops often save
            the same block.
        select: called with the facts about each saved tensor, an object with the attributes ``op``, ``scope``,
            ``shape``, ``dtype``, ``nbytes``, ``category`` and ``alloc_id``; returns False for a tensor that stays.

    Yields:
        The counts, bytes and seconds of the moves so far (`Moves`), kept up to date. A recording ``run`` lists the
        moves in ``run.table("transfer")``.

    >>> import flnb
    >>> x = flnb.Variable(flnb.ones((512, 512)))
    >>> with flnb.memory.offload(keep_last=0) as moves:
    ...     y = x
    ...     for _ in range(5):
    ...         y = flnb.tanh(y)
    ...     y.sum().backward()
    >>> moves.away, moves.back, moves.away_bytes
    (4, 4, 4194304)

    Raises:
        ValueError: ``to`` is on the device where the tensors already are, or ``keep_last`` is negative.
    """
    device = HostDevice() if to is None else to
    manager: MemoryManager = (
        Caching(device) if isinstance(device, MemoryDevice) else registry.make("memory manager", device)
    )
    if manager.device.device is state.current().manager.device.device:
        raise ValueError(
            f"offload: {manager!r} is on the device that tensors are on, {manager.device.device!r}: moving them there "
            f"frees nothing; give a manager on another device, or none for the host's memory"
        )
    store = Store(manager, keep_last)
    with aside(manager), _keeping(store, "offload", min_bytes, keep_last, select) as moves:
        yield moves
    if manager is not to:  # made here, and gone with this block
        manager.release_cached()


@with_block
def compress(
    codec: Codec | str = "zlib",
    min_bytes: int | str = "1MiB",
    keep_last: int = 2,
    select: Callable[[Saved], bool] | None = None,
) -> Iterator[Moves]:
    """Compress tensors that ops inside the block save for backward, while they are idle.

    Args:
        codec: "zlib" (lossless), "lossy-float16" (a cast to float16), or a `Codec` such as ``Zlib(level=6)``.
        min_bytes, keep_last, select: see `offload`.

    >>> import flnb
    >>> x = flnb.Variable(flnb.ones((512, 512)))
    >>> with flnb.memory.compress("zlib", keep_last=0) as moves:
    ...     y = flnb.relu(flnb.relu(x) - 1.0).sum()
    >>> y.backward()
    >>> moves.away, moves.stored_bytes < 0.1 * moves.away_bytes
    (2, True)

    Raises:
        ValueError: no codec has that name, or ``keep_last`` is negative.
    """
    codecs = {"zlib": Zlib, "lossy-float16": LossyCast}
    if not isinstance(codec, Codec):
        if codec not in codecs:
            raise ValueError(
                f"compress: unknown codec {codec!r}; expected {', '.join(map(repr, codecs))}, or a flnb.memory.Codec"
            )
        codec = codecs[codec]()
    store = Store(state.current().manager, keep_last, codec)
    with _keeping(store, "compress", min_bytes, keep_last, select) as moves:
        yield moves


@with_block
def _keeping(
    store: Store, what: str, min_bytes: int | str, keep_last: int, select: Callable[[Saved], bool] | None
) -> Iterator[Moves]:
    """Record the block's ops on a tape that moves saved tensors to a store; yields the counts of moves.

    ``what`` is the name of the public function, for error messages.
    """
    if keep_last < 0:
        raise ValueError(f"{what}: keep_last, the number of idle blocks to keep, must be 0 or more, got {keep_last}")
    nbytes = quantity.bytes_of(min_bytes, f"{what}(min_bytes=...)")
    tape = Keeping(store, nbytes, keep_last, select, unpacked_tape())
    with state.use(tape=tape):
        yield store.moves
    tape.settle()  # the functions inside have ended, and what they held is free to go
