"""Detection of a collective call that does not end: which ranks have started it, and the state of the other ranks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from flnb_telemetry.analysis.collectives import Collectives
    from flnb_telemetry.analysis.joining import View
    from flnb_telemetry.schema import Ints

AFTER = 2.0
"""Seconds after which a call that has not ended is reported; immediately if a rank has abandoned it."""
LAST = (("op", "t1"), ("scope", "t"), ("collective", "t1"), ("collective_begin", "t"))
"""The kinds of events, and the field with their time, that show when a rank was last active."""
FAILURE = -1
"""The key, in the dict of ranks' states, of the error by which a call was abandoned."""


def stuck(calls: Collectives, ranks: list[View], now: int, states: dict[int, str]) -> dict[str, Any] | None:
    """Return the collective call that does not end, and each rank's state in it; None if there is no such call.

    Args:
        calls: the joined calls of the ranks.
        ranks: the events of each rank.
        now: the current time, ns.
        states: a dict from rank to a text about the rank that the caller knows from elsewhere, such as "has died".

    Returns:
        A dict with the call's "seq" and "group", a "text" that describes it, the "seconds" since it began, and "rows":
        for each rank its "rank", "state", "call" ("" if the rank has not called), "last" (its last call that ended),
        and "seconds" since it called or was last active.
    """
    since = np.where(_open(calls), calls.begin, now).min(axis=0, initial=now)
    error = states.get(FAILURE, "")
    if not len(calls) or now - since.min() < (0 if error else AFTER * 1e9) or since.min() == now:
        return None
    call, place = int(since.argmin()), {rank: row for row, rank in enumerate(calls.ranks)}
    group = calls.group[call]
    size = next(info.size for info in ranks[0].catalog.groups.items if info.name == group and info.size > 1)
    came = {rank: bool(calls.begin[row, call]) for rank, row in place.items()}
    words = {rank: _words(ranks[place[rank]], calls, call) for rank in place if came[rank]}
    usual = Counter(words.values()).most_common(1)[0][0]
    rows = []
    for rank in range(size) if "/" not in group else sorted(words):
        row, at, last, state = place.get(rank, -1), now, "none", "has not come"
        if row >= 0:
            ended = np.flatnonzero(calls.end[row] > 0)
            last = f"{calls.seq[ended[-1]]}, {calls.op[ended[-1]]}" if len(ended) else "none"
            at = int(calls.begin[row, call] or latest(ranks[row]))
        if rank in words:
            state = "differs" if words[rank] != usual else "has finished it" if calls.end[row, call] else "waits"
        rows.append(
            {"rank": rank, "state": states.get(rank, state), "call": words.get(rank, ""), "last": last}
            | {"seconds": max(0.0, (now - at) / 1e9)}
        )
    seconds = float(now - since[call]) / 1e9
    missing = [str(row["rank"]) for row in rows if not row["call"]]
    text = f"call {calls.seq[call]} of {group}, {usual}, has not ended for {seconds:.0f} s"
    text += f": rank {', '.join(missing)} has not come" if missing else ""
    return {"seq": int(calls.seq[call]), "group": group, "text": error or text, "seconds": seconds, "rows": rows}


def _open(calls: Collectives) -> Any:
    """Return a mask (ranks, calls) of the calls that each rank has begun and not ended.

    A call is not counted if the rank has since ended a later call of the same group.
    """
    found = (calls.begin > 0) & (calls.end == 0)
    for group in dict.fromkeys(calls.group.tolist()):
        own = calls.group == group
        gone_on = np.where((calls.end > 0) | ~own, calls.begin, 0).max(axis=1, initial=0)
        found[:, own] &= calls.begin[:, own] > gone_on[:, None]
    return found


def _words(view: View, calls: Collectives, call: int) -> str:
    """Return a text about a rank's call: operation, dtype and shape; `call` is its column in `calls`."""
    begun, infos = view.table("collective_begin"), view.catalog.groups.items
    for plan, seq, group in zip(*(begun[name][::-1].tolist() for name in ("plan", "seq", "group")), strict=True):
        if seq == calls.seq[call] and infos[group].name == calls.group[call]:
            known = view.catalog.plans.items[plan]
            return f"{known.op} {known.dtype}{list(known.shape)}" if known.nbytes else known.op
    return str(calls.op[call])


def latest(view: View) -> int:
    """Return the time (ns) of a rank's last op, scope event or collective call."""
    times: list[Ints] = [view.table(kind)[name] for kind, name in LAST]
    return max(int(t.max(initial=0)) for t in times)
