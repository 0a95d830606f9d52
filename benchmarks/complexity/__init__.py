"""How much there is to understand, and how long a change takes: `python -m benchmarks complexity`.

The Flashlight paper's Tables 1, 2 and 4, for flnb and for each of torch, jax and numpy that is installed, and the
paper's own figures beside them. Ways of counting differ from the paper's where they have to:

- Lines (see `lines`) are those of an installation. A wheel of torch, jax or numpy contains Python code and headers, but
  not most of the compiled sources. For flnb, the packages in this checkout are counted, including the dashboard's
  TypeScript. Tests and other projects' code are left out. ``--source NAME=FOLDER`` also counts another checkout.
- Operators (see `operators`) are read from each framework's registry. For Flashlight the paper counts the operators
  that a tensor backend must implement; for flnb this is the column "primitives".
- The paper's incremental builds do not exist where nothing is compiled. Instead, two times are measured (see
  `iteration`): from an edit of a source file until its tests have passed, and from an edit of a class in a notebook
  until the new class is active. Both are "n/a" for the other frameworks, whose wheels contain no compiled sources.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.complexity import installed, iteration, lines, operators, paper
from benchmarks.report import table, write

__all__ = ["main"]

GOAL = 1.0
"""Goal: the most seconds until an edited class is active."""


def measured(frameworks: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    """Return the version, lines of code, bytes, operators and import times of each installed framework, by name.

    Args:
        frameworks: the names of the frameworks, of `installed.FRAMEWORKS`.
        rounds: how often each framework is imported.
    """
    found = {name: row for name in frameworks if (row := installed.row(name))}
    times = installed.import_times(list(found), rounds)
    return {
        name: row | {"operators": operators.operators(name), "import s": times[name]} for name, row in found.items()
    }


def overview(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a framework's row of the printed table, given its name and its entry in the result of `measured`.

    The column "primitives" counts the ops that a tensor backend must implement; the column "schemas" counts each
    overload of an operator separately.
    """
    counts = row["operators"]["counts"]
    return {
        "framework": f"{name} {row['version']}",
        "lines": f"{sum(row['lines'].values()):,}",
        "of them Python": f"{row['lines'].get('Python', 0):,}",
        "operators": counts["operators"],
        "primitives": counts.get("primitives", ""),
        "schemas": counts.get("schemas", ""),
        "add": counts["add"],
        "conv": counts["conv"],
        "sum": counts["sum"],
        "MB": round(row["bytes"] / 1e6, 1),
        "with what it requires": round(row["bytes with requirements"] / 1e6, 1),
        "import, s": installed.median(row["import s"]),
    }


def edited_classes(rounds: int) -> list[dict[str, Any]]:
    """Measure how soon an edited class is active in a notebook, for each kind of class that a cell can redefine.

    Return a row of the printed table for each kind.
    """
    rows = []
    for part in iteration.PARTS:
        times = iteration.active_in_notebook(part, rounds)
        seconds: dict[str, Any] = dict.fromkeys(("median s", "worst s", "met"), "n/a")
        if times:
            met = "yes" if max(times) < GOAL else "NO"
            seconds = {"median s": installed.median(times), "worst s": round(max(times), 3), "met": met}
        rows.append({"class edited in a cell": part, **seconds, "goal": f"< {GOAL}"})
    return rows


def main(argv: list[str]) -> int:
    """Run the benchmark; returns the exit status, which is 1 if an edited class took longer than the goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks complexity")
    parser.add_argument("--rounds", type=int, default=7, help="imports of each framework, and edits of each class")
    parser.add_argument("--files", type=int, default=8, help="source files to edit")
    parser.add_argument("--source", action="append", default=[], metavar="NAME=FOLDER", help="count a checkout's lines")
    parser.add_argument("--quick", action="store_true", help="a smoke size, for CI: flnb and numpy, one file")
    options = parser.parse_args(argv)
    if options.quick:
        options.rounds = 1
    frameworks = measured(["flnb", "numpy"] if options.quick else list(installed.FRAMEWORKS), options.rounds)
    checkouts = dict(entry.split("=", 1) for entry in options.source)
    counted = {name: lines.by_language(lines.sources(Path(folder))) for name, folder in checkouts.items()}
    picked = [installed.ROOT / "flnb/meters.py"] if options.quick else iteration.chosen(options.files)
    rows = {
        "frameworks": frameworks,
        "rules": {"names": operators.MATCH, "languages": lines.LANGUAGES, "not counted": sorted(lines.OMITTED)},
        "checkouts": counted,
        "file edited": iteration.file_to_tests(picked),
        "class edited": edited_classes(options.rounds),
        "from scratch": None if options.quick else iteration.from_scratch(),
        "paper": paper.FIGURES,
    }
    print(table([overview(name, row) for name, row in frameworks.items()]), end="\n\n")
    for name, found in counted.items():
        print(f"lines of {name}: " + ", ".join(f"{number:,} {language}" for language, number in found.items()))
    print(table(rows["file edited"]), end="\n\n")
    print(table(rows["class edited"]))
    print("Both for torch, jax and numpy: n/a (what computes is compiled, and its sources are not installed).\n")
    if rows["from scratch"]:
        print("wheel built and installed: {s} s, {processor s} s of processors\n".format(**rows["from scratch"]))
    print(f"The paper's figures:\n{table(paper.FIGURES)}")
    options.source = list(checkouts)  # which folders they were in is nobody's business
    print(f"kept in {write('complexity', rows, vars(options))}")
    return int(not options.quick and any(row["met"] == "NO" for row in rows["class edited"]))
