"""Plans for the memory manager `Planned`: the allocations of a recorded training step, packed offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flnb_backends.memory.planned import Plan
from flnb_telemetry import Recording, load_run
from flnb_telemetry.analysis.memory import NEVER

from flnb.interface.memory import ALIGNMENT
from flnb.memory_lab.packing import pack, packed


def plan(source: Any, step: int | None = None, seconds: float = 5.0) -> Plan:
    """Make a plan for `flnb.memory.Planned`: an offset for every allocation of a training step.

    Args:
        source: a recording with steps (or the path of a saved one), of which one step is planned. Tensors that outlive
            the step, and those of other threads, get no offset. A recording without steps is planned as a whole, except
            for blocks allocated before it began. In a `Trace` every allocation gets an offset.
        step: the index of the step; by default the last but one if there are two or more, because the recording may end
            before the frees of the last step.
        seconds: time limit of the packing (`flnb.memory.pack`).

    Returns:
        A `Plan`, to be passed to ``flnb.memory.Planned(plan=...)``.

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
        TypeError: the source is not a recording, path or trace.
        ValueError: no allocation is made in the step.
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
        where = "" if step is None else f" in its step {step}"
        raise ValueError(f"flnb.memory.plan: the run {source.name!r} makes no allocation{where}")
    born, died, nbytes = rows["t"][made], rows["end"][made], rows["requested"][made]
    # tensors dropped last are freed by the next allocation, which counts as within the step
    until = NEVER if end == NEVER else int(rows["t"][rows["t"] >= end].min(initial=NEVER - 1))
    placed = died <= until
    packing = packed(born[placed], np.maximum(died, born + 1)[placed], nbytes[placed], seconds)
    offsets = np.full(len(nbytes), -1)
    offsets[placed] = packing.offsets
    return Plan(offsets, np.maximum(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT, packing.height)


def _window(run: Recording, step: int | None) -> tuple[int, int, int]:
    """Return begin and end (ns) of the step to plan, and the number of the step's thread (-1 for all threads)."""
    steps = run.table("step")
    if count := len(steps["t0"]):
        step = -min(2, count) if step is None else step
        if not -count <= step < count:
            raise IndexError(f"flnb.memory.plan: the run {run.name!r} has no step {step}; it has {count} steps")
        return int(steps["t0"][step]), int(steps["t1"][step]), int(steps["lane"][step])
    rows = run.memory.block
    announced = (rows["plan"] == 0) & (rows["context"] == 0)  # so blocks are announced that were there before
    before = len(announced) if announced.all() else int(announced.argmin())
    return (int(rows["t"][before]) if before < len(announced) else NEVER), NEVER, -1
