"""What can be done about what modules save for backward, in the order of its use for its price."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from flnb_backends.memory.host import HostDevice
from flnb_backends.memory.native import Native
from flnb_telemetry import quantity

from flnb.dispatch.memory import array_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb_telemetry import Recording

    from flnb.memory.lifetimes import Choice, Step

__all__ = ["METHODS", "bandwidth_of", "choices", "costs", "with_choice"]

METHODS = ("recompute", "offload")


def choices(step: Step, methods: Sequence[str], bandwidth: float) -> list[Choice]:
    """What can be done, the most bytes x waiting time for the time it costs first."""
    found = step.recomputable() if "recompute" in methods else []
    found += step.offloadable(bandwidth) if "offload" in methods else []
    return sorted(found, key=lambda choice: -choice.worth / max(1e-9, choice.seconds))


def with_choice(
    again: tuple[str, ...], away: tuple[str, ...], choice: Choice
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is recomputed and what is offloaded with one choice more."""
    if choice.method == "offload":
        return again, tuple(dict.fromkeys(away + choice.scopes))
    (scope,) = choice.scopes
    return (*(other for other in again if not _nested(scope, other)), scope), away


def _nested(a: str, b: str) -> bool:
    return a == b or a.startswith(b + ".") or b.startswith(a + ".")


def costs(seconds: float, nbytes: int, moving: float) -> str:
    """What a plan costs, in words."""
    again = f"recomputing takes {quantity.duration(1e9 * seconds)}"
    away = f"moving {quantity.size(nbytes)} takes {quantity.duration(1e9 * moving)}"
    return ", ".join([again] * bool(seconds) + [away] * bool(nbytes)) or "none"


def bandwidth_of(run: Recording | None) -> float:
    """Bytes a second of the moves of a recording, or of copies in the host's memory, there and back, made now."""
    if run is not None and len((moves := run.table("transfer"))["t0"]):
        return float(moves["nbytes"].sum() / max(1e-9, (moves["t1"] - moves["t0"]).sum() / 1e9))
    nbytes, best = 4 << 20, float("inf")
    here = np.ones(nbytes, np.uint8)
    for _ in range(3):
        began = perf_counter()
        there = array_in(Native(HostDevice()), (nbytes,), here.dtype, nbytes)
        np.copyto(there, here)
        np.copyto(here, there)
        best = min(best, perf_counter() - began)
    return 2 * nbytes / best
