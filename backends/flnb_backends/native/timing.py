"""Timing of alternative implementations of one computation, to choose the fastest on this machine."""

from __future__ import annotations

from time import perf_counter, thread_time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HOPELESS = 3.0
"""An alternative is not called again if its first call takes this many times as long as the fastest alternative."""
CALLS, SHORT = 3, 1e-4
"""The number of calls of each alternative, the first of which is not counted; twice as many if that takes less than
`SHORT` seconds."""


def time_once(ways: Mapping[str, Callable[[], object]], threads: int = 1) -> dict[str, float]:
    """Call each alternative a few times; return the shortest time of each in seconds, the fastest first.

    ``ways`` has the alternatives by name; each is a function without arguments.

    If the alternatives use one thread (``threads`` is 1), this thread's CPU time is measured, which does not depend on
    other programs; otherwise elapsed time is measured.
    """
    clock = thread_time if threads == 1 else perf_counter
    least: dict[str, float] = {}

    def once(way: Callable[[], object]) -> float:
        start = clock()
        way()
        return clock() - start

    for name, way in ways.items():
        took = once(way)
        best = min(least.values(), default=took)
        calls = 1 if took > HOPELESS * best else 2 * CALLS if took < SHORT else CALLS
        least[name] = min((once(way) for _ in range(calls - 1)), default=took)
    return dict(sorted(least.items(), key=lambda each: each[1]))
