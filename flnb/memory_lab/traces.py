"""Traces: a program's allocations and frees in order, without addresses, for replay on any manager."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flnb_telemetry import Recording, load_run, quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb_telemetry import schema
    from flnb_telemetry.schema import Ints
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """A program's allocations and frees: n calls, m of them allocations.

    Attributes:
        name: the name of the recording or file from which the trace was made.
        calls: int64 (n,), the calls in order: k for the k-th allocation (counted from 1), -k for its free.
        nbytes: int64 (m,), the bytes requested by the k-th allocation at [k - 1].
        t: float64 (n,), the time of each call, in seconds since the recording began.
        category: uint8 (m,), indices into `schema.CATEGORIES`.
        op, scope: object (m,), the op that allocated, and the module in which it ran, as texts; "" if unknown.
        shapes: the shapes of the tensors, () if unknown.
        granularity: the device of the recording rounded segments up to a multiple of this many bytes; so do replays.

    >>> trace = Trace.of_calls([1, 2, -1, 3], [512, 1024, 2048])
    >>> trace
    4 calls, 3 allocations, at most 3.00 KiB live
    >>> trace.live
    array([ 512, 1536, 1024, 3072])
    """

    TICK: ClassVar[int] = 1 << 32

    name: str
    calls: Ints
    nbytes: Ints
    t: NDArray[np.float64]
    category: NDArray[np.uint8]
    op: NDArray[np.object_]
    scope: NDArray[np.object_]
    shapes: Sequence[tuple[int, ...]] = field(default=())
    granularity: int = 512

    @classmethod
    def of_calls(cls, calls: ArrayLike, nbytes: ArrayLike, t: ArrayLike | None = None, name: str = "trace") -> Trace:
        """Create a trace from arrays of calls and sizes; without times ``t``, calls are one second apart.

        Raises:
            ValueError: an allocation is made twice, out of turn or never, or freed twice or before it is made.
        """
        order, sizes = np.asarray(calls, np.int64).reshape(-1), np.asarray(nbytes, np.int64).reshape(-1)
        _check(order, sizes)
        times = np.arange(len(order), dtype=np.float64) if t is None else np.asarray(t, np.float64)
        if times.shape != order.shape:
            raise ValueError(f"Trace: expected a time for each of {len(order)} calls, got shape {times.shape}")
        nothing = np.full(len(sizes), "", object)
        unknown = np.zeros(len(sizes), np.uint8)
        return cls(name, order, sizes, times, unknown, nothing, nothing, [()] * len(sizes))

    @classmethod
    def of_lifetimes(
        cls, born: Ints, died: Ints, nbytes: Ints, seconds: Any, name: str, **about: Any
    ) -> Trace:  # fmt: skip
        """Create a trace from the times of each allocation and its free.

        Args:
            born: int64 (m,), times of allocation in any unit, sorted.
            died: int64 (m,), times of the frees; the largest int64 for allocations that were never freed.
            nbytes: int64 (m,), requested bytes.
            seconds: a function that converts an array of such times to seconds.
            name: the trace's name.
            about: the trace's attributes category, op, scope, shapes and granularity.
        """
        freed = np.flatnonzero(died != np.iinfo(np.int64).max)
        t = np.concatenate([born, died[freed]])
        # of calls at one time frees come first, so that their memory is available to the allocations
        kind = np.concatenate([np.ones(len(born)), np.where(died[freed] > born[freed], 0, 2)])
        order = np.lexsort((kind, t))
        calls = np.concatenate([np.arange(1, len(born) + 1), -(freed + 1)])[order]
        return cls(name, calls, np.asarray(nbytes, np.int64), seconds(t[order]), **about)

    def with_lifetimes(self, rows: Ints, born: Ints, died: Ints) -> Trace:
        """Return a trace of some allocations of this one with other lifetimes, for example with an earlier free.

        Args:
            rows: int64 (k,), for each allocation of the result the row (counted from 0) of the allocation in this trace
                that it copies; a row may occur several times or not at all.
            born, died: int64 (k,), times in ticks. Call i of this trace (from 0) is at the time ``i * TICK``. At equal
                times, frees come before allocations. The largest int64 means that an allocation is never freed.

        >>> trace = Trace.of_calls([1, 2, -1, -2], [512, 1024])
        >>> never, tick = np.iinfo(np.int64).max, Trace.TICK
        >>> trace.with_lifetimes(np.array([0, 1]), np.array([0, tick]), np.array([tick, never])).live
        array([ 512,    0, 1024])
        """
        order = np.argsort(born, kind="stable")
        rows, last = rows[order], len(self.t) - 1
        return Trace.of_lifetimes(
            born[order], died[order], self.nbytes[rows], lambda tick: self.t[np.clip(tick // self.TICK, 0, last)],
            self.name, category=self.category[rows], op=self.op[rows], scope=self.scope[rows],
            shapes=[self.shapes[row] for row in rows.tolist()] if len(self.shapes) else (),
            granularity=self.granularity,
        )  # fmt: skip

    @cached_property
    def live(self) -> Ints:
        """Return the sum of live requested bytes after each call, int64 (n,).

        Raises:
            ValueError: a sum does not fit into an int64.
        """
        changes = np.sign(self.calls) * self.nbytes[np.abs(self.calls) - 1]
        if np.cumsum(changes, dtype=np.float64).max(initial=0) >= 2.0**62:
            raise ValueError(f"Trace: the live bytes of {self.name!r} are more than 2**62, which no device can hold")
        return np.cumsum(changes)

    @property
    def peak_live(self) -> int:
        """The largest sum of live requested bytes; every manager needs at least this much memory."""
        return int(self.live.max(initial=0))

    @cached_property
    def lifetimes(self) -> tuple[Ints, Ints]:
        """Return for each block the index of the call that allocates it, and the index of the call that frees it.

        The second index is n, the number of calls, for a block that is never freed.
        """
        born, died = np.zeros(len(self.nbytes), np.int64), np.full(len(self.nbytes), len(self.calls), np.int64)
        made = self.calls > 0
        born[self.calls[made] - 1] = np.flatnonzero(made)
        died[-self.calls[~made] - 1] = np.flatnonzero(~made)
        return born, died

    def __len__(self) -> int:
        return len(self.calls)

    def __repr__(self) -> str:
        counts = f"{quantity.count(len(self.calls))} calls, {quantity.count(len(self.nbytes))} allocations"
        return f"{counts}, at most {quantity.size(self.peak_live)} live"


def trace(source: Any) -> Trace:
    """Return the trace of a `Recording`, of a file (saved run or PyTorch memory snapshot), or a `Trace` itself.

    Raises:
        TypeError: any other object.
        ValueError: the recording has no allocation.

    >>> import flnb
    >>> with flnb.use_memory_manager(flnb.memory.Caching()), flnb.record() as run:
    ...     x = flnb.ones((1024,)) + 1.0
    >>> flnb.memory.trace(run).nbytes
    array([4096, 4096])
    """
    if isinstance(source, Trace):
        return source
    run = recording(source, "trace", " or a Trace")
    return recorded(run, run.memory.block)


def recording(source: Any, function: str, more: str = "") -> Recording:
    """Return a recording, which is loaded if ``source`` is its path.

    Args:
        source: the recording or path.
        function: the name of the function of `flnb.memory` that was called, for the error message.
        more: the other accepted arguments, as text for the error message.
    """
    run = load_run(source) if isinstance(source, (str, Path)) else source
    if not isinstance(run, Recording):
        raise TypeError(
            f"flnb.memory.{function}: expected a recording (flnb.record) or the path of a saved one{more}, "
            f"got {type(run).__name__}"
        )
    return run


def recorded(run: Recording, rows: schema.Columns) -> Trace:
    """Return the trace of some blocks of a recording: ``rows`` of `Memory.block`, in the order of allocation."""
    catalog = run.catalog
    if not len(rows["t"]):
        raise ValueError(
            f"flnb.memory.trace: the run {run.name!r} has no allocation; tensors smaller than the manager's min_block "
            f"are allocated by NumPy and not recorded"
        )
    plans, contexts = catalog.plans.items, catalog.contexts.items
    about = [plans[number] for number in rows["plan"].tolist()]
    return Trace.of_lifetimes(
        rows["t"], rows["end"], rows["requested"], run.seconds_at, run.name,
        category=rows["category"].astype(np.uint8), op=np.array([plan.op for plan in about], object),
        scope=np.array([contexts[number].scope for number in rows["context"].tolist()], object),
        shapes=[plan.shape for plan in about], granularity=_granularity(run.meta),
    )  # fmt: skip


def _granularity(meta: dict[str, Any]) -> int:
    """Return the granularity of the device a run was recorded on; older files store only the device's name."""
    stated = meta.get("granularity", 4096 if meta.get("device") == "host" else 512)
    return stated if type(stated) is int and 0 < stated <= 1 << 30 else 512


def _check(calls: Ints, nbytes: Ints) -> None:
    """Raise ValueError unless each allocation is made once, in order, and freed at most once afterwards."""
    if (nbytes < 0).any():
        raise ValueError(f"Trace: expected sizes of 0 or more bytes, got {int(nbytes.min())}")
    made = calls[calls > 0]
    if not np.array_equal(made, np.arange(1, len(nbytes) + 1)):
        raise ValueError(
            f"Trace: expected the allocations 1 to {len(nbytes)} in this order, one for each size, got {made[:8]}..."
        )
    live: set[int] = set()
    for i, call in enumerate(calls.tolist()):
        if call <= 0 and -call not in live:
            raise ValueError(f"Trace: call {i} frees allocation {-call}, which is not allocated at that point")
        live ^= {abs(call)}
