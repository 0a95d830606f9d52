"""The conformance kit for memory managers: does a class keep the contract, and if not, the shortest way to see it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from flnb_backends.memory.simulated import SimulatedDevice
from flnb_telemetry import bus, schema
from flnb_telemetry.quantity import bytes_of

from flnb.dispatch.memory import allocate, drain, release
from flnb.interface.memory import ALIGNMENT, Block, MemoryDevice, MemoryManager, OutOfMemoryError
from flnb.testing.report import Report, Result

__all__ = ["Report", "Result", "check_manager"]

Factory = Callable[[MemoryDevice], MemoryManager]


def check_manager(factory: Factory, capacity: int | str = "256MiB", examples: int = 40, seed: int = 0) -> Report:
    """Try a memory manager on a simulated device: directed calls, then random ones, shrunk where they fail.

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
    before = set(MemoryManager.instances)
    try:
        return _check(factory, bytes_of(capacity), examples, seed)
    finally:  # what the kit leaves in its managers must not be announced to the next recording
        for manager in set(MemoryManager.instances) - before:
            MemoryManager.instances.discard(manager)


def _check(factory: Factory, capacity: int, examples: int, seed: int) -> Report:
    subject = str(getattr(factory, "__name__", factory))
    biggest = _biggest_request(factory, capacity)
    if not biggest:
        reason = f"a fresh manager on an empty device of {capacity} bytes has no room for 64"
        return Report(subject, (Result("serves a request", False, 1, reason, ("a = alloc(64)",)),))
    draw = random.Random(seed)
    sequences = [_directed(biggest), *(_random_calls(draw, 3 + i * 37 // examples, biggest) for i in range(examples))]
    results = []
    for title, rule in RULES.items():

        def attempt(calls: list[Call], rule: Rule = rule) -> Trial:
            return Trial(factory, capacity, biggest).run(calls, rule)

        tried, failed = 0, None
        for calls in sequences:
            trial = attempt(calls)
            tried += len(trial.done)
            if trial.broken:
                failed = _shrink(calls, attempt)
                break
        results.append(Result(title, not failed, tried, *((failed.broken, tuple(failed.done)) if failed else ())))
    return Report(subject, tuple(results))


class Call(NamedTuple):
    """One step: ``alloc`` under a number, or something done to the block of that number."""

    what: str
    block: int = 0
    nbytes: int = 0


class Broken(Exception):
    """A rule does not hold."""


class Crash(Broken):
    """A call raised what it must not raise."""


class Trial:
    """A fresh manager on a fresh device, what was called so far, and what the manager must hold by now."""

    def __init__(self, factory: Factory, capacity: int, biggest: int) -> None:
        self.factory, self.capacity, self.biggest = factory, capacity, biggest
        self.blocks: dict[int, Block] = {}  # live, also those freed under a lock
        self.given: dict[int, tuple[int, int, int, int]] = {}  # id, address, size, requested
        self.names: dict[int, str] = {}
        self.locks: dict[int, int] = {}
        self.waiting: set[int] = set()  # freed, but locked
        self.last_freed: Block | None = None
        self.events: list[tuple[int, ...]] = []
        self.done: list[str] = []
        self.allocs = self.frees = self.peak = 0
        self.broken = ""

    def run(self, calls: list[Call], rule: Rule) -> Trial:
        """Make the calls and apply the rule after each; what broke is in ``broken``."""
        with _listening(self.events):
            try:
                self.manager = self.factory(SimulatedDevice(self.capacity))
                for call in calls:
                    if self.do(*call):
                        rule.after_each(self)
                rule.at_end(self)
            except Crash as broken:  # a failure of its own row, the end of the trial for the others
                self.broken = str(broken) if rule is RULES["calls succeed"] else ""
            except Broken as broken:
                self.broken = str(broken)
            except Exception as error:  # from the manager's own stats, snapshot or constructor
                self.broken = f"{type(error).__name__}: {error}"
        return self

    def do(self, what: str, number: int = 0, nbytes: int = 0) -> bool:
        """Make one call, unless it makes no sense now; the model follows."""
        known, waits, locked = number in self.blocks, number in self.waiting, self.locks.get(number, 0) > 0
        sensible = {"alloc": not known, "free": known and not waits, "user_lock": known, "user_unlock": locked}
        if not sensible.get(what, True):
            return False
        name = self.names.setdefault(number, _letters(len(self.names))) if number else ""
        self.done.append(f"{name} = alloc({nbytes})" if what == "alloc" else f"{what}({name})")
        try:
            getattr(self, f"_{what}")(number, nbytes)
        except OutOfMemoryError as error:
            if what != "alloc":
                raise Crash(f"{what} raised {error!r}") from error
            self.done[-1] += "  -> out of memory"
        except Broken:
            raise
        except Exception as error:
            raise Crash(f"{self.done[-1]} raised {type(error).__name__}: {error}") from error
        return True

    def _alloc(self, number: int, nbytes: int) -> None:
        block = allocate(self.manager, nbytes)
        self.blocks[number] = block
        self.given[number] = block.id, block.address, block.size, nbytes
        self.allocs += 1
        self.peak = max(self.peak, self.allocated)

    def _free(self, number: int, _: int) -> None:
        release(self.manager, self.blocks[number])
        if self.locks.get(number):
            self.waiting.add(number)
        else:
            self._gone(number)

    def _user_lock(self, number: int, _: int) -> None:
        self.manager.user_lock(self.blocks[number])
        self.locks[number] = self.locks.get(number, 0) + 1

    def _user_unlock(self, number: int, _: int) -> None:
        self.manager.user_unlock(self.blocks[number])
        self.locks[number] -= 1
        if number in self.waiting and not self.locks[number]:
            self.waiting.remove(number)
            self._gone(number)

    def _release_cached(self, *_: int) -> None:
        before = self.manager.device.reserved
        returned = self.manager.release_cached()
        if returned != before - self.manager.device.reserved:
            went = before - self.manager.device.reserved
            raise Crash(f"release_cached() returned {returned}, but {went} bytes went back to the device")

    def _gone(self, number: int) -> None:
        self.frees += 1
        self.last_freed = self.blocks.pop(number)
        del self.given[number]

    @property
    def allocated(self) -> int:
        """Bytes of the blocks that are live."""
        return sum(size for _, _, size, _ in self.given.values())

    def free_all(self) -> None:
        """Unlock and free whatever is live."""
        for number in list(self.blocks):
            self.do("free", number)
            while self.do("user_unlock", number):
                pass

    def name_of(self, number: int) -> str:
        """How the calls name a block, with its place."""
        _, address, size, _ = self.given[number]
        return f"{self.names[number]} [{address:#x}, {address + size:#x})"


class Rule(NamedTuple):
    """What must hold after each call, and what is tried at the end of a sequence."""

    after_each: Callable[[Trial], None] = lambda trial: None
    at_end: Callable[[Trial], None] = lambda trial: None


def _placement(trial: Trial) -> None:
    for number, (_, address, size, requested) in trial.given.items():
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
    order = sorted(trial.given, key=lambda number: trial.given[number][1])
    for low, high in pairwise(order):
        if trial.given[low][1] + trial.given[low][2] > trial.given[high][1]:
            raise Broken(f"{trial.name_of(low)} overlaps {trial.name_of(high)}")


def _tiling(trial: Trial) -> None:
    seen = set()
    for segment, blocks in trial.manager.snapshot():
        position = segment.address
        for block in blocks:
            if block.address != position or block.size <= 0:
                raise Broken(f"snapshot: a gap or an overlap at {position:#x}, where {block} should begin")
            position += block.size
            if block.id:
                seen.add((block.id, block.address, block.size, block.requested))
        if position != segment.address + segment.size:
            raise Broken(f"snapshot: blocks end at {position:#x}, the segment at {segment.address + segment.size:#x}")
    if seen != set(trial.given.values()):
        raise Broken(
            f"snapshot: live blocks (id, address, size, requested) {seen}, expected {set(trial.given.values())}"
        )


def _sums(trial: Trial) -> None:
    allocated, reserved = trial.allocated, trial.manager.device.reserved
    sums = {"allocs": trial.allocs, "frees": trial.frees, "live": len(trial.given), "allocated": allocated}
    expected = sums | {"peak_allocated": trial.peak, "reserved": reserved}
    stats = trial.manager.stats()
    for key, value in expected.items():
        if stats.get(key) != value:
            raise Broken(f"stats()[{key!r}] is {stats.get(key)}, expected {value}")
    if stats.get("peak_reserved", reserved) < reserved or reserved < allocated:
        raise Broken(f"reserved {reserved}, but its peak is {stats.get('peak_reserved')} and {allocated} are allocated")


def _events(trial: Trial) -> None:
    segments: set[tuple[int, ...]] = set()
    blocks: set[tuple[int, ...]] = set()
    asked: set[int] = set()
    for (
        code,
        _,
        *words,
    ) in trial.events:  # tensors of other managers may be freed meanwhile: what is unknown is not ours
        kind, segment, block = code & 0xFF, tuple(words[:3]), (*words[:3], words[4])
        if kind == schema.SEGMENT_ALLOC:
            segments.add(segment)
        elif kind == schema.SEGMENT_FREE:
            segments.discard(segment)
        elif kind == schema.ALLOC:
            blocks.add(block)
        elif kind == schema.FREE_REQUESTED:
            asked.add(words[0])
        elif kind == schema.FREE_COMPLETED and words[0] in asked:
            blocks.discard(block)
    states = trial.manager.snapshot()
    held = {(state.segment.id, state.segment.address, state.segment.size) for state in states}
    live = {(b.id, b.address, b.size, state.segment.id) for state in states for b in state.blocks if b.id}
    if (segments, blocks) != (held, live):
        raise Broken(f"events give segments {segments} and blocks {blocks}; the snapshot has {held} and {live}")


def _locks(trial: Trial) -> None:
    for number, block in trial.blocks.items():
        if block.manager is not trial.manager:
            raise Broken(f"{trial.names[number]} was freed although {trial.locks.get(number, 0)} user locks hold it")
    if trial.last_freed is not None and trial.last_freed in trial.manager.ledger.locked:
        raise Broken("a freed block is still locked")


def _misuse(trial: Trial) -> None:
    manager, freed = trial.manager, trial.last_freed
    if freed is not None and freed.manager is None:
        _must_refuse(trial, "free of a block that was freed", lambda: release(manager, freed))
    other = trial.factory(SimulatedDevice(trial.capacity))
    foreign = allocate(other, 64)
    _must_refuse(trial, "free of another manager's block", lambda: release(manager, foreign))
    _must_refuse(trial, "user_lock of another manager's block", lambda: manager.user_lock(foreign))
    _must_refuse(trial, "user_unlock of another manager's block", lambda: manager.user_unlock(foreign))
    release(other, foreign)
    unlocked = [block for number, block in trial.blocks.items() if not trial.locks.get(number)]
    if unlocked:
        _must_refuse(trial, "user_unlock without a lock", lambda: manager.user_unlock(unlocked[0]))


def _must_refuse(trial: Trial, what: str, call: Callable[[], None]) -> None:
    try:
        call()
    except ValueError:
        return
    except Exception as error:
        raise Broken(f"{what} raised {error!r}, expected ValueError") from error
    raise Broken(f"{what} was accepted, expected ValueError")


def _usable_again(trial: Trial) -> None:
    trial.free_all()
    last = trial.names and max(trial.names)
    trial.do("alloc", (last or 0) + 1, trial.biggest)
    if not trial.blocks:
        raise Broken(
            f"everything was freed, but {trial.biggest} bytes, which a fresh manager serves, are not to be had: "
            f"free memory was not merged with its neighbours, not reused, or not given back to the device"
        )


def _recovers(trial: Trial) -> None:
    trial.free_all()
    nbytes, first = trial.biggest // 3, max(trial.names, default=0) + 1
    number = first
    while trial.do("alloc", number, nbytes) and number in trial.blocks:
        number += 1
        if trial.allocated > trial.capacity:
            raise Broken(f"gave out more than the device's {trial.capacity} bytes")
    if first in trial.blocks:
        trial.do("free", first)
        trial.do("alloc", number + 1, nbytes)
        if number + 1 not in trial.blocks:
            raise Broken(f"after out of memory, {nbytes} bytes were freed, but as many are not to be had again")
    trial.free_all()
    if trial.manager.stats()["live"]:
        raise Broken("after out of memory and freeing everything, blocks are live")


RULES = {
    "calls succeed": Rule(),
    "size, place, segment": Rule(_placement),
    "blocks do not overlap": Rule(_no_overlap),
    "snapshot tiles the segments": Rule(_tiling),
    "stats are the sums": Rule(_sums),
    "events rebuild the snapshot": Rule(_events),
    "user locks hold": Rule(_locks),
    "misuse is refused": Rule(_misuse),
    "freed memory is usable again": Rule(at_end=_usable_again),
    "recovers from out of memory": Rule(at_end=_recovers),
}


def _letters(index: int) -> str:
    return chr(97 + index % 26) + (str(index // 26) if index >= 26 else "")


def _biggest_request(factory: Factory, capacity: int) -> int:
    """The largest multiple of 64 bytes that a fresh manager on an empty device does not refuse."""
    if not isinstance(factory(SimulatedDevice(capacity)), MemoryManager):
        raise TypeError(f"check_manager: {factory!r} gave no flnb.interface.MemoryManager when called with a device")
    low, high = 0, capacity // 64 + 1
    while high - low > 1:
        middle = (low + high) // 2
        try:
            allocate(factory(SimulatedDevice(capacity)), middle * 64)
            low = middle
        except MemoryError:
            high = middle
        except Exception:  # meant to serve it; the trials will meet this error again
            low = middle
    return low * 64


def _directed(biggest: int) -> list[Call]:
    small, half = min(4096, biggest // 4), biggest // 2
    steps = f"alloc 1 {small}, alloc 2 {small}, user_lock 1, free 1, alloc 3 {small}, free 2, user_unlock 1, "
    steps += f"alloc 4 {half}, release_cached, free 3, free 4, alloc 5 1, alloc 6 0, free 5, free 6, alloc 7 {half}"
    return [Call(what, *map(int, numbers)) for what, *numbers in map(str.split, steps.split(","))]


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
        for nbytes in (64, 512, 4096, 1 << 20):
            smaller = [*calls[:i], call._replace(nbytes=nbytes), *calls[i + 1 :]]
            if call.what == "alloc" and nbytes < call.nbytes and attempt(smaller).broken:
                calls = smaller
                break
    return attempt(calls)


@contextmanager
def _listening(events: list[tuple[int, ...]]) -> Iterator[None]:
    """Collect what this thread emits; a recording that is under way gets everything as well."""
    drain()
    outer = bus.lanes
    beneath = outer.lane if outer is not None else None

    class Tap(bus.Lane):
        __slots__ = ()

        def emit(self, code: int, t: int, *words: int) -> None:
            events.append((code, t, *words, *(0,) * (6 - len(words))))
            if beneath is not None:
                beneath.emit(code, t, *words)

    tap: Any = Tap(0, 0)
    if outer is None:
        bus.lanes = bus.Lanes(lambda: tap)
    else:
        outer.lane = tap
    try:
        yield
    finally:
        if outer is None:
            bus.lanes = None
        else:
            outer.lane = beneath  # type: ignore[assignment]
