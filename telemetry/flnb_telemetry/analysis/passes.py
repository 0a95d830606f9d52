"""Backward passes whose gradients were measured: which there are, and which of them is worth showing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from flnb_telemetry import schema
    from flnb_telemetry.schema import Ints


class Measured(NamedTuple):
    """A backward pass whose gradients were measured.

    The pass ran from `t0` to `t1` (ns) in the thread with the number `lane`, beginning at the node with the id `root`.
    `rows` are its rows in the table of `grad_stat` events; `bad` is True if one of its gradients has NaN or Inf.
    """

    t0: int
    t1: int
    lane: int
    root: int
    rows: Ints
    bad: bool


def measured(stats: schema.Columns, walks: schema.Columns) -> list[Measured]:
    """Return the backward passes whose gradients were measured, in order of time.

    Each pass begins with a `walk` event, and the `grad_stat` events of its thread until the next `walk` belong to it.

    Args:
        stats: the columns of the `grad_stat` events, one for each measured gradient.
        walks: the columns of the `walk` events.
    """
    found = []
    for lane in np.unique(walks["lane"]).tolist():
        rows, own = (np.flatnonzero(table["lane"] == lane) for table in (stats, walks))
        ends = np.searchsorted(stats["t"][rows], walks["t"][own])
        for walk, part in zip(own.tolist(), np.split(rows, ends)[1:], strict=True):
            if len(part):
                t0, root = int(walks["t"][walk]), int(walks["node"][walk])
                bad = bool((stats["bad"][part] > 0).any())
                found.append(Measured(t0, int(stats["t"][part[-1]]), lane, root, part, bad))
    return sorted(found, key=lambda one: one.t0)


def origin(shown: Measured, origins: schema.Columns) -> int:
    """Return the id of the node where NaN or Inf first appeared in the backward pass ``shown``; 0 if unknown.

    ``origins`` are the events of nodes where NaN or Inf first appeared.
    """
    own = (origins["lane"] == shown.lane) & (shown.t0 <= origins["t"]) & (origins["t"] <= shown.t1)
    return int(origins["node"][own].max(initial=0))


def worth_showing(found: list[Measured]) -> Measured:
    """Return the backward pass that is most worth showing: the last one, if no gradient of any pass has NaN or Inf.

    Otherwise consecutive passes with NaN or Inf form sequences, and the result is the first pass of the last sequence.
    ``found`` are the passes in order of time.
    """
    bad = [i for i, one in enumerate(found) if one.bad]
    if not bad:
        return found[-1]
    first = bad[-1]
    while first > 0 and found[first - 1].bad:
        first -= 1
    return found[first]
