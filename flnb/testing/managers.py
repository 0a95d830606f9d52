"""The conformance kit for memory managers: whether a class satisfies the contract, and if not, the shortest proof."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from flnb_backends.memory.simulated import SimulatedDevice
from flnb_telemetry.quantity import bytes_of

from flnb.dispatch.memory import allocate, release
from flnb.explore.report import Report, Result
from flnb.interface.memory import ALIGNMENT, Block, MemoryDevice, MemoryManager, OutOfMemoryError, Segment

__all__ = ["check_manager"]

Factory = Callable[[MemoryDevice], MemoryManager]


def check_manager(factory: Factory, capacity: int | str = "256MiB", examples: int = 40, seed: int = 0) -> Report:
    """Try a memory manager on a simulated device with random calls, and shorten the sequence where they fail.

    Args:
        factory: called with a device, gives a fresh manager: a subclass of `MemoryManager`, or a function.
        capacity: of the device, bytes or a text with a unit.
        examples: random sequences for each check, of 3 to 40 calls.
        seed: the same seed tries the same sequences.

    Raises:
        TypeError: the factory takes no device or gives no manager.

    >>> import flnb
    >>> bool(flnb.testing.check_manager(flnb.memory.Caching, examples=5))
    True
    """
    subject = str(getattr(factory, "__name__", factory))
    room = bytes_of(capacity)
    new = partial(_new, factory, room)
    biggest = next((room >> i for i in range(room.bit_length() - 6) if _serves(new(), room >> i)), 0)
    if not biggest:
        reason = f"a fresh manager on an empty device of {room} bytes has no room for 64"
        return Report(subject, (Result("serves a request", False, 1, reason, ("a = alloc(64)",)),))
    draw = random.Random(seed)
    sequences = [_random_calls(draw, 3 + i * 37 // examples, biggest) for i in range(examples)]
    results = []
    for title in (*AFTER_EACH, *AT_END):
        attempt = partial(_attempt, new, biggest, title)
        trials = []
        for calls in sequences:
            trials.append(attempt(calls))
            if trials[-1].broken:
                trials.append(_shrink(calls, trials[-1], attempt))
                break
        last, tried = trials[-1], sum(len(trial.done) for trial in trials)
        results.append(Result(title, not last.broken, tried, last.broken, tuple(last.done) if last.broken else ()))
    return Report(subject, tuple(results))


class Adjoining(SimulatedDevice):
    """Each segment begins where the one before it ends, so that blocks merged across their border are found."""

    def _range(self, nbytes: int, room: int) -> Segment:
        address = self._next
        self._next += room
        return Segment(address, nbytes, room, self)


def _new(factory: Factory, capacity: int) -> MemoryManager:
    manager = factory(Adjoining(capacity))
    if not isinstance(manager, MemoryManager):
        raise TypeError(f"check_manager: {factory!r} gave no flnb.interface.MemoryManager when called with a device")
    return manager


def _serves(manager: MemoryManager, nbytes: int) -> bool:
    try:
        allocate(manager, nbytes)
    except Exception as error:  # the trials will meet what is no shortage again
        return not isinstance(error, MemoryError)
    return True


class Call(NamedTuple):
    """One step of a trial: an ``alloc`` of n bytes, or an operation on the block of n allocations ago."""

    what: str
    amount: int


@dataclass(eq=False)
class Held:
    """A live block, its place when it was allocated, and its name in the calls."""

    name: str
    block: Block
    requested: int
    locks: int = 0
    freed: bool = False

    def __post_init__(self) -> None:
        self.start, self.size = self.block.address, self.block.size
        self.end = self.start + self.size

    def __str__(self) -> str:
        return f"{self.name} [{self.start:#x}, {self.end:#x})"


class Crash(Exception):
    """A call raised an error or returned something that is forbidden."""


class Trial:
    """A fresh manager on a fresh device, the calls so far, and the blocks that the manager must hold by now."""

    def __init__(self, manager: MemoryManager, biggest: int) -> None:
        self.manager, self.biggest = manager, biggest
        self.held: list[Held] = []  # also those freed under a lock
        self.allocs = self.peak = 0
        self.done: list[str] = []
        self.broken = ""

    def do(self, what: str, amount: int) -> None:
        """Make one call, unless there is no block to do it to; the model follows."""
        if what == "alloc":
            self.alloc(amount)
        elif what == "release_cached":
            before = self.manager.device.reserved
            returned = self.call("release_cached()", self.manager.release_cached)
            went = before - self.manager.device.reserved
            if returned != went:
                raise Crash(f"release_cached() returned {returned}, but {went} bytes went back to the device")
        elif self.held:
            self.act(what, self.held[-1 - amount % len(self.held)])

    def alloc(self, nbytes: int) -> bool:
        """Whether the manager gave a block."""
        name = chr(97 + self.allocs % 26) * (1 + self.allocs // 26)
        self.allocs += 1
        try:
            block = self.call(f"{name} = alloc({nbytes})", allocate, self.manager, nbytes)
        except OutOfMemoryError:
            self.done[-1] += "  -> out of memory"
            return False
        self.held.append(Held(name, block, nbytes))
        self.peak = max(self.peak, self.allocated)
        return True

    def act(self, what: str, held: Held) -> None:
        """Free, lock or unlock a block, unless it is freed or not locked."""
        if {"free": held.freed, "user_unlock": not held.locks}.get(what):
            return
        method = partial(release, self.manager) if what == "free" else getattr(self.manager, what)
        self.call(f"{what}({held.name})", method, held.block)
        held.freed |= what == "free"
        held.locks += {"user_lock": 1, "user_unlock": -1}.get(what, 0)
        if held.freed and not held.locks:
            self.held.remove(held)

    def call(self, text: str, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the manager and return its result."""
        self.done.append(text)
        try:
            return method(*arguments)
        except OutOfMemoryError:
            raise
        except Exception as error:
            raise Crash(f"{text} raised {type(error).__name__}: {error}") from error

    @property
    def allocated(self) -> int:
        """Bytes of the blocks that are live."""
        return sum(held.size for held in self.held)

    def free_all(self) -> None:
        """Unlock and free whatever is live."""
        for held in list(self.held):
            self.act("free", held)
            while held.locks:
                self.act("user_unlock", held)


def _attempt(new: Callable[[], MemoryManager], biggest: int, title: str, calls: list[Call]) -> Trial:
    """Make the calls and apply a rule after each; what broke is in the trial's ``broken``."""
    trial = Trial(new(), biggest)
    after_each, at_end = AFTER_EACH.get(title, _nothing), AT_END.get(title, _nothing)
    try:
        for call in calls:
            trial.do(*call)
            trial.broken = next(after_each(trial), "")
            if trial.broken:
                return trial
        trial.broken = next(at_end(trial), "")
    except Crash as crash:  # a failure of its own row, the end of the trial for the others
        trial.broken = str(crash) if title == CALLS_SUCCEED else ""
    except Exception as error:  # from the manager's own stats or snapshot
        trial.broken = f"{type(error).__name__}: {error}"
    return trial


# Rules: they yield what is wrong after a call, or at the end of the calls.


def _nothing(trial: Trial) -> Iterator[str]:
    yield from ()


def _placement(trial: Trial) -> Iterator[str]:
    for held in trial.held:
        segment = held.block.segment
        if held.size < held.requested:
            yield f"{held.name} has {held.size} bytes, {held.requested} were asked for"
        if held.start % ALIGNMENT:
            yield f"{held} does not begin at a multiple of {ALIGNMENT}"
        if segment.id not in trial.manager.device.segments:
            yield f"the segment of {held} was released while the block is live"
        if held.start < segment.address or held.end > segment.address + segment.size:
            yield f"{held} is not inside its segment of {segment.size} bytes"


def _no_overlap(trial: Trial) -> Iterator[str]:
    by_address = sorted(trial.held, key=lambda held: (held.start, held.end))
    yield from (f"{low} overlaps {high}" for low, high in pairwise(by_address) if low.end > high.start)


def _tiling(trial: Trial) -> Iterator[str]:
    seen = set()
    for segment, blocks in trial.manager.snapshot():
        position = segment.address
        for block in blocks:
            if block.address != position:
                yield f"snapshot: a gap or an overlap at {position:#x}, where {block} should begin"
            position += block.size
            if block.id:
                seen.add((block.address, block.size, block.requested))
        if position != segment.address + segment.size:
            yield f"snapshot: blocks end at {position:#x}, the segment at {segment.address + segment.size:#x}"
    given = {(held.start, held.size, held.requested) for held in trial.held}
    if seen != given:
        yield f"snapshot: live blocks (address, size, requested) {seen}, expected {given}"


def _sums(trial: Trial) -> Iterator[str]:
    sums = {"live": len(trial.held), "allocated": trial.allocated, "peak_allocated": trial.peak}
    stats = trial.manager.stats()
    for key, value in (sums | {"reserved": trial.manager.device.reserved}).items():
        if stats.get(key) != value:
            yield f"stats()[{key!r}] is {stats.get(key)}, expected {value}"


def _locks(trial: Trial) -> Iterator[str]:
    for held in trial.held:
        if held.block.manager is not trial.manager:
            yield f"{held.name} was freed although {held.locks} user locks hold it"


def _usable_again(trial: Trial) -> Iterator[str]:
    trial.free_all()
    if not trial.alloc(trial.biggest):
        yield (
            f"everything was freed, but {trial.biggest} bytes, which a fresh manager serves, are not to be had: "
            f"free memory was not merged with its neighbours, not reused, or not given back to the device"
        )


def _recovers(trial: Trial) -> Iterator[str]:
    trial.free_all()
    nbytes, capacity = trial.biggest // 3, trial.manager.device.capacity
    while trial.alloc(nbytes):
        if trial.allocated > capacity:
            yield f"gave out more than the device's {capacity} bytes"
    if trial.held:
        trial.act("free", trial.held[0])
        if not trial.alloc(nbytes):
            yield f"after out of memory, {nbytes} bytes were freed, but as many are not to be had again"


CALLS_SUCCEED = "calls succeed"
AFTER_EACH = {
    CALLS_SUCCEED: _nothing,
    "size, place, segment": _placement,
    "blocks do not overlap": _no_overlap,
    "snapshot tiles the segments": _tiling,
    "stats are the sums": _sums,
    "user locks hold": _locks,
}
AT_END = {"freed memory is usable again": _usable_again, "recovers from out of memory": _recovers}


PAGES = (64, 512, 4096, 1 << 20, 2 << 20, 20 << 20)
"""Where managers and devices round to: sizes at, just below and just above multiples of these are tried."""


def _random_calls(draw: random.Random, length: int, biggest: int) -> list[Call]:
    calls = []
    weights = {"alloc": 10, "free": 8, "user_lock": 1, "user_unlock": 1, "release_cached": 0.5}
    for what in draw.choices(tuple(weights), tuple(weights.values()), k=length):
        ceiling = draw.choice((600, 600, 100_000, 3 << 20, biggest // 2)) if what == "alloc" else 8
        amount = draw.randint(0, min(ceiling, biggest // 2))
        if what == "alloc" and draw.random() < 0.3:
            amount = draw.choice(PAGES) * draw.randint(1, 3) + draw.randint(-1, 1)
        calls.append(Call(what, min(amount, biggest // 2)))
    return calls


def _shrink(calls: list[Call], broken: Trial, attempt: Callable[[list[Call]], Trial]) -> Trial:
    """The simplest broken trial that is found: the one given, where no simpler calls break the rule again."""
    while True:
        for candidate in _simpler(calls):
            if (trial := attempt(candidate)).broken:
                calls, broken = candidate, trial
                break
        else:
            return broken


def _simpler(calls: list[Call]) -> Iterator[list[Call]]:
    """Simpler sequences: all calls after one or one call left out, or one size made smaller."""
    for i in range(len(calls)):
        yield calls[:i]
        yield calls[:i] + calls[i + 1 :]
    for i, call in enumerate(calls):
        for nbytes in (64, 512, 4096, 1 << 20):
            if nbytes < call.amount:
                yield [*calls[:i], call._replace(amount=nbytes), *calls[i + 1 :]]
