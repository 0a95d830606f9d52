"""Plans for `flnb.memory.Planned`: the repeating part of a recording, packed offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flnb_backends.memory.planned import Plan
from flnb_telemetry import Recording, load_run
from flnb_telemetry.analysis.memory import NEVER

from flnb.interface.memory import ALIGNMENT
from flnb.memory_lab.packing import pack, packed

__all__ = ["plan"]


def plan(source: Any, step: int | None = None, seconds: float = 5.0) -> Plan:
    """Pack a step of training (or any calls) for `flnb.memory.Planned`.

    Args:
        source: a recording (or the path of a saved one) with steps, of which one is planned: what is made in it gets a
            place, except what is still there when it ends, and what other threads make meanwhile. A recording without
            steps is planned as a whole, without what was there before; of a `Trace` everything gets a place.
        step: which of a recording's steps; unless told the last but one, if there are two: the last may end early, and
            what goes at its end goes unseen.
        seconds: for the packing (`flnb.memory.pack`).

    >>> import flnb
    >>> x = flnb.ones((64, 64))
    >>> with flnb.record() as run:
    ...     for _ in range(2):
    ...         with flnb.step():
    ...             total = (x * x + x).sum()
    >>> manager = flnb.memory.Planned(plan=flnb.memory.plan(run))
    >>> with flnb.use_memory_manager(manager), flnb.step():
    ...     total = (x * x + x).sum()
    >>> manager.missed, manager.stats()["allocs"]
    (0, 2)

    Raises:
        TypeError: no source of a trace.
        ValueError: there is no allocation in it.
        IndexError: there is no such step.
    """
    if isinstance(source, (str, Path)):
        source = load_run(source)
    if not isinstance(source, Recording):
        packing = pack(source, seconds)
        return Plan(packing.offsets, packing.nbytes, packing.height)
    rows = source.memory.block
    begin, end, lane = _window(source, step)
    made = (rows["t"] >= begin) & (rows["t"] < end) & ((rows["lane"] == lane) | (lane < 0))
    if not made.any():
        where = "it" if step is None else f"its step {step}"
        raise ValueError(f"flnb.memory.plan: of the run {source.name!r}, no allocation is made in {where}")
    born, died, nbytes = rows["t"][made], rows["end"][made], rows["requested"][made]
    # what is dropped last goes when the next allocation comes: as good as in the step
    until = NEVER if end == NEVER else int(rows["t"][rows["t"] >= end].min(initial=NEVER - 1))
    placed = died <= until
    packing = packed(born[placed], np.maximum(died, born + 1)[placed], nbytes[placed], seconds)
    offsets = np.full(len(nbytes), -1)
    offsets[placed] = packing.offsets
    return Plan(offsets, np.maximum(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT, packing.height)


def _window(run: Recording, step: int | None) -> tuple[int, int, int]:
    """Return begin and end (ns) of the planned calls and their lane; lane -1 for all."""
    steps = run.table("step")
    if count := len(steps["t0"]):
        step = -min(2, count) if step is None else step
        if not -count <= step < count:
            raise IndexError(f"flnb.memory.plan: the run {run.name!r} has no step {step}; it has {count}")
        return int(steps["t0"][step]), int(steps["t1"][step]), int(steps["lane"][step])
    rows = run.memory.block
    told = (rows["plan"] == 0) & (rows["context"] == 0)  # so a recording that begins is told what there is
    before = len(told) if told.all() else int(told.argmin())
    return (int(rows["t"][before]) if before < len(told) else NEVER), NEVER, -1
