"""`python -m tests.faults`: every fault under every MPI, with the seconds after which each survivor names the rank.

Options: `--engine NAME`, `--only TEXT` (faults whose names have that text), `--rank N` (the one with the fault). The
exit status is the number of rows that are not as they must be.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.faults.trial import (
    AT_END,
    HOSTS,
    KINDS,
    Outcome,
    attempt,
    engines,
    fill_disk,
    kill_mpiexec,
    left_behind,
    problems,
    shared_files,
    temporary,
)


def row(engine: str, kind: str, place: str, faulty: int) -> list[str]:
    """Run one trial; returns its problems after printing a row."""
    before = shared_files()
    with temporary() as folder:
        outcome, found = run(engine, kind, place, Path(folder), faulty)
        found += [f"left behind: {each}" for each in left_behind(before, Path(folder))]
    told = "  ".join(f"rank {rank} {seconds:.2f}" for rank, (seconds, _) in outcome.said.items())
    print(f"{kind:24} {place:9} {engine:8} {outcome.status:4}  {told:36}  {'; '.join(found) or 'ok'}", flush=True)
    return found


def run(engine: str, kind: str, place: str, folder: Path, faulty: int) -> tuple[Outcome, list[str]]:
    """The outcome of a trial and its problems."""
    if kind == "mpiexec killed":
        outcome = kill_mpiexec(engine, folder)
        right = outcome.status == 137 and "mpiexec was killed by SIGKILL" in outcome.stderr
    elif kind == "disk full":
        outcome = fill_disk(engine, folder)
        right = outcome.status == 1 and "flight.json could not be written: [Errno 28]" in outcome.stderr
    elif kind == AT_END:
        outcome = attempt(engine, kind, True, folder)  # of rank 2: it is alone on its host
        right = outcome.status == 1 and outcome.stderr.count("what the ranks received is wrong") == 3
    else:
        outcome = attempt(engine, kind, place == "two hosts", folder, faulty)
        return outcome, problems(kind, outcome, faulty)
    return outcome, [] if right else [outcome.stderr]


def main() -> int:
    """Run the trials that the command line chooses."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--engine", choices=list(engines()))
    parser.add_argument("--only", default="")
    parser.add_argument("--rank", type=int, choices=range(3), default=2)
    chosen = parser.parse_args()
    print(f"{f'fault of rank {chosen.rank}':24} {'place':9} {'MPI':8} exit  seconds until each survivor named it")
    trials = [(kind, "one host") for kind in [*KINDS, "mpiexec killed", "disk full"]]
    trials += [(kind, "two hosts") for kind in [*HOSTS, AT_END]]
    bad = 0
    for kind, place in trials:
        for engine, settings in engines().items():
            if settings is not None and chosen.engine in (None, engine) and chosen.only in f"{kind}, {place}":
                bad += bool(row(engine, kind, place, chosen.rank))
    return bad


if __name__ == "__main__":
    raise SystemExit(main())
