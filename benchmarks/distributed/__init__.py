"""The cost of communication, the hidden part of it, and predictions of it: `python -m benchmarks distributed`.

Arguments select sections: `crossing` (two processes: flnb's calls beside raw mpi4py and, where torch is installed, its
gloo), `overlap` (transfers on a modelled link beside a backward pass), `arrivals` (the cost of reporting complete
gradients) and `predictions` (of the simulator). Variants take turns in one run. The least time, the lower quartile and
the median are reported, because machines are busy: the least time shows the cost of the code, the median includes
waiting.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

from benchmarks.report import table, write

SECTIONS = ("crossing", "overlap", "arrivals", "predictions")


def main(argv: list[str]) -> int:
    """Run the sections named in ``argv``, or all; returns the exit status, which is 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks distributed")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; by default all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI")
    options = parser.parse_args(argv)
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if options.quick:
        options.rounds = 1
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in options.sections or SECTIONS:
        rows[name] = import_module(f"benchmarks.distributed.{name}").measure(options.rounds, options.quick)
        print(f"{name}\n{table(rows[name])}\n", flush=True)
    if set(rows) == set(SECTIONS):
        print(f"kept in {write('distributed', rows, vars(options))}")
    met = all(row["met"] != "NO" for section in rows.values() for row in section)
    return 0 if options.quick or met else 1
