"""The facts at the beginning of a recording's repr."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from flnb_telemetry import quantity, schema
from flnb_telemetry.safe_text import safe_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb_telemetry.intern import Table
    from flnb_telemetry.recording import Recording
    from flnb_telemetry.run import Run


def facts(run: Recording) -> list[str]:
    """Return the facts with which the repr of a recording begins, each as a string."""
    numbers = run.steps["index"].tolist()
    steps = f"{len(numbers)} steps" + (f" ({numbers[0]} to {numbers[-1]})" if numbers and numbers[0] else "")
    head = f"run '{safe_text(run.name)}' {run.state}: {quantity.duration(run.seconds * 1e9)}, {steps}, "
    facts = [head + f"{quantity.count(run.events)} events"]
    if run.captured is not None:
        facts.append(run.captured.summary())
    if run.error:
        facts.append(run.error if run.error.startswith("interrupted") else f"ended by {run.error}")
    about = [f"{key} {run.meta[key]}" for key in ("backend", "manager", "device") if run.meta.get(key)]
    if about:
        facts.append(", ".join(about))
    facts += _stored(run)
    if len((oom := run.table("oom"))["t"]):
        asked, free, hole = (quantity.size(oom[key][-1]) for key in ("requested", "free", "largest_hole"))
        line = run.catalog.contexts.items[oom["context"][-1]].innermost
        at = f"; requested at {safe_text(line)}" if line else ""
        facts.append(f"out of memory: asked for {asked}, free {free}, largest hole {hole}{at}")
    if len((locked := run.table("locked"))["t"]):
        still = len(run.memory.locks(int(locked["t"][-1])))
        facts.append(f"user locks: on {len(np.unique(locked['alloc_id']))} blocks, {still} of them still locked")
    if len((released := run.table("released"))["t"]):
        given = quantity.size(int(released["nbytes"].sum()))
        facts.append(f"release_cached gave back {given}: {len(released['t'])} times, by managers too")
    if len((moves := run.table("transfer"))["t0"]):
        facts.append("saved tensors moved: " + ", ".join(_moved(moves)))
    if len((chosen := run.table("choice"))["t0"]):
        facts += _chosen(chosen, run.catalog.strings)
    for name, metric in run.metrics.items():
        first, last = (quantity.significant(metric["value"][i]) for i in (0, -1))
        facts.append(f"{name}: {first} → {last} ({len(metric['value'])} values)")
    return facts


def settings(run: Run) -> str:
    """Return as text which events a recording stores, and where; "" if that is unknown, as for files of other tools."""
    meta, size = run.meta, quantity.size
    if "limit" not in meta:
        return ""
    limits = ["no limit" if meta["limit"] is None else f"at most {size(meta['limit'])}"]
    if "buffer" in meta:
        limits.append(f"{size(meta['buffer'])} for each thread")
    if "batch_seconds" in meta and "batch_events" in meta:
        limits.append(f"written every {meta['batch_seconds']:g} s or {quantity.count(meta['batch_events'])} events")
    every = meta.get("grad_interval")
    norms = "no gradient norms" if every is None else "gradient norms of every backward pass"
    if every:
        norms = f"gradient norms of a backward pass every {quantity.duration(every * 1e9)}"
    parts = [f"{'on disk' if 'path' in meta else 'in memory'} ({', '.join(limits)})", norms]
    parts.append("whole call stacks" if meta.get("stacks") else "no call stacks")
    if meta.get("inputs_limit"):
        parts.append(f"inputs of ops up to {size(meta['inputs_limit'])}")
    return "; ".join(parts)


def _stored(run: Recording) -> Iterator[str]:
    """Yield a text about the stored events and the settings, and one about the events that were dropped, if any."""
    lost, count, about = run.dropped, quantity.count, settings(run)
    if about:
        share = f"{count(run.events)} of {count(run.events + lost)}" if lost else f"all {count(run.events)}"
        yield f"stored: {share} events {about}"
    if lost:
        reasons = []
        if len((full := run.table("dropped"))["t"]):
            times = (max(0, run.seconds_at(int(t))) for t in (full["t"].min(), full["t_last"].max()))
            first, last = (quantity.duration(1e9 * t) for t in times)
            reasons.append(f"{count(int(full['count'].sum()))} by full buffers of threads, {first} to {last}")
        if run.over_limit:
            since = run.meta.get("full_at")
            when = "" if since is None else f", from {quantity.duration(1e9 * since)} on"
            reasons.append(f"{count(run.over_limit)} by the limit{when}")
        yield (f"{count(lost)} events were dropped: counts, times and memory are lower bounds ({'; '.join(reasons)})")


def _chosen(choices: schema.Columns, strings: Table[str]) -> Iterator[str]:
    """Yield a text about each way of computing that was found quickest for an op, from the table of "choice" events."""
    counts = Counter(schema.tuples(choices, "name", "way"))
    for (op, way), count in sorted(counts.items()):
        shapes = "one shape" if count == 1 else f"{quantity.count(count)} shapes"
        of = f"{strings.items[op]}: the ways to compute it were timed at first calls"
        yield f"{of}; {strings.items[way]!r} was the quickest for {shapes}"


def _moved(moves: schema.Columns) -> Iterator[str]:
    """Yield a text about the saved tensors moved in each direction, from the table of "transfer" events."""
    for direction in np.unique(moves["direction"]):
        chosen = moves["direction"] == direction
        spent, nbytes = (moves["t1"] - moves["t0"])[chosen].sum(), moves["nbytes"][chosen].sum()
        count = quantity.count(int(chosen.sum()))
        yield f"{count} {schema.DIRECTIONS[direction]} ({quantity.size(nbytes)} in {quantity.duration(spent)})"
