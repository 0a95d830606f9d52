"""`flnb.testing.check_manager` tests a memory manager by random calls, and shortens a sequence that fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from flnb_backends.memory.simulated import SimulatedDevice
from flnb_telemetry.quantity import bytes_of

from flnb.dispatch import registry
from flnb.dispatch.memory import allocate, release
from flnb.explore.report import Report, Result
from flnb.interface.memory import ALIGNMENT, Block, MemoryDevice, MemoryManager, OutOfMemoryError, Segment
from flnb.testing.backends import check_backend

Factory = Callable[[MemoryDevice], MemoryManager]


def check_manager(factory: Factory, capacity: int | str = "256MiB", examples: int = 40, seed: int = 0) -> Report:
    """Test a memory manager with random sequences of calls on a simulated device.

    The returned report is true if all rules hold: for instance blocks do not overlap, freed memory is usable again. A
    failure shows the shortest sequence of calls that was found to break the rule.

    Args:
        factory: a subclass of `MemoryManager`, or a function that takes a device and returns a new manager.
        capacity: the device's memory, in bytes or as text with a unit.
        examples: the number of random sequences, of 3 to 40 calls each, on which every rule is checked.
        seed: the seed of the random sequences.

    Raises:
        TypeError: the factory does not take a device or does not return a manager.

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


def conformance(part: Any, **options: Any) -> Report:
    """Check a backend by `check_backend`, or a memory manager by `check_manager`, and return the report.

    Args:
        part: the name, class or instance of a backend, or the name or class of a memory manager.
        options: arguments of the check: ``tolerance`` and ``dtypes`` for a backend; ``capacity``, ``examples`` and
            ``seed`` for a manager.

    >>> import flnb.testing
    >>> report = flnb.testing.conformance("numpy")
    >>> bool(report), report["matmul"].passed
    (True, True)

    Raises:
        TypeError: ``part`` is an instance of a memory manager, or neither a backend nor a manager.
    """
    if isinstance(part, str) and part in registry.names("memory manager"):
        return check_manager(type(registry.make("memory manager", part)), **options)
    if isinstance(part, type) and issubclass(part, MemoryManager):
        return check_manager(part, **options)
    if isinstance(part, MemoryManager):
        raise TypeError(
            f"conformance: got the memory manager {part!r}; expected its class, because each check makes a new one"
        )
    return check_backend(part, **options)


class Adjoining(SimulatedDevice):
    """A simulated device whose segments adjoin, to detect managers that merge blocks of two segments."""

    def _range(self, nbytes: int, room: int) -> Segment:
        """Return a segment that begins where the last segment ends; ``nbytes`` of its ``room`` addresses are usable."""
        address = self._next
        self._next += room
        return Segment(address, nbytes, room, self)


def _new(factory: Factory, capacity: int) -> MemoryManager:
    """Make a manager on a new simulated device."""
    manager = factory(Adjoining(capacity))
    if not isinstance(manager, MemoryManager):
        raise TypeError(f"check_manager: {factory!r} returned {manager!r} for a device, expected a MemoryManager")
    return manager


def _serves(manager: MemoryManager, nbytes: int) -> bool:
    """Return whether a manager can serve a request; errors other than out-of-memory are ignored here."""
    try:
        allocate(manager, nbytes)
    except Exception as error:
        return not isinstance(error, MemoryError)
    return True


class Call(NamedTuple):
    """One call in a trial: an ``alloc`` of ``amount`` bytes, or another method, called with a live block.

    The block is found in the list of the n live blocks, sorted by age: it is ``amount`` (modulo n) places before the
    last.
    """

    what: str
    amount: int


@dataclass(eq=False)
class Held:
    """A live block: its name in printed calls, the bytes requested, its number of user locks, and whether it was freed.

    A freed block is live until its last user lock is removed.
    """

    name: str
    block: Block
    requested: int
    locks: int = 0
    freed: bool = False

    def __post_init__(self) -> None:
        self.start, self.size = self.block.address, self.block.size
        self.end = self.start + self.size
        self.offset = self.start - self.block.segment.address

    def __str__(self) -> str:
        return f"{self.name} (bytes {self.offset} to {self.offset + self.size} of segment {self.block.segment.id})"


class Crash(Exception):
    """Raised if a call of the manager raises an unexpected error or returns a wrong value."""


class Trial:
    """Calls methods of a new manager on a new device, and lists the blocks that must be live after these calls.

    Attributes:
        held: the live blocks; one that was freed while user locks held it is live until the last lock is released.
        done: the calls made so far, as code.
        broken: what is wrong, or an empty text.
        biggest: the largest request that a new manager of this kind serves, in bytes.
    """

    def __init__(self, manager: MemoryManager, biggest: int) -> None:
        self.manager, self.biggest = manager, biggest
        self.held: list[Held] = []
        self.allocs = self.peak = 0
        self.done: list[str] = []
        self.broken = ""

    def do(self, what: str, amount: int) -> None:
        """Make a call with the fields of `Call`, unless it needs a block and none is live; update the live blocks."""
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
        """Request a block, and return whether there was memory for it."""
        name = chr(97 + self.allocs % 26) * (1 + self.allocs // 26)
        self.allocs += 1
        self.manager.ledger.places.clear()  # so that blocks which overlap are found by the rule about that
        try:
            block = self.call(f"{name} = alloc({nbytes})", allocate, self.manager, nbytes)
        except OutOfMemoryError:
            self.done[-1] += "  -> out of memory"
            return False
        self.held.append(Held(name, block, nbytes))
        self.peak = max(self.peak, self.allocated)
        return True

    def act(self, what: str, held: Held) -> None:
        """Free, lock or unlock a block, as ``what`` says, unless it was freed already or has no lock to release."""
        if {"free": held.freed, "user_unlock": not held.locks}.get(what):
            return
        method = partial(release, self.manager) if what == "free" else getattr(self.manager, what)
        self.call(f"{what}({held.name})", method, held.block)
        held.freed |= what == "free"
        held.locks += {"user_lock": 1, "user_unlock": -1}.get(what, 0)
        if held.freed and not held.locks:
            self.held.remove(held)

    def call(self, text: str, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the manager and return its result; ``text`` is the call as code."""
        self.done.append(text)
        try:
            return method(*arguments)
        except OutOfMemoryError:
            raise
        except Exception as error:
            raise Crash(f"{text} raised {type(error).__name__}: {error}") from error

    @property
    def allocated(self) -> int:
        """The sum of the sizes of all live blocks, in bytes."""
        return sum(held.size for held in self.held)

    def free_all(self) -> None:
        """Free every live block and release its locks."""
        for held in list(self.held):
            self.act("free", held)
            while held.locks:
                self.act("user_unlock", held)


def _attempt(new: Callable[[], MemoryManager], biggest: int, title: str, calls: list[Call]) -> Trial:
    """Make the calls on a new manager, apply the rule named ``title``, and return the trial with the result.

    ``biggest`` is the largest request, in bytes, that a new manager can serve.
    """
    trial = Trial(new(), biggest)
    try:
        for call in calls:
            trial.do(*call)
            trial.broken = next(iter(AFTER_EACH.get(title, _no_rule)(trial)), "")
            if trial.broken:
                return trial
        trial.broken = next(iter(AT_END.get(title, _no_rule)(trial)), "")
    except Crash as crash:  # reported by the rule "calls succeed" alone
        trial.broken = str(crash) if title == CALLS_SUCCEED else ""
    except Exception as error:  # from the manager's own stats or snapshot
        trial.broken = f"{type(error).__name__}: {error}"
    return trial


# The rules: each yields texts that say what is wrong after a call, or after all calls.


def _no_rule(trial: Trial) -> Iterable[str]:
    """Yield nothing: the trial itself has checked that no call raises an error or returns a wrong value."""
    return ()


def _placement(trial: Trial) -> Iterator[str]:
    """Check that each block is large enough, aligned, and inside a segment that is still reserved."""
    for held in trial.held:
        segment = held.block.segment
        if held.size < held.requested:
            yield f"{held.name} has {held.size} bytes, but {held.requested} were requested"
        if held.start % ALIGNMENT:
            yield f"{held} does not begin at a multiple of {ALIGNMENT}"
        if segment.id not in trial.manager.device.segments:
            yield f"the segment of {held} was released while the block is live"
        if held.start < segment.address or held.end > segment.address + segment.size:
            yield f"{held} is not inside its segment of {segment.size} bytes"


def _no_overlap(trial: Trial) -> Iterator[str]:
    """Check that no two live blocks overlap."""
    by_address = sorted(trial.held, key=lambda held: (held.start, held.end))
    yield from (f"{low} overlaps {high}" for low, high in pairwise(by_address) if low.end > high.start)


def _tiling(trial: Trial) -> Iterator[str]:
    """Check that the blocks of `MemoryManager.snapshot` fill each segment without gaps and list all live blocks."""
    seen = set()
    for segment, blocks in trial.manager.snapshot():
        position = segment.address
        for block in blocks:
            if block.address != position:
                at, begins = position - segment.address, block.address - segment.address
                yield f"snapshot: a gap or an overlap: a block begins at byte {begins} of its segment, expected {at}"
            position += block.size
            if block.id:
                seen.add((segment.id, block.address - segment.address, block.size, block.requested))
        if position != segment.address + segment.size:
            yield f"snapshot: blocks end at byte {position - segment.address} of a segment of {segment.size} bytes"
    given = {(held.block.segment.id, held.offset, held.size, held.requested) for held in trial.held}
    if seen != given:
        yield f"snapshot: live blocks (segment, offset, size, requested) {seen or 'none'}, expected {given or 'none'}"


def _sums(trial: Trial) -> Iterator[str]:
    """Check the numbers of `MemoryManager.stats` against the live blocks of the trial."""
    sums = {"live": len(trial.held), "allocated": trial.allocated, "peak_allocated": trial.peak}
    stats = trial.manager.stats()
    for key, value in (sums | {"reserved": trial.manager.device.reserved}).items():
        if stats.get(key) != value:
            yield f"stats()[{key!r}] is {stats.get(key)}, expected {value}"


def _locks(trial: Trial) -> Iterator[str]:
    """Check that blocks that were freed while user locks hold them are still live."""
    for held in trial.held:
        if held.block.manager is not trial.manager:
            yield f"{held.name} was freed although {held.locks} user locks hold it"


def _usable_again(trial: Trial) -> Iterator[str]:
    """Free everything and check that the largest request of a new manager is served again."""
    trial.free_all()
    if not trial.alloc(trial.biggest):
        yield (
            f"everything was freed, but a request of {trial.biggest} bytes, which a new manager serves, fails: "
            f"free memory was not merged with its neighbours, not reused, or not given back to the device"
        )


def _recovers(trial: Trial) -> Iterator[str]:
    """Allocate until memory runs out, free one block, and check that a request of the same size is served."""
    trial.free_all()
    nbytes, capacity = trial.biggest // 3, trial.manager.device.capacity
    while trial.alloc(nbytes):
        if trial.allocated > capacity:
            yield f"allocated {trial.allocated} bytes on a device of {capacity} bytes"
    if trial.held:
        trial.act("free", trial.held[0])
        if not trial.alloc(nbytes):
            yield f"after out of memory, {nbytes} bytes were freed, but a request of as many bytes fails again"


CALLS_SUCCEED = "calls succeed"
AFTER_EACH: dict[str, Callable[[Trial], Iterable[str]]] = {
    CALLS_SUCCEED: _no_rule,
    "size, place, segment": _placement,
    "blocks do not overlap": _no_overlap,
    "snapshot tiles the segments": _tiling,
    "stats are the sums": _sums,
    "user locks hold": _locks,
}
AT_END = {"freed memory is usable again": _usable_again, "recovers from out of memory": _recovers}


PAGES = (64, 512, 4096, 1 << 20, 2 << 20, 20 << 20)
"""Sizes in bytes to whose multiples managers and devices round; requests near these sizes are tried."""


def _random_calls(draw: random.Random, length: int, biggest: int) -> list[Call]:
    """Draw a random sequence of ``length`` calls; requests are at most ``biggest`` / 2 bytes, so that several fit."""
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
    """Return the simplest trial found that breaks the rule, by leaving out calls of the trial ``broken``.

    ``attempt`` is a function that makes a list of calls on a new manager and returns the trial.
    """
    while True:
        for candidate in _simpler(calls):
            if (trial := attempt(candidate)).broken:
                calls, broken = candidate, trial
                break
        else:
            return broken


def _simpler(calls: list[Call]) -> Iterator[list[Call]]:
    """Yield simpler sequences: without one call, without a call and all calls after it, or with one smaller request."""
    for i in range(len(calls)):
        yield calls[:i]
        yield calls[:i] + calls[i + 1 :]
    for i, call in enumerate(calls):
        for nbytes in (64, 512, 4096, 1 << 20):
            if nbytes < call.amount:
                yield [*calls[:i], call._replace(amount=nbytes), *calls[i + 1 :]]
