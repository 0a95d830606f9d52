"""`python -m tests.interrupts`: Ctrl-C at every line that a recorded training step runs, each in a process of its own.

Options: `--sample N` tries that many points drawn with `--seed S`; `--signals N` sends real signals at that many random
moments instead, which Python raises wherever it looks for them; `--jobs J` processes at a time; `--cold` the first step
of a process, in which plans and pulls are made, instead of a later one; `--manager NAME`; `--only TEXT` points whose
place has that text; `--tell` names points that were not reached again; `--minutes M` starts no further trial after that
time, and the report is of those that were tried.
"""

from __future__ import annotations

import argparse
import json
import linecache
import os
import random
import select
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a forked child has none of its parent's threads

import numpy as np

import flnb
from tests.interrupts import trial

if TYPE_CHECKING:
    from tests.interrupts.trial import Point

OCCURRENCES = 2
SECONDS = 8.0  # that a trial may take
UNPROTECTED = Path(__file__).with_name("unprotected.txt")


def in_child(work: Any) -> Any:
    """What a function returns in a forked child."""
    child = Child(work)
    while not child.ended():
        select.select([child.pipe], [], [], 0.1)
    return child.result


class Child:
    """A forked process that calls a function once and sends back what it returned, as JSON."""

    def __init__(self, work: Any) -> None:
        self.pipe, writer = os.pipe()
        self.began, self.text = time.monotonic(), b""
        self.result: Any = None
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(self.pipe)
                sys.unraisablehook = lambda unraisable: _swallowed.append(repr(unraisable.exc_value))
                answer = json.dumps(work()).encode()
            except BaseException as error:
                answer = json.dumps([f"the trial itself failed: {type(error).__name__}: {error}"]).encode()
            while answer:
                answer = answer[os.write(writer, answer) :]
            os._exit(0)
        os.close(writer)

    def ended(self) -> bool:
        """Whether it has sent its answer, died, or run for too long."""
        if select.select([self.pipe], [], [], 0)[0]:
            more = os.read(self.pipe, 1 << 16)
            self.text += more
            if more:
                return False
            self.result = json.loads(self.text) if self.text else ["it died"]
        elif time.monotonic() - self.began < SECONDS:
            return False
        else:
            os.kill(self.pid, signal.SIGKILL)
            self.result = [f"it hangs: no answer after {SECONDS:.0f} s"]
        os.close(self.pipe)
        os.waitpid(self.pid, 0)
        return True


_swallowed: list[str] = []


def place(point: Point) -> str:
    """A point as people and `unprotected.txt` know it: the line's file, function and text."""
    file, line, _ = point
    if not file:
        return f"a signal after {line} us"
    name = os.path.relpath(file, trial.ROOT) if file.startswith(str(trial.ROOT)) else os.path.basename(file)
    above = (linecache.getline(file, number) for number in range(line, 0, -1))
    function = next((text.split("(")[0].split()[-1] for text in above if text.lstrip().startswith("def ")), "")
    return f"{name}, {function}: {linecache.getline(file, line).strip()}"


def unprotected(path: str) -> dict[str, str]:
    """The places that Python itself cannot protect, with the reason: lines `place | reason`."""
    rows = [line.split(" | ") for line in Path(path).read_text().splitlines() if line and not line.startswith("#")]
    return {place.strip(): reason.strip() for place, reason in rows}


def main() -> int:
    """Print what is broken; 1 where that is anything but what is listed."""
    parser = argparse.ArgumentParser(prog="python -m tests.interrupts", description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--signals", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--manager", default="caching")
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--tell", action="store_true", help="also points that were not reached again")
    parser.add_argument("--unprotected", default=UNPROTECTED)
    given = parser.parse_args()
    flnb.set_memory_manager(given.manager)
    if not given.cold:
        trial.trained()
    before, interval = trial.in_use(), sys.getswitchinterval()
    weights, ops = in_child(lambda: [(step := trial.trained())[0].hex(), step[1]])
    expected = bytes.fromhex(weights), ops
    counts = in_child(lambda: [[*key, count] for key, count in trial.points().items()])
    points = [(f, n, k + 1) for f, n, count in sorted(counts) for k in range(min(count, OCCURRENCES))]
    total = len(points)
    points = [point for point in points if given.only in place(point)]
    if given.signals:
        seconds = in_child(trial.duration)
        points = [("", random.Random(i).randrange(1, int(seconds * 1e6)), i) for i in range(given.signals)]
        total = len(points)
    elif given.sample is not None:
        points = random.Random(given.seed).sample(points, min(given.sample, len(points)))

    def tried(point: Point) -> Any:
        return lambda: [
            *trial.outcome(point, expected, before, interval),
            *(f"raised where nobody can catch it: {error}" for error in _swallowed),
        ]

    print(f"{len(points)} of {total} points, numpy {np.__version__}, manager {given.manager}, seed {given.seed}")
    found: dict[Point, list[str]] = {}
    waiting, running, until = points[::-1], {}, time.monotonic() + 60 * given.minutes
    while waiting or running:
        if time.monotonic() > until:
            print(f"{len(waiting)} of {len(points)} points were left out: {given.minutes:g} minutes are over")
            waiting, until = [], float("inf")
        while waiting and len(running) < given.jobs:
            point = waiting.pop()
            running[point] = Child(tried(point))
        select.select([child.pipe for child in running.values()], [], [], 0.5)
        for point, child in list(running.items()):
            if child.ended():
                del running[point]
                found[point] = child.result
    return report(found, unprotected(given.unprotected), given.tell)


def report(found: dict[Point, list[str]], listed: dict[str, str], tell: bool) -> int:
    """Print the outcomes; 1 where a point is broken that is not listed."""
    outcomes: Counter[str] = Counter()
    for point, wrong in sorted(found.items()):
        broken = [text for text in wrong if text != trial.PASSED]
        kind = "sound" if not wrong else "never reached" if not broken else "broken"
        if broken and place(point) in listed and not point[0].startswith(trial.PACKAGES):
            kind = "listed"
        outcomes[kind] += 1
        if kind == "broken" or (kind == "never reached" and tell):
            print(f"\n{point[0]}:{point[1]} (time {point[2]})\n  {place(point)}")
            for text in wrong:
                print(f"    {text}")
    ours = sum(1 for point in found if point[0].startswith(trial.PACKAGES))
    signals = sum(1 for point in found if not point[0])
    others = len(found) - ours - signals
    print(f"\n{ours} points at our lines, {others} in the standard library, {signals} signals: {dict(outcomes)}")
    return 1 if outcomes["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
