"""`python -m benchmarks NAME [options]`: the measurements behind every speed and accuracy claim."""

from __future__ import annotations

import os
import sys
from importlib import import_module

# One thread for every framework, before NumPy loads: on few cores more of them mostly measure each other.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

NAMES = (
    "complexity",
    "digits",
    "distributed",
    "export",
    "gpu",
    "imports",
    "kernels",
    "loading",
    "memory",
    "models",
    "offloading",
    "ops",
    "overhead",
    "programs",
    "recordings",
    "tape",
    "tapeview",
    "timelineview",
    "trained",
    "tune",
)


def main(argv: list[str]) -> int:
    """Run one benchmark, or all in a smoke size with ``--smoke``."""
    if argv[:1] in (["--smoke"], ["smoke"]):
        return max(int(import_module(f"benchmarks.{name}").main(["--quick"])) for name in NAMES)
    if not argv or argv[0] not in NAMES:
        print(f"usage: python -m benchmarks {{{','.join(NAMES)}}} [options]   or   python -m benchmarks --smoke")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    return int(import_module(f"benchmarks.{argv[0]}").main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
