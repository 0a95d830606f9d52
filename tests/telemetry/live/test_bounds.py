"""A live view of a long run: the bytes that it holds are those of the third minute, and few events are all stored."""

from __future__ import annotations

import gc
import sys
import threading
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import pump, schema
from flnb_telemetry.intern import Catalog
from flnb_telemetry.live import ring
from flnb_telemetry.live.bars import COUNT
from flnb_telemetry.live.ring import Ring
from flnb_telemetry.live.tallies import GROUPS
from flnb_telemetry.live.threads import KINDS, Key
from flnb_telemetry.live.timeline import THREADS, LiveTimeline
from flnb_telemetry.live.view import Live

import flnb
from tests.telemetry.live.test_threads import trained

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flnb_telemetry.schema import Batches, Records

NUMBERS = ("alloc_id", "node", "parent0", "parent1", "parent2", "parent3", "parent4", "parent5", "parent6")
"""The fields with the numbers of blocks and of tape nodes, which are larger in each step."""


def repeated(batches: Batches, steps: int, seconds: float) -> Iterator[tuple[int, Records]]:
    """Yield the records of a step again and again, `steps` times, each so many seconds later and with new numbers."""
    lane, own = max(batches, key=lambda batch: len(batch[1]))
    own = own[np.argsort(own[:, 1], kind="stable")]
    at, later = np.zeros_like(own), np.zeros_like(own)
    most = 1 + max(int(own[own[:, 0] & 0xFF == schema.OP, word].max()) for word in (3, 4))
    for kind in schema.KINDS.values():
        rows = own[:, 0] & 0xFF == kind.number
        for word, name in enumerate(kind.words, start=1):
            if name in NUMBERS:
                at[:, word] = np.where(rows & (own[:, word] > 0), most, at[:, word])
            elif name in ("t", "t0", "t1"):
                later[rows, word] = round(seconds * 1e9)
            elif (kind.name, name) == ("step", "index"):
                at[rows, word] = 1
    size = 64
    for first in range(0, steps, size):
        number = np.arange(first, min(first + size, steps))[:, None, None]
        yield lane, (own + number * (at + later)).reshape(-1, schema.WORDS)


def held(live: Live) -> int:
    """Return the bytes of all that a view refers to, except the names behind ids, which all views share."""
    seen: dict[int, int] = {}
    waiting: list[Any] = [vars(live)]
    while waiting:
        one = waiting.pop()
        while isinstance(one, np.ndarray) and one.base is not None:
            one = one.base
        if id(one) in seen or isinstance(one, (Catalog, ModuleType, type, FunctionType, MethodType)):
            continue
        seen[id(one)] = one.nbytes if isinstance(one, np.ndarray) else sys.getsizeof(one)
        waiting += gc.get_referents(one)
    return sum(seen.values())


def test_after_three_minutes_a_live_view_holds_no_more() -> None:
    """Ten minutes of steps, whose events are 34 MiB; rows have few bars, so that a slow program fills them.

    Scopes of nodes, steps and the coarsest bars are few, and reach their bounds later: they are the 2 MiB.
    """
    run, live = trained(1), Live("long")
    live.start, live.timeline = run.start, LiveTimeline(live, most=4096)
    sizes = []
    for number, (lane, rows) in enumerate(repeated(run._batches, 12_000, 0.05)):
        live.feed(lane, rows)
        if number % 4 == 0:
            live.frame(keyframe=number == 0)
            sizes.append(held(live))
    minute = len(sizes) // 10
    third, last = max(sizes[2 * minute : 3 * minute]), max(sizes[-minute:])
    assert live.events > 500_000
    assert last < third + (2 << 20), [size >> 10 for size in sizes[::minute]]
    assert last < 10 << 20
    assert live._backwards._recent.nbytes == 64 * ring.SMALLEST  # records of two seconds, not the million allowed
    live.frame(keyframe=False)
    tape = live._tape
    assert tape is not None
    assert not tape.tape.truncated
    assert tape.tape.index == 11_999


def test_of_one_step_a_second_every_event_of_forty_minutes_is_stored() -> None:
    run, live = trained(1), Live("slow")
    live.start = run.start
    for lane, rows in repeated(run._batches, 2400, 1.0):
        live.feed(lane, rows)
    live.frame(keyframe=True)
    row = live.timeline.rows.rows[Key(1, KINDS.index("op"))]
    assert row.events.first == 0
    ops = len(run.table("op")["t0"])
    assert row.events.used == 2400 * ops
    bars = row.window(run.start + 600_000_000_000, run.start + 660_000_000_000, 1)
    assert bars.shape[1] == 60 * ops
    assert (bars[COUNT] == 1).all()


@pytest.mark.parametrize("seed", range(20))
def test_a_ring_has_the_newest_records(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(ring, "SMALLEST", int(rng.integers(1, 200)))
    most, expected, t = int(rng.integers(1, 3000)), [], 0
    stored = Ring(most)
    for _ in range(40):
        lane, rows = int(rng.integers(1, 3)), np.zeros((int(rng.integers(1, 400)), schema.WORDS), np.int64)
        rows[:, 1] = t + np.arange(len(rows))
        t += len(rows)
        if rng.random() < 0.3:
            since = int(rng.integers(max(0, t - 2000), t))
            stored.drop(since)
            left = sum(len(part) for _, part in stored.batches())
            assert all(number < since for _, number in expected[: len(expected) - left])
            expected = expected[len(expected) - left :]
        stored.append(lane, rows)
        expected = [*expected, *((lane, number) for number in rows[:, 1].tolist())][-most:]
        assert [(lane, number) for lane, part in stored.batches() for number in part[:, 1].tolist()] == expected
        assert stored.nbytes <= 64 * most


def test_a_ring_is_as_large_as_the_records_that_are_not_old() -> None:
    stored, rows = Ring(1 << 20), np.zeros((1000, schema.WORDS), np.int64)
    for t in range(1000):
        rows[:, 1] = t
        stored.drop(t - 20)
        stored.append(1, rows)
    assert stored.nbytes == 64 * ring.SMALLEST
    for _ in range(100):
        stored.append(1, rows)
    assert stored.nbytes == 64 * (1 << 17)
    assert sum(len(part) for _, part in stored.batches()) > 100_000


def test_threads_that_have_ended_are_left_out_when_there_are_many(live: Live) -> None:
    """Such as those that prepare the data of each epoch: a frame of the live view does not grow with them."""

    def work() -> None:
        flnb.exp(flnb.ones(4))

    live.begin()
    work()
    for _ in range(THREADS + 16):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        live.refresh()
    content, _ = live.frame(keyframe=True)
    shown = {row["thread"] for row in content["timeline"]["rows"]}
    first, *_, last = sorted(live.threads(), key=int)
    assert len(shown) == THREADS
    assert {int(first), int(last)} <= shown  # the main thread's events are the oldest, but it has not ended
    assert content["timeline"]["rows"][0]["name"] == "main"
    pump.detach(live)


def test_of_many_scopes_the_short_ones_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flnb_telemetry.live.view.ROWS", 16)
    found = Live("scopes")
    found.begin()
    with flnb.record() as run:
        for i in range(40):
            with flnb.scope(f"number{i}"):
                flnb.exp(flnb.ones(4))
            found.refresh()
            found.frame(keyframe=False)
    found.finish()
    content, buffer = found.frame(keyframe=True)
    code, first, count = content["arrays"]["scope.name"]
    assert code == "u32"
    names = np.frombuffer(buffer, np.uint32, count, first).tolist()
    assert len(names) <= 16
    assert GROUPS["scope"] in [content["strings"]["items"][name] for name in names]
    code, first, count = content["arrays"]["scope.count"]
    assert np.frombuffer(buffer, np.float64, count, first).sum() == len(run.table("op")["t0"])
