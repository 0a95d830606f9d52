"""Offloading: saved tensors are stored on another device, or compressed, until their gradient is computed.

The schedule is `flnb.autograd.keeping`'s; here is where tensors go (a `Store`) and what moved (`Moves`).

A block comes back when its node is pulled, and not a node earlier on another thread: backward waits for copies in the
host's memory for 0.6% of a step (`python -m benchmarks offloading`, two cores), which is all that could be won, and a
block more would lie on the device meanwhile.
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

from flnb.dispatch import memory, registry, state
from flnb.interface.living import Living
from flnb.interface.memory import MemoryDevice, MemoryManager

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flnb.autograd.keeping import Saved, SavedBlock

__all__ = ["Codec", "LossyCast", "Moves", "Zlib", "compress", "offload"]

ACTIVATION = schema.CATEGORIES.index("activation")


@dataclass
class Moves:
    """Counts of the moves in each direction: blocks, bytes and seconds.

    ``stored_bytes`` is what those that went away take where they are kept: less than ``away_bytes`` if compressed.
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
        """Count a move."""
        if direction in (schema.AWAY, schema.COMPRESSED):
            self.away, self.away_bytes = self.away + 1, self.away_bytes + nbytes
            self.stored_bytes, self.away_seconds = self.stored_bytes + stored, self.away_seconds + seconds
        else:
            self.back, self.back_bytes = self.back + 1, self.back_bytes + nbytes
            self.back_seconds += seconds

    def __repr__(self) -> str:
        def part(count: int, nbytes: int, seconds: float) -> str:
            return f"{count} ({quantity.size(nbytes)}, {quantity.duration(seconds * 1e9)})"

        away = part(self.away, self.away_bytes, self.away_seconds)
        return f"<{away} away to {self.manager.name}, {part(self.back, self.back_bytes, self.back_seconds)} back>"


class Store:
    """Storage for the values of blocks, plain or encoded, in blocks of another manager.

    ``held`` knows by the number of a block what is kept of it; ``recent`` what came back last and may be needed again.
    """

    def __init__(self, manager: MemoryManager, keep_last: int, codec: Codec | None = None) -> None:
        self.manager, self.moves, self.codec = manager, Moves(manager), codec
        directions = (schema.AWAY, schema.BACK), (schema.COMPRESSED, schema.RESTORED)
        self.away, self.back = directions[codec is not None]
        self.held: Living[SavedBlock] = Living()
        self.recent: deque[weakref.ref[SavedBlock]] = deque()
        self.keep_last = max(2, keep_last)  # both inputs of an op are results of others, which saved them as well

    def put(self, array: Any, code: int) -> Any:
        """Return a stored copy from which `get` restores the array, or None if storing it is not worthwhile."""
        kept = array if self.codec is None else self.codec.encode(array)
        if kept is None or (self.codec is not None and kept.nbytes >= array.nbytes):
            return None
        copy = memory.array_in(self.manager, kept.shape, kept.dtype, kept.nbytes, code, ACTIVATION)
        np.copyto(copy, kept)
        return copy

    def get(self, copy: Any, out: Any) -> None:
        """Restore a stored copy into an array."""
        if self.codec is None:
            np.copyto(out, copy)
        else:
            self.codec.decode(copy, out)

    def returned(self, held: SavedBlock) -> None:
        """Note that a block came back; release earlier ones whose copy still exists."""
        self.recent.append(weakref.ref(held))
        while len(self.recent) > self.keep_last:
            old = self.recent.popleft()()
            if old is not None and old is not held:
                old.owner = None


class Codec:
    """A compression method: derive from it and pass it to `compress`.

    Attributes:
        name: for messages; that of one that loses something begins with "lossy".
    """

    name = "codec"

    def encode(self, array: Any) -> Any:
        """Return a smaller array from which `decode` restores this one, or None to leave it as it is."""
        raise NotImplementedError(f"codec {self.name!r} does not implement 'encode'")

    def decode(self, encoded: Any, out: Any) -> None:
        """Write the decoded array into ``out``, which has the shape and dtype of the array that was encoded."""
        raise NotImplementedError(f"codec {self.name!r} does not implement 'decode'")


class Zlib(Codec):
    """DEFLATE (RFC 1951), lossless: good for what is zero in many places, as after a ReLU, or repeats itself.

    Args:
        level: 1, the quickest, to 9.
    """

    def __init__(self, level: int = 1) -> None:
        self.name, self.level = "zlib", level

    def encode(self, array: Any) -> Any:
        """Return the compressed bytes, or None if they are more than nine tenths of the original."""
        found = np.frombuffer(zlib.compress(array.reshape(-1).view(np.uint8), self.level), np.uint8)
        return found if found.nbytes <= 0.9 * array.nbytes else None

    def decode(self, encoded: Any, out: Any) -> None:
        """Inflate."""
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(zlib.decompress(encoded), np.uint8)


class LossyCast(Codec):
    """A cast to a smaller floating dtype: gradients are no longer exact. What would overflow stays as it is."""

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
        """Cast back."""
        np.copyto(out, encoded)


@with_block
def offload(
    to: Any = None,
    min_bytes: int | str = "1MiB",
    keep_last: int = 2,
    select: Callable[[Saved], bool] | None = None,
) -> Iterator[Moves]:
    """Move what ops inside save for their gradients off the device while it is idle, and back before it is used.

    A block moves once nothing but the tape holds it: what a name or a view still refers to stays, as moving it would
    free nothing. It moves when a later op saves something, and comes back, to its own manager, when backward pulls the
    node that saved it, wherever that runs. Values are the same, bit by bit. Parameters stay.

    Args:
        to: a memory manager, by name, class or instance, or a device; by default the host's memory, in blocks of a
            caching manager of its own, which ``moves.manager`` is. An instance keeps its segments: give the same one to
            each step, and moves need no new memory.
        min_bytes: smaller blocks stay.
        keep_last: so many idle blocks stay, those saved last: backward needs them first. So many that came back stay
            until others do, as the same block is often saved by two ops.
        select: called with what is known of each saved tensor (op, scope, shape, dtype, nbytes, category, alloc_id);
            where it says False, the tensor stays.

    Yields:
        The counts, bytes and seconds of the moves, kept up to date. A recording has each as an event,
        ``run.table("transfer")``.

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
        ValueError: the memory to move to is on the device that the active manager uses.
    """
    manager = Caching(HostDevice()) if to is None else _manager_on(to)
    if manager.device.device is state.current().manager.device.device:
        raise ValueError(
            f"offload: {manager!r} is on the device that tensors are on, {manager.device.device!r}: moving them there "
            f"frees nothing; give a manager on another device, or none for the host's memory"
        )
    store = Store(manager, keep_last)
    with memory.aside(manager), _keeping(store, "offload", min_bytes, keep_last, select) as moves:
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
    """Keep what ops inside save for their gradients compressed while it is idle, by the schedule of `offload`.

    Args:
        codec: "zlib" (lossless), "lossy-float16" (a cast there and back), or a `Codec` such as ``Zlib(level=6)``.
        min_bytes, keep_last, select: see `offload`.

    >>> import flnb
    >>> x = flnb.Variable(flnb.ones((512, 512)))
    >>> with flnb.memory.compress("zlib", keep_last=0) as moves:
    ...     y = flnb.relu(flnb.relu(x) - 1.0).sum()
    >>> y.backward()
    >>> moves.away, moves.stored_bytes < 0.1 * moves.away_bytes
    (2, True)

    Raises:
        ValueError: a codec of another name.
    """
    codecs = {"zlib": Zlib, "lossy-float16": LossyCast}
    if not isinstance(codec, Codec):
        if codec not in codecs:
            raise ValueError(
                f"compress: no codec {codec!r}; known are {', '.join(map(repr, codecs))}, or give a flnb.memory.Codec"
            )
        codec = codecs[codec]()
    store = Store(state.current().manager, keep_last, codec)
    with _keeping(store, "compress", min_bytes, keep_last, select) as moves:
        yield moves


@with_block
def _keeping(
    store: Store, what: str, min_bytes: int | str, keep_last: int, select: Callable[[Saved], bool] | None
) -> Iterator[Moves]:
    from flnb.autograd.keeping import Keeping  # above this layer, and here only when it is asked for
    from flnb.autograd.packing import unpacked_tape

    if keep_last < 0:
        raise ValueError(f"{what}: keep_last is how many idle blocks stay, 0 or more, got {keep_last}")
    nbytes = quantity.bytes_of(min_bytes, f"{what}(min_bytes=...)")
    tape = Keeping(store, nbytes, keep_last, select, unpacked_tape())
    with state.use(tape=tape):
        yield store.moves
    tape.settle()  # the functions inside have ended, and what they held is free to go


def _manager_on(to: Any) -> MemoryManager:
    if isinstance(to, MemoryDevice):
        return Caching(to)
    made: MemoryManager = registry.make("memory manager", to)
    return made
