"""Modules that can be recomputed or offloaded to save memory, ordered by benefit per cost."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from flnb_backends.memory.host import HostDevice
from flnb_backends.memory.native import Native
from flnb_telemetry import quantity

from flnb.dispatch.memory import array_in
from flnb.memory_lab.offload_lifetimes import inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb_telemetry import Recording

    from flnb.memory_lab.lifetimes import Choice, Step

METHODS = ("recompute", "offload")


def choices(step: Step, methods: Sequence[str], bandwidth: float) -> list[Choice]:
    """List the modules that can be recomputed or offloaded, the best ratio of benefit to cost first.

    The benefit is the number of freed bytes x the time for which they are free. The cost is the time in seconds for
    recomputing or moving.

    Args:
        step: the recorded training step.
        methods: some of `METHODS`.
        bandwidth: the bandwidth of moves in bytes/s.
    """
    found = step.recomputable() if "recompute" in methods else []
    found += step.offloadable(bandwidth) if "offload" in methods else []
    return sorted(found, key=lambda choice: -choice.worth / max(1e-9, choice.seconds))


def with_choice(
    again: tuple[str, ...], away: tuple[str, ...], choice: Choice
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Add one choice to the scopes to recompute (``again``) or to offload (``away``), and return both.

    If a module is added to ``again``, the modules inside it and around it are removed from ``again``.
    """
    if choice.method == "offload":
        return again, tuple(dict.fromkeys(away + choice.scopes))
    (scope,) = choice.scopes
    apart = (other for other in again if not (inside(scope, (other,)) or inside(other, (scope,))))
    return (*apart, scope), away


def costs(seconds: float, nbytes: int, moving: float) -> str:
    """Return a cost as text: the ``seconds`` for recomputing, and the seconds (``moving``) for moving ``nbytes``."""
    again = f"recomputing takes {quantity.duration(1e9 * seconds)}"
    away = f"moving {quantity.size(nbytes)} takes {quantity.duration(1e9 * moving)}"
    return ", ".join([again] * bool(seconds) + [away] * bool(nbytes)) or "none"


def bandwidth_of(run: Recording | None) -> float:
    """Return the bandwidth of memory copies in bytes/s, from a recording's moves or else measured now on the host."""
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
