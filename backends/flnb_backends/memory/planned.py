"""A manager that places a training step's allocations at addresses computed in advance."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flnb_telemetry import bus

from flnb.interface.memory import ALIGNMENT, AllocHint, Block, MemoryDevice, Segment
from flnb_backends.memory.cached import Size, rounded, tunable
from flnb_backends.memory.caching import Caching

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.schema import Ints

    from flnb_backends.memory.pieces import Piece


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """The planned offsets of a training step's m allocations, in order.

    Attributes:
        offsets: for each allocation, its distance in bytes from the segment's beginning, a multiple of 64; -1 for
            tensors that outlive the step and get no place in the segment. An int64 array (m,).
        nbytes: the requested bytes, rounded up to multiples of 64, as an int64 array (m,).
        height: the bytes of the segment.
    """

    offsets: Ints
    nbytes: Ints
    height: int

    def __repr__(self) -> str:
        placed = int((self.offsets >= 0).sum())
        return f"<Plan: {placed} of {len(self.offsets)} allocations in {self.height} bytes>"


class Planned(Caching):
    """Places the k-th allocation of each step at the k-th offset of a plan (`flnb.memory.plan`).

    A step begins with ``flnb.step()``. Outside of such blocks a step begins when the segment is empty and a request has
    the size of the plan's first request. If a request has another size than planned, the plan is not used for the rest
    of the step. If the planned place of a request is still in use, because a tensor lives longer than planned, this
    request alone gets no planned place. Requests without a planned place are served as by `Caching` and counted in
    ``missed``. Tensors that outlive the step are also served as by `Caching`, but not counted.

    One thread at a time uses the plan: a thread in a step, or else a thread that begins the plan while the segment is
    empty. Requests of other threads, such as workers that load data, are served as by `Caching`.

    Args:
        device: the device of the segments; the host by default.
        plan: a `Plan`, a `flnb.memory.Packing`, or an argument of `flnb.memory.plan`: a recording, the path of a saved
            one, or a trace. Default: the path in the environment variable ``FLNB_MEM_PLAN``; without it there is no
            plan, and the manager works as `Caching`.
        split_limit, recycling_limit: bytes, the settings of `Caching`.

    >>> import flnb
    >>> step = flnb.memory.Trace.of_calls([1, 2, -1, 3, -2, -3], [512, 1024, 512])
    >>> manager = flnb.memory.Planned(flnb.memory.SimulatedDevice(), step)
    >>> blocks = [manager.alloc(512), manager.alloc(1024)]
    >>> manager.free(blocks[0])
    >>> manager.alloc(512).address == blocks[0].address
    True
    >>> manager.alloc(2048).segment is blocks[0].segment, manager.missed
    (False, 1)
    """

    name: ClassVar[str] = "planned"
    planner: ClassVar[Callable[[Any], Plan]]
    """The function that makes a plan from a recording or a trace; flnb sets it to `flnb.memory.plan`."""

    def __init__(
        self,
        device: MemoryDevice | None = None,
        plan: Any = None,
        split_limit: Size = None,
        recycling_limit: Size = None,
    ) -> None:
        super().__init__(device, split_limit, recycling_limit)
        found = tunable("Planned(plan=...)", plan, "FLNB_MEM_PLAN", NOTHING, _plan)
        self.offsets: list[int] = found.offsets.tolist()
        self.sizes: list[int] = found.nbytes.tolist()
        self.height: int = found.height
        self.segment: Segment | None = None  # reserved when it is first needed
        self.taken: list[tuple[int, int]] = []  # (begin, end) of its blocks, sorted
        self.turn = self.missed = 0
        self.step: int | None = None
        self.here: bus.Place | None = None  # of the thread in which the plan is followed

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """Return a block at its planned place, or else a block allocated as by `Caching`."""
        sizes = self.sizes
        if not sizes:
            return super().alloc(nbytes)
        size, here = rounded(nbytes, ALIGNMENT), bus.threads.here
        if here is not self.here and not self._follows(here, size):
            return super().alloc(nbytes)
        turn = self.turn
        if here.step != self.step:
            self.step, turn = here.step, 0
        if turn == len(sizes) or sizes[turn] != size:
            if self.taken or sizes[0] != size:
                return self._miss(nbytes, len(sizes))
            turn = 0
        begin = self.offsets[turn]
        if begin < 0:
            self.turn = turn + 1
            return super().alloc(nbytes)
        taken, end = self.taken, begin + size
        index = bisect_left(taken, (begin,))
        if (index and taken[index - 1][1] > begin) or (index < len(taken) and taken[index][0] < end):
            return self._miss(nbytes, turn + 1)
        segment = self.segment
        if segment is None:
            try:
                self.segment = segment = self._reserve(self.height)
            except MemoryError:
                return self._miss(nbytes, len(sizes))
        self.turn = turn + 1
        taken.insert(index, (begin, end))
        return Block(segment.address + begin, size, segment)

    def free(self, block: Block) -> None:
        """Free a block, so that its place can be used again."""
        segment = self.segment
        if segment is None or block.segment is not segment:
            super().free(block)
            return
        begin = block.address - segment.address
        index = bisect_left(self.taken, (begin,))
        if index == len(self.taken) or self.taken[index][0] != begin:
            raise ValueError(f"free: {block!r} of {self!r} was already freed")
        del self.taken[index]

    def _retile(self, segment: Segment, live: list[Piece]) -> None:
        if segment is self.segment:
            self.taken = [
                (block.address - segment.address, block.address - segment.address + block.size) for block in live
            ]
        else:
            super()._retile(segment, live)

    def _emptied(self, segment: Segment) -> None:
        if segment is self.segment:
            self.taken = []
        else:
            super()._emptied(segment)

    def stats(self) -> dict[str, int]:
        """Return `MemoryManager.stats` and ``missed``, the number of requests that were not served as planned."""
        return super().stats() | {"missed": self.missed}

    def _follows(self, here: bus.Place, size: int) -> bool:
        """Return whether the calling thread may use the plan for its request of ``size`` bytes.

        ``here`` is the scope, phase and step of that thread.
        """
        before = self.here
        begins = here.step is not None or (not self.taken and size == self.sizes[0])
        if before is not None and (before.step is not None or not begins):
            return False
        self.here, self.step, self.turn = here, None, 0
        return True

    def _miss(self, nbytes: int, turn: int) -> Block:
        """Serve a request that differs from the plan.

        The next request is compared with the allocation number ``turn`` of the plan.
        """
        self.turn = turn
        self.missed += 1
        return super().alloc(nbytes)

    def _release_free(self) -> None:
        super()._release_free()
        if self.segment is not None and not self.taken:
            segment, self.segment = self.segment, None
            self.device.release(segment)


NOTHING = Plan(np.zeros(0, np.int64), np.zeros(0, np.int64), 0)


def _plan(given: Any, name: str) -> Any:
    """Convert the setting ``plan`` of `Planned` to an object with offsets, nbytes and height.

    Args:
        given: the setting's value.
        name: the name of the argument or the environment variable, for errors.
    """
    if not all(hasattr(given, attribute) for attribute in ("offsets", "nbytes", "height")):
        given = Planned.planner(given)
    if (given.offsets % ALIGNMENT * (given.offsets >= 0)).any():
        raise ValueError(
            f"flnb: {name} has offsets that are no multiples of {ALIGNMENT}; use flnb.memory.pack(..., alignment=64)"
        )
    return given
