"""A recorded training step that a Ctrl-C arrives in, and what must hold afterwards.

Everything here runs in a forked child, which ends with it.
"""

from __future__ import annotations

import dis
import gc
import linecache
import re
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import MethodDescriptorType
from typing import Any

from flnb_telemetry import bus, pump

import flnb
from flnb import nn
from flnb.dispatch import state
from flnb.dispatch.memory import block_of

ROOT = Path(flnb.__file__).parents[1]
PACKAGES = tuple(str(ROOT / folder) + "/" for folder in ("flnb", "telemetry", "backends"))
STANDARD = (threading.__file__, sys.modules["contextlib"].__file__)

Point = tuple[str, int, int]
"""File, line, and which time the line is reached, from 1; or, without a file, microseconds until a signal comes."""


PASSED = "passed by: the step ended without an error"
"""The outcome of a point that another run of the step does not reach."""


def interruptible(filename: str) -> bool:
    """Whether a Ctrl-C is tried at the lines of a file: of the package, of its generated code, of `STANDARD`."""
    return filename.startswith(PACKAGES) or filename in STANDARD


def uninterruptible(frame: Any) -> bool:
    """Whether a line is that of a ``with`` over a lock, reached a second time, to release it.

    Python looks for signals where a function begins, after a call and where a loop goes back. ``__exit__`` of a lock is
    written in C and called at once after the block: a signal is raised before the block's end or after the release.
    """
    code = frame.f_code
    first = dis.opname[code.co_code[frame.f_lasti]]
    if first.startswith("LOAD_") and first != "LOAD_CONST":  # the lock's name: it is entered
        return False
    entered = re.match(r"\s*with ([\w.]+):", linecache.getline(code.co_filename, frame.f_lineno))
    if entered is None:
        return False
    manager = eval(entered[1], frame.f_globals, frame.f_locals)
    return isinstance(type(manager).__exit__, MethodDescriptorType)


class Parts:
    """A small model and its data, in blocks of the memory manager."""

    def __init__(self) -> None:
        flnb.manual_seed(0)
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 10)
        self.net = nn.Sequential(self.first, nn.LayerNorm(32), nn.ReLU())
        self.optimizer = flnb.optim.Adam([*self.net.parameters(), *self.last.parameters()], lr=0.01)
        self.x, self.labels = flnb.random.uniform((24, 16)), flnb.arange(24) % 10
        self.count = flnb.zeros((300,))

    def step(self) -> Any:
        """One step as a user writes it; its recording."""
        with flnb.record("step", grad_interval=0.0) as run, flnb.step():
            with flnb.scope("counting"), flnb.no_grad():
                flnb.add(self.count, 1.0, out=self.count)
            with flnb.memory.offload(min_bytes=1024, keep_last=0), flnb.phase("forward"):
                h = flnb.checkpoint(self.net)(flnb.Variable(self.x))
                logits = self.last(flnb.tanh(h) * 2.0 + h[:, :1])
                loss = flnb.cross_entropy(logits, self.labels) + flnb.softmax(logits).sum() * 0.0
                loss.backward()
            flnb.log(loss=loss)
            self.optimizer.step()
        return run

    def weights(self) -> bytes:
        """The bits of all weights."""
        return b"".join(item.data.numpy().tobytes() for item in self.optimizer.parameters)


def trained() -> tuple[bytes, int]:
    """The weights after a step that nobody interrupts, and the number of ops that it records."""
    parts = Parts()
    run = parts.step()
    return parts.weights(), len(run.table("op")["t0"])


def duration() -> float:
    """Seconds that a step takes."""
    parts = Parts()
    began = time.perf_counter()
    parts.step()
    return time.perf_counter() - began


def in_use() -> tuple[int, int, int]:
    """Live blocks, their bytes and reserved bytes of the active manager, when all that is free went back."""
    manager = state.current().manager
    for _ in range(2):
        gc.collect()
    manager.release_cached()
    stats = manager.stats()
    return stats["live"], stats["allocated"], stats["reserved"]


def points() -> Counter[tuple[str, int]]:
    """How often each line is reached in a step."""
    found: Counter[tuple[str, int]] = Counter()

    def line(frame: Any, event: str, argument: Any) -> Any:
        if event == "line" and not uninterruptible(frame):
            found[frame.f_code.co_filename, frame.f_lineno] += 1
        return line

    def call(frame: Any, event: str, argument: Any) -> Any:
        return line if interruptible(frame.f_code.co_filename) else None

    parts = Parts()
    sys.settrace(call)
    try:
        parts.step()
    finally:
        sys.settrace(None)
    return found


def signalled(parts: Parts, seconds: float) -> str:
    """Run a step, and send this process a signal after a time, as a terminal does; the error's name as below."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    ended = ""
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            parts.step()
        except BaseException as error:
            ended = type(error).__name__
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    except KeyboardInterrupt:  # it came when the step was over
        pass
    return ended


def interrupted(parts: Parts, point: Point) -> str:
    """Run a step and raise KeyboardInterrupt at a point; the name of the error that the step ended with, or ""."""
    if not point[0]:
        return signalled(parts, point[1] / 1e6)
    file, number, left = point
    lines: dict[Any, bool] = {}

    def line(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "line" and frame.f_lineno == number and not uninterruptible(frame):
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return line

    def call(frame: Any, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in lines:
            lines[code] = code.co_filename == file
        return line if lines[code] and left > 0 else None

    sys.settrace(call)
    try:
        parts.step()
    except BaseException as error:
        return type(error).__name__
    finally:
        sys.settrace(None)
    return ""


def outcome(point: Point, expected: tuple[bytes, int], before: tuple[int, int, int], interval: float) -> list[str]:
    """What is wrong after a step that was interrupted at a point, a line each."""
    session = state.session
    parts: Parts | None = Parts()
    found = []
    ended = interrupted(parts, point)
    if ended != "KeyboardInterrupt":
        found.append(f"ended by {ended}, not by KeyboardInterrupt" if ended else PASSED)
    found += _left_over(session, interval)
    found += _elsewhere()
    if not found:
        weights, ops = trained()
        if ops != expected[1]:
            found.append(f"a new recording sees {ops} ops of {expected[1]}")
        if weights != expected[0]:
            found.append("a new step leads elsewhere")
    parts = None
    found += _books(before)
    return found


def _left_over(session: Any, interval: float) -> list[str]:
    """What of the old recording, its thread and its modes is still there."""
    found = []
    deadline = time.monotonic() + 2
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.002)
    if threading.active_count() > 1:
        found.append(f"threads are left: {[thread.name for thread in threading.enumerate()[1:]]}")
    if bus.lanes is not None or pump.session is not None:
        found.append("the old recording has not ended")
    if sys.getswitchinterval() != interval:
        found.append(f"the switch interval is {sys.getswitchinterval()}")
    here = bus.threads.here
    if (here.phase, here.path, here.step) != (0, "", None):
        found.append(f"stuck in phase {here.phase}, scope {here.path!r}, step {here.step}")
    if state.current() is not session:
        found.append("the state is not the session's")
    return found


def _elsewhere() -> list[str]:
    """Whether another thread can allocate, compute and be recorded: no lock is held."""
    seen = []

    def work() -> None:
        with flnb.record() as run:
            x = flnb.ones((64, 64)) + 1.0
            del x
        seen.append(len(run.table("op")["t0"]))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(5)
    return [] if seen == [2] else [f"another thread recorded {seen} ops of 2"]


def _books(before: tuple[int, int, int]) -> list[str]:
    """Whether a manager's books are right, and its segments tiled; then, with nothing in use, as they were before."""
    manager = state.current().manager
    found = []
    gc.collect()
    stats, held = manager.stats(), list(manager.ledger.live.values())
    if stats["allocated"] != sum(block.size for block in held):
        found.append(f"allocated {stats['allocated']}, its blocks have {sum(block.size for block in held)}")
    if stats["reserved"] != sum(segment.size for segment in manager.device.segments.values()):
        found.append("reserved is not the sum of the segments")
    for segment, tiles in manager.snapshot():
        if sum(tile.size for tile in tiles) != segment.size:
            found.append(f"segment {segment.id} is not tiled")
    if (now := in_use()) != before:
        found.append(f"live, allocated, reserved are {now}, expected {before}")
    if manager.device.device.reserved != manager.device.reserved:
        found.append(f"the device has {manager.device.device.reserved} bytes reserved, its one manager {now[2]}")
    again = flnb.ones((64, 64))
    if block_of(again._data) is None or manager.stats()["live"] != before[0] + 1:
        found.append("a new tensor is not counted")
    return found
