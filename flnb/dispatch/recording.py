"""`flnb.record`: records telemetry and, on request, also the inputs of ops and call stacks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from warnings import warn

import flnb_telemetry
from flnb_telemetry import quantity
from flnb_telemetry.withblock import with_block

from flnb.dispatch.source_lines import creation_stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from flnb_telemetry.recording import Recording

tools: dict[str, Callable[[Recording, int], AbstractContextManager[None]]] = {}
"""A dict from an option of `record` to the function that implements it; for "inputs" one that sets ``run.captured``."""


@with_block
def record(
    name: str | None = None,
    *,
    inputs: bool = False,
    inputs_limit: str | int = "256MiB",
    stacks: bool = False,
    **options: Any,
) -> Iterator[Recording]:
    """Record all ops and memory inside the block: ``with flnb.record() as run: train()``; then read ``run.ops`` etc.

    Args:
        name: the name of the run; by default that of the file ``path`` without its ending, or "run".
        inputs: whether to store the inputs of each op of this thread, so that ``run.calls[i]`` can run an op again
            (`flnb.explore.RecordedOp`). The time for copying inputs does not count as time of the ops.
        inputs_limit: the largest number of bytes of inputs to store, such as "1GiB"; a warning is issued if inputs were
            not stored.
        stacks: whether to record the user's whole call stack with ops, allocations and collectives instead of one line,
            for `run.ops.by("stack")`, `run.memory.by("stack")` and reports. An event then takes some microseconds more.
        options: ``path``, ``replace``, ``buffer``, ``limit`` and ``grad_interval`` of `flnb.telemetry.record`.

    >>> import flnb
    >>> with flnb.record(inputs=True) as run:
    ...     y = flnb.ones((2,)) + 1.0
    >>> run.calls[1]
    op 1: add(float32[2], float32[]), <doctest flnb.dispatch.recording.record[1]>:2: y = flnb.ones((2,)) + 1.0
    >>> run.calls[1].again().tolist()
    [2.0, 2.0]
    """
    limit = quantity.bytes_of(inputs_limit, "record(inputs_limit=...)")
    whole = creation_stacks("full") if stacks else nullcontext()
    with whole, flnb_telemetry.record(name, **options) as run:
        run.meta["stacks"] = stacks
        if not inputs:
            yield run
            return
        run.meta["inputs_limit"] = limit
        with tools["inputs"](run, limit):
            yield run
    if run.captured.missed:
        warn(
            f"flnb.record: {run.captured.summary()}; give a larger inputs_limit, or record fewer steps",
            RuntimeWarning,
            stacklevel=4,
        )
