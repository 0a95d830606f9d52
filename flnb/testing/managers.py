"""The conformance kit for memory managers: does a class keep the contract, and if not, the shortest way to see it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from flnb_backends.memory.simulated import SimulatedDevice
from flnb_telemetry.quantity import bytes_of

from flnb.dispatch.memory import allocate, release
from flnb.interface.memory import ALIGNMENT, Block, MemoryDevice, MemoryManager, OutOfMemoryError
from flnb.testing.report import Report, Result

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
    for title in RULES:
        attempt = partial(_attempt, new, biggest, title)
        trials = []
        for calls in sequences:
            trials.append(attempt(calls))
            if trials[-1].broken:
                trials.append(_shrink(calls, attempt))
                break
        last, tried = trials[-1], sum(len(trial.done) for trial in trials)
        results.append(Result(title, not last.broken, tried, last.broken, tuple(last.done) if last.broken else ()))
    return Report(subject, tuple(results))


def _new(factory: Factory, capacity: int) -> MemoryManager:
    manager = factory(SimulatedDevice(capacity))
    if not isinstance(manager, MemoryManager):
        raise TypeError(f"check_manager: {factory!r} gave no flnb.interface.MemoryManager when called with a device")
    return manager


def _serves(manager: MemoryManager, nbytes: int) -> bool:
    try:
        allocate(manager, nbytes)
    except MemoryError:
        return False
    except Exception:  # meant to serve it; the trials will meet this error again
        return True
    return True


class Call(NamedTuple):
    """One step: ``alloc`` under a number, or something done to the block of that number."""

    what: str
    block: int = 0
    nbytes: int = 0


class Broken(Exception):
    """A rule does not hold."""


class Crash(Exception):
    """A call raised or returned what it must not."""


class Trial:
    """A fresh manager on a fresh device, what was called so far, and what the manager must hold by now."""

    def __init__(self, manager: MemoryManager, biggest: int) -> None:
        self.manager, self.biggest = manager, biggest
        self.blocks: dict[int, Block] = {}  # live, also those freed under a lock
        self.given: dict[int, tuple[int, int, int]] = {}  # address, size, requested: as they were
        self.names: dict[int, str] = {}
        self.locks: Counter[int] = Counter()
        self.freed: set[int] = set()
        self.done: list[str] = []
        self.peak = 0
        self.broken = ""

    def do(self, what: str, number: int = 0, nbytes: int = 0) -> None:
        """Make one call, unless it makes no sense now; the model follows."""
        known, locks, manager = number in self.blocks, self.locks[number], self.manager
        sensible = {"alloc": not known, "free": known and number not in self.freed, "user_lock": known}
        if not (sensible | {"user_unlock": locks > 0, "release_cached": True})[what]:
            return
        index = len(self.names)
        name = self.names.setdefault(number, chr(97 + index % 26) * (1 + index // 26)) if number else ""
        self.done.append(f"{name} = alloc({nbytes})" if what == "alloc" else f"{what}({name})")
        before = manager.device.reserved
        try:
            if what == "alloc":
                self.blocks[number] = block = allocate(manager, nbytes)
                self.given[number] = block.address, block.size, nbytes
                self.peak = max(self.peak, self.allocated)
            elif what == "free":
                release(manager, self.blocks[number])
                self.freed.add(number)
            elif what == "release_cached":
                returned = manager.release_cached()
                if returned != before - manager.device.reserved:
                    went = before - manager.device.reserved
                    raise ValueError(f"it returned {returned}, but {went} bytes went back to the device")
            else:
                getattr(manager, what)(self.blocks[number])
                self.locks[number] += 1 if what == "user_lock" else -1
        except Exception as error:
            if what != "alloc" or not isinstance(error, OutOfMemoryError):
                raise Crash(f"{self.done[-1]} raised {type(error).__name__}: {error}") from error
            self.done[-1] += "  -> out of memory"
        if number in self.freed and not self.locks[number]:
            self.freed.remove(number)
            del self.blocks[number], self.given[number]

    @property
    def allocated(self) -> int:
        """Bytes of the blocks that are live."""
        return sum(size for _, size, _ in self.given.values())

    def free_all(self) -> None:
        """Unlock and free whatever is live."""
        for number in list(self.blocks):
            self.do("free", number)
            for _ in range(self.locks[number]):
                self.do("user_unlock", number)

    def name_of(self, number: int) -> str:
        """How the calls name a block, with its place."""
        address, size, _ = self.given[number]
        return f"{self.names[number]} [{address:#x}, {address + size:#x})"


def _attempt(new: Callable[[], MemoryManager], biggest: int, title: str, calls: list[Call]) -> Trial:
    """Make the calls and apply a rule after each; what broke is in the trial's ``broken``."""
    trial = Trial(new(), biggest)
    rule = RULES[title]
    try:
        for call in calls:
            trial.do(*call)
            rule.after_each(trial)
        rule.at_end(trial)
    except Crash as crash:  # a failure of its own row, the end of the trial for the others
        trial.broken = str(crash) if title == "calls succeed" else ""
    except Broken as broken:
        trial.broken = str(broken)
    except Exception as error:  # from the manager's own stats or snapshot
        trial.broken = f"{type(error).__name__}: {error}"
    return trial


class Rule(NamedTuple):
    """What must hold after each call, and what is tried at the end of a sequence."""

    after_each: Callable[[Trial], None] = lambda trial: None
    at_end: Callable[[Trial], None] = lambda trial: None


def _placement(trial: Trial) -> None:
    for number, (address, size, requested) in trial.given.items():
        segment = trial.blocks[number].segment
        if size < requested:
            raise Broken(f"{trial.names[number]} has {size} bytes, {requested} were asked for")
        if address % ALIGNMENT:
            raise Broken(f"{trial.name_of(number)} does not begin at a multiple of {ALIGNMENT}")
        if segment.id not in trial.manager.device.segments:
            raise Broken(f"the segment of {trial.name_of(number)} was released while the block is live")
        if address < segment.address or address + size > segment.address + segment.size:
            raise Broken(f"{trial.name_of(number)} is not inside its segment of {segment.size} bytes")


def _no_overlap(trial: Trial) -> None:
    for low, high in pairwise(sorted(trial.given, key=lambda number: trial.given[number])):
        if trial.given[low][0] + trial.given[low][1] > trial.given[high][0]:
            raise Broken(f"{trial.name_of(low)} overlaps {trial.name_of(high)}")


def _tiling(trial: Trial) -> None:
    seen = set()
    for segment, blocks in trial.manager.snapshot():
        position = segment.address
        for block in blocks:
            if block.address != position:
                raise Broken(f"snapshot: a gap or an overlap at {position:#x}, where {block} should begin")
            position += block.size
            if block.id:
                seen.add((block.address, block.size, block.requested))
        if position != segment.address + segment.size:
            raise Broken(f"snapshot: blocks end at {position:#x}, the segment at {segment.address + segment.size:#x}")
    if seen != set(trial.given.values()):
        raise Broken(f"snapshot: live blocks (address, size, requested) {seen}, expected {set(trial.given.values())}")


def _sums(trial: Trial) -> None:
    sums = {"live": len(trial.given), "allocated": trial.allocated, "peak_allocated": trial.peak}
    stats = trial.manager.stats()
    for key, value in (sums | {"reserved": trial.manager.device.reserved}).items():
        if stats.get(key) != value:
            raise Broken(f"stats()[{key!r}] is {stats.get(key)}, expected {value}")


def _locks(trial: Trial) -> None:
    for number, block in trial.blocks.items():
        if block.manager is not trial.manager:
            raise Broken(f"{trial.names[number]} was freed although {trial.locks[number]} user locks hold it")


def _usable_again(trial: Trial) -> None:
    trial.free_all()
    trial.do("alloc", max(trial.names, default=0) + 1, trial.biggest)
    if not trial.blocks:
        raise Broken(
            f"everything was freed, but {trial.biggest} bytes, which a fresh manager serves, are not to be had: "
            f"free memory was not merged with its neighbours, not reused, or not given back to the device"
        )


def _recovers(trial: Trial) -> None:
    trial.free_all()
    nbytes, first = trial.biggest // 3, max(trial.names, default=0) + 1
    number = first
    trial.do("alloc", number, nbytes)
    while number in trial.blocks:
        if trial.allocated > (trial.manager.device.capacity or 0):
            raise Broken(f"gave out more than the device's {trial.manager.device.capacity} bytes")
        number += 1
        trial.do("alloc", number, nbytes)
    trial.do("free", first)
    trial.do("alloc", number + 1, nbytes)
    if number > first and number + 1 not in trial.blocks:
        raise Broken(f"after out of memory, {nbytes} bytes were freed, but as many are not to be had again")


RULES = {
    "calls succeed": Rule(),
    "size, place, segment": Rule(_placement),
    "blocks do not overlap": Rule(_no_overlap),
    "snapshot tiles the segments": Rule(_tiling),
    "stats are the sums": Rule(_sums),
    "user locks hold": Rule(_locks),
    "freed memory is usable again": Rule(at_end=_usable_again),
    "recovers from out of memory": Rule(at_end=_recovers),
}


def _random_calls(draw: random.Random, length: int, biggest: int) -> list[Call]:
    calls: list[Call] = []
    allocated = 0
    for _ in range(length):
        what = draw.choices(("alloc", "free", "user_lock", "user_unlock", "release_cached"), (10, 8, 1, 1, 0.5))[0]
        if what == "alloc" or not allocated:
            allocated += 1
            ceiling = draw.choice((600, 600, 100_000, 3 << 20, biggest // 2))
            calls.append(Call("alloc", allocated, draw.randint(0, min(ceiling, biggest // 2))))
        else:
            calls.append(Call(what, 0 if what == "release_cached" else draw.randint(max(1, allocated - 8), allocated)))
    return calls


def _shrink(calls: list[Call], attempt: Callable[[list[Call]], Trial]) -> Trial:
    """The trial of the shortest sequence found that still breaks the rule (delta debugging), with small sizes."""
    size = len(calls)
    while size:
        shorter = [calls[:i] + calls[i + size :] for i in range(0, len(calls), size)]
        found = next((candidate for candidate in shorter if attempt(candidate).broken), None)
        if found is None:
            size //= 2
        else:
            calls, size = found, min(size, len(found))
    for i, call in enumerate(calls):
        sizes = [nbytes for nbytes in (64, 512, 4096, 1 << 20) if nbytes < call.nbytes]
        smaller = [[*calls[:i], call._replace(nbytes=nbytes), *calls[i + 1 :]] for nbytes in sizes]
        calls = next((candidate for candidate in smaller if attempt(candidate).broken), calls)
    return attempt(calls)
