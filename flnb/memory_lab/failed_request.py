"""The trace of a program up to a request that ran out of memory, from its recording, and changes to that trace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from flnb_telemetry.analysis.memory import NEVER

from flnb.memory_lab.traces import Trace

if TYPE_CHECKING:
    from flnb_telemetry.schema import Columns, Ints

    from flnb.interface.memory import Shortage


def requests_until(at: Shortage) -> Columns:
    """Return the rows of `Memory.block` for the manager that ran out of memory, without frees after the failure.

    These are the blocks in this manager's segments and in released segments. All other segments belong to other
    managers.
    """
    rows, segment = at.run.memory.block, at.run.memory.segment
    mine = np.array([state.segment.id for state in at.segments], np.int64)
    gone = segment["segment_id"][segment["end"] <= at.t]
    chosen = (rows["t"] <= at.t) & np.isin(rows["segment_id"], np.concatenate([mine, gone]))
    found = {name: column[chosen] for name, column in rows.items()}
    found["end"] = np.where(found["end"] <= at.t, found["end"], NEVER)
    return found


def with_request(trace: Trace, at: Shortage, request: int) -> Trace:
    """Return a copy of a trace with one more allocation: of the ``request`` bytes that failed at the shortage ``at``.

    The trace has only allocations that succeeded.
    """
    plan = at.run.catalog.plans.items[at.plan]
    return replace(
        trace,
        calls=np.append(trace.calls, len(trace.nbytes) + 1),
        nbytes=np.append(trace.nbytes, request),
        t=np.append(trace.t, at.run.seconds_at(at.t)),
        category=np.append(trace.category, np.uint8(at.category)),
        op=np.append(trace.op, np.array([plan.op], object)),
        scope=np.append(trace.scope, np.array([at.scope], object)),
        shapes=[*trace.shapes, plan.shape],
    )


def without(trace: Trace, rows: Ints) -> Trace:
    """Return a copy of a trace in which the allocations ``rows`` are freed at the latest just before the last call."""
    born, died = trace.lifetimes
    tick = Trace.TICK
    ends = np.where(died < len(trace), died * tick, NEVER)
    ends[rows] = np.minimum(ends[rows], (len(trace) - 1) * tick)
    return trace.with_lifetimes(np.arange(len(born)), born * tick, ends)
