"""How long the Python kernel takes to open the tape of a recorded program, to expand a block and to search the tape.

`python -m benchmarks tapeview`; the browser adds its part (`tests/browser/test_tape.py -s` prints it).
Goals: a million nodes open collapsed in 3 s, a block expands in 0.2 s, the browser's part included.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from flnb_telemetry.live.view import tape_frame

from benchmarks.report import table, write

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (10_000, 100_000, 1_000_000)


def recorded(nodes: int) -> Any:
    """Record a chain of about ``nodes`` small ops on a Variable, forward and backward; returns the recording."""
    import flnb

    with flnb.record("chain", buffer="1GiB", limit="2GiB", grad_interval=0) as run:
        w = flnb.Variable([0.5, -0.25, 0.125, 1.0])
        x = w
        for _ in range(nodes // 3):
            x = flnb.tanh(x * w + 0.1)
        x.sum().backward()
    if run.dropped:
        raise RuntimeError(f"{run.dropped} events were dropped; the tape would not be whole")
    return run


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Call a function; returns the elapsed seconds and the function's result."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def measure(nodes: int, rounds: int) -> dict[str, Any]:
    """Measure a tape of ``nodes`` nodes; returns the row of the table.

    The row has the seconds until the first message to the browser, and the most milliseconds that any of ``rounds``
    requests of each kind took.
    """
    from flnb_telemetry.live.tape import LiveTape

    run = recorded(nodes)
    spent = time.process_time()
    build, tape = timed(lambda: run.tape)
    first, (live, told) = timed(lambda: _first(LiveTape(tape)))
    spent = time.process_time() - spent
    known = {level["key"] for level in told["tape"]["levels"]}
    items = [item for level in told["tape"]["levels"] for item in level["items"] if isinstance(item, dict)]
    closed = [item["key"] for item in items if item["key"] not in known] or [""]
    ask = [{"open": [closed[i % len(closed)]]} for i in range(rounds)]
    expand = [timed(partial(_answered, live, request))[0] for request in ask]
    search = [timed(partial(_answered, live, {"search": "tanh", "after": i}))[0] for i in range(rounds)]
    return {
        "nodes": len(tape.nodes),
        "run.tape, s": round(build, 3),
        "first message, s": round(first, 3),
        "opens in, s": round(build + first, 3),
        "of it processor, s": round(spent, 3),
        "first message, KiB": round(len(json.dumps(told)) / 1024),
        "expand, ms (worst)": round(1e3 * max(expand), 1),
        "search, ms (worst)": round(1e3 * max(search), 1),
        "met": "yes" if build + first < 3 and max(expand) < 0.2 else "NO",
    }


def _answered(live: Any, request: dict[str, Any]) -> str:
    """Return the answer to a browser's request, such as that for a part of the tape, as JSON."""
    return json.dumps(live.answer(request))


def _first(live: Any) -> tuple[Any, dict[str, Any]]:
    """Make the first message about a tape; returns ``live`` and the content of the message."""
    content = tape_frame(live, "tape")
    json.dumps(content)
    return live, content


def main(argv: list[str]) -> int:
    """Run the benchmark with the options ``argv``, and print and store the results; returns the exit status, 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tapeview")
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    options = parser.parse_args(argv)
    rows = [measure(nodes, 3 if options.quick else 10) for nodes in (SIZES[:1] if options.quick else SIZES)]
    print(table(rows))
    print(f"kept in {write('tapeview', rows, vars(options))}")
    return 0
