"""The machine's highest FLOP/s and bytes/s, to which the speeds of ops are compared."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from flnb_telemetry.analysis import roofline

from flnb.dispatch.parts import use_backend

if TYPE_CHECKING:
    from flnb_telemetry.analysis.roofline import Peaks


def measure_peaks() -> Peaks:
    """Measure the machine's limits, with the matrix products of the backend "cpu" where that is installed.

    With NumPy's matrix products the limit would be too low, because they may run on fewer threads.
    """
    cpu: Any
    try:
        with use_backend("cpu") as cpu:
            return roofline.measured(cpu.matmul)
    except (ImportError, OSError):
        return roofline.measured()


measured_peaks = cache(measure_peaks)
"""The function that measures the machine's limits once in a process."""
