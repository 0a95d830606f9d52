"""Who was late, why, and what it cost: answers computed by hand, and planted causes in real runs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from flnb_telemetry import intern, schema
from flnb_telemetry.analysis.collectives import Collectives
from flnb_telemetry.analysis.joining import View, join
from flnb_telemetry.analysis.stuck import FAILURE, stuck

import flnb
from flnb import distributed, nn

MS = 1_000_000


class Columns:
    """Events of one rank, written by hand in ms."""

    def __init__(self, rank: int, ranks: int, group: str = "world") -> None:
        self.rank = rank
        self.group = intern.groups.id_of(intern.GroupInfo(group, rank, ranks, f"host {rank // 2}", 100 + rank))
        self.plan = intern.plans.id_of(intern.Plan("all_reduce", "communication", (250_000,), "float32", 1_000_000))
        self.rows: dict[str, list[tuple[int, ...]]] = {}

    def call(self, seq: int, begin: float, end: float, asked: float | None = None, bucket: int = -1) -> None:
        """A call that ended, and for which the program stood still from `asked` on."""
        self._row(schema.COLLECTIVE_BEGIN, self.plan, begin, seq, self.group, 0, 0, bucket, 0)
        self._row(schema.COLLECTIVE, self.plan, begin, _ns(end), seq, self.group, 0, bucket, 0)
        if asked is not None:
            self._row(schema.WAIT, self.plan, asked, _ns(end), seq, self.group, 0, 0, 0)

    def begin(self, seq: int, t: float) -> None:
        """A call that never ended."""
        self._row(schema.COLLECTIVE_BEGIN, self.plan, t, seq, self.group, 0, 0, -1, 0)

    def step(self, index: int, t0: float, t1: float) -> None:
        """A training step."""
        self._row(schema.STEP, 0, t0, _ns(t1), index, 0, 0, 0, 0)

    def scope(self, path: str, t0: float, t1: float) -> None:
        """A block with a name."""
        context = intern.contexts.id_of(intern.Context(path, 0))
        self._row(schema.SCOPE | schema.ENTER_BLOCK << schema.AUX_SHIFT, 0, t0, context, 0, 0, 0, 0, 0)
        self._row(schema.SCOPE, 0, t1, context, 0, 0, 0, 0, 0)

    def _row(self, code: int, plan: int, t: float, *words: int) -> None:
        name = next(kind.name for kind in schema.KINDS.values() if kind.number == code & 0xFF)
        self.rows.setdefault(name, []).append((code | plan << schema.PLAN_SHIFT, _ns(t), *words))

    def view(self, bound: int = 0) -> View:
        """What the analysis reads."""

        def table(kind: str) -> schema.Columns:
            rows = np.array(self.rows.get(kind, []), np.int64).reshape(-1, schema.WORDS)
            return schema.table(schema.KINDS[kind], [(self.rank, rows)])

        return View(self.rank, f"host {self.rank // 2}", 100 + self.rank, bound, table, intern.Catalog())


def _ns(ms: float) -> int:
    return round((ms + 1000) * MS)


def joined(*ranks: Columns) -> Collectives:
    return Collectives(**join([rank.view() for rank in ranks]))


def test_waiting_is_told_from_transfer() -> None:
    """Rank 1 comes 30 ms late; the data takes 2 ms."""
    ranks = [Columns(rank, 3) for rank in range(3)]
    for rank, begin in zip(ranks, (10, 40, 12), strict=True):
        rank.call(1, begin, 42, asked=begin)
        rank.step(0, 0, 50)
    calls = joined(*ranks)
    assert calls.op.tolist() == ["all_reduce"]
    assert calls.group.tolist() == ["world"]
    assert (calls.waiting / MS).ravel().tolist() == [30, 0, 28]
    assert (calls.transfer / MS).ravel().tolist() == [2, 2, 2]
    assert calls.last.tolist() == [_ns(40)]
    assert calls.late_rank.tolist() == [1]
    assert calls.late_ns.tolist() == [29 * MS]  # the median of 10 and 12 is 11
    assert calls.lost.tolist() == [29 * MS]
    assert calls.lost_ns.tolist() == [0, 29 * MS, 0]
    assert (calls.exposed_ns / MS).tolist() == [[32, 2, 30]]
    assert (calls.step_ns / MS).tolist() == [[50, 50, 50]]
    assert calls.step.tolist() == [0]
    assert calls.overlap.tolist() == [0.0]
    # a ring of three moves 2 * 2/3 of 1 MB over each link in 2 ms
    assert calls.gb_s == pytest.approx([4 / 3 * 1e6 / 2e6])


def test_a_tiny_call_measures_no_bandwidth() -> None:
    """6 bytes in 100 us say what the latency is."""
    ranks = [Columns(rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.plan = intern.plans.id_of(intern.Plan("all_reduce", "communication", (6,), "uint8", 6))
        rank.call(1, 10, 10.1, asked=10)
    calls = joined(*ranks)
    assert np.isnan(calls.gb_s).all()
    assert calls.peak_gb_s == 0.0
    assert "bandwidth" not in repr(calls)


def test_buckets_that_travel_beside_the_backward_are_overlap() -> None:
    """Two buckets in flight from 10 to 20 and 15 to 30 ms; the program stands still from 28 on: 18 of 20 hidden."""
    ranks = [Columns(rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.call(1, 10, 20, bucket=0)
        rank.call(2, 15, 30, asked=28, bucket=1)
        rank.step(7, 0, 40)
    calls = joined(*ranks)
    assert calls.bucket.tolist() == [0, 1]
    assert calls.steps.tolist() == [7]
    assert calls.overlap.tolist() == pytest.approx([0.9])
    assert (calls.exposed_ns / MS).tolist() == [[2, 2]]


def test_time_in_which_a_call_is_started_is_exposed_and_not_waiting_for_others() -> None:
    """The engine works for 4 ms before it returns; the rest of the 10 ms is hidden."""
    ranks = [Columns(rank, 2) for rank in range(2)]
    for rank in ranks:
        rank.call(1, 10, 20)
        rank._row(schema.WAIT, rank.plan, 10, _ns(14), 1, rank.group, 0, 0, 0)
        rank.step(0, 0, 40)
    calls = joined(*ranks)
    assert (calls.exposed_ns / MS).tolist() == [[4, 4]]
    assert calls.overlap.tolist() == pytest.approx([0.6])
    assert not calls.waited.any()


def test_a_late_rank_is_late_once_whatever_the_number_of_buckets() -> None:
    """Both buckets come 20 ms late, and the others stand still for 20 ms in all."""
    ranks = [Columns(rank, 2) for rank in range(2)]
    ranks[0].call(1, 10, 32, asked=14)
    ranks[0].call(2, 12, 34, asked=32)
    ranks[1].call(1, 30, 32, asked=32)
    ranks[1].call(2, 32, 34, asked=32)
    calls = joined(*ranks)
    assert (calls.late_ns / MS).tolist() == [20, 20]
    assert (calls.lost_ns / MS).tolist() == [0, 16]


def awaiting_one() -> list[Columns]:
    """Three ranks after a call, of which two wait in the next one for rank 1."""
    ranks = [Columns(rank, 3) for rank in range(3)]
    for rank in ranks:
        rank.call(1, 1, 2, asked=1)
    ranks[0].begin(2, 5)
    ranks[2].begin(2, 6)
    return ranks


def test_a_call_that_not_all_have_joined() -> None:
    ranks = awaiting_one()
    calls = joined(*ranks)
    assert calls.seq.tolist() == [1, 2]
    assert calls.last.tolist() == [_ns(1), 0]
    assert calls.late_rank.tolist()[1] == -1
    assert calls.begin[:, 1].tolist() == [_ns(5), 0, _ns(6)]
    assert not calls.end[:, 1].any()
    assert not calls.waiting[:, 1].any()


def test_groups_of_other_ranks_are_kept_apart() -> None:
    """Ranks 0 and 1 in one group, 2 and 3 in another, with the same sequence numbers."""
    ranks = [Columns(rank, 2, f"world/{rank // 2}") for rank in range(4)]
    for number, rank in enumerate(ranks):
        rank.call(1, 1 + number, 6, asked=1 + number)
    calls = joined(*ranks)
    assert calls.group.tolist() == ["world/0", "world/1"]
    assert calls.late_ns.tolist() == [MS, MS]
    assert (calls.begin > 0).tolist() == [[True, False], [True, False], [False, True], [False, True]]


def test_the_reason_is_the_scope_that_took_longer_than_for_the_median_rank() -> None:
    ranks = [Columns(rank, 4) for rank in range(4)]
    for number, rank in enumerate(ranks):
        rank.call(1, 1, 2, asked=1)
        late = 41 if number == 2 else 2
        rank.scope("data.take", 3, 3 + late)
        rank.scope("net", 3 + late, 13 + late)
        rank.call(2, 13 + late, 56, asked=13 + late)
    calls = joined(*ranks)
    (number, reason), *more = calls.reasons.items()
    assert not more
    assert (number, reason.rank, reason.scope) == (1, 2, "data.take")
    assert (reason.ns, reason.median_ns) == (41 * MS, 2 * MS)
    expected = "rank 2 was last, by 39.0 ms: 41.0 ms in data.take, the median of the others 2.00 ms"
    assert reason.text == expected
    assert calls.who()[0] | {"host": ""} == {
        "rank": 2, "host": "", "last": 1, "lost_ns": 39 * MS, "lost_ms_per_step": 39.0, "scope": "data.take",
    }  # fmt: skip
    assert expected in repr(calls)
    assert "data.take" in calls._repr_html_()


def test_lateness_below_the_clock_bound_has_no_reason() -> None:
    ranks = [Columns(rank, 2) for rank in range(2)]
    for number, rank in enumerate(ranks):
        rank.call(1, 1, 2, asked=1)
        rank.scope("take", 2, 3 + number)
        rank.call(2, 3 + number, 5, asked=3 + number)
    assert list(Collectives(**join([rank.view() for rank in ranks])).reasons) == [1]
    assert Collectives(**join([rank.view(bound=600_000) for rank in ranks])).reasons == {}


def test_time_of_a_scope_inside_another_counts_for_the_inner_one() -> None:
    ranks = [Columns(rank, 2) for rank in range(2)]
    for number, rank in enumerate(ranks):
        rank.call(1, 1, 2, asked=1)
        rank.scope("train", 2, 30 + 20 * number)
        inner = 10 + 20 * number
        rank.rows["scope"].sort(key=lambda row: row[1])
        rank.scope("train.net", 5, 5 + inner)
        rank.rows["scope"].sort(key=lambda row: row[1])
        rank.call(2, 31 + 20 * number, 60, asked=31 + 20 * number)
    (reason,) = joined(*ranks).reasons.values()
    assert (reason.scope, reason.ns, reason.median_ns) == ("train.net", 30 * MS, 10 * MS)


def test_nothing_to_join() -> None:
    with flnb.record() as run:
        flnb.ones(2)
    assert len(run.collectives) == 0
    assert "no collective calls" in repr(run.collectives)
    assert run.collectives._repr_html_()


def test_64_ranks_and_a_thousand_steps_are_quick() -> None:
    ranks = [Columns(rank, 64) for rank in range(64)]
    calls, draw = 1000, np.random.default_rng(0)
    late = draw.integers(0, 64, calls)
    for number, rank in enumerate(ranks):
        for call in range(calls):
            begin = 10.0 * call + (5 if late[call] == number else 1)
            rank.scope("take", 10.0 * call, begin)
            rank.call(call + 1, begin, 10.0 * call + 6, asked=begin)
            rank.step(call, 10.0 * call, 10.0 * call + 10)
    views = [rank.view() for rank in ranks]
    began = time.process_time()
    found = Collectives(**join(views))
    assert len(found.reasons) == 200
    assert time.process_time() - began < 10
    assert found.late_rank.tolist() == late.tolist()
    assert (found.lost == 4 * MS).all()
    assert {reason.scope for reason in found.reasons.values()} == {"take"}


class Slow(nn.Module):
    """A layer that sleeps on one rank."""

    def __init__(self) -> None:
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        time.sleep(0.08 if distributed.rank() == 0 else 0.0)
        return self.linear(x)


@pytest.mark.parametrize(("cause", "rank", "scope"), [("data", 1, "data.take"), ("module", 0, "dataparallel.module.1")])
def test_a_planted_cause_is_named(cause: str, rank: int, scope: str) -> None:
    def work() -> None:
        net = nn.Sequential(nn.Linear(8, 8), Slow() if cause == "module" else nn.Linear(8, 8))
        model = distributed.DataParallel(net)
        for _ in range(3):
            with flnb.step():
                with flnb.scope("data"), flnb.scope("take"):
                    time.sleep(0.08 if cause == "data" and distributed.rank() == 1 else 0.0)
                model(flnb.ones((4, 8))).sum().backward()
        model.close()
        time.sleep(0.2)

    with flnb.record() as run:
        distributed.run_threads(3, work)
    calls = run.collectives
    worst = calls.who()[0]
    assert (worst["rank"], worst["scope"]) == (rank, scope)
    assert 30 < worst["lost_ms_per_step"] < 400
    assert calls.ranks == (0, 1, 2)
    others = [row for row in range(3) if row != rank]
    assert calls.exposed_ns[:, others].mean() > 30 * MS


def of(*ranks: Columns, now: float, states: dict[int, str] | None = None) -> Any:
    views = [rank.view() for rank in ranks]
    return stuck(Collectives(**join(views)), views, _ns(now), states or {})


def test_a_call_is_stuck_until_a_rank_goes_on_to_others() -> None:
    ranks = awaiting_one()
    assert of(*ranks, now=1000) is None
    found = of(*ranks, now=3005)
    assert (found["seq"], found["group"], found["seconds"]) == (2, "world", 3.0)
    assert found["text"] == "call 2 of world, all_reduce float32[250000], has not ended for 3 s: rank 1 has not come"
    assert [row["state"] for row in found["rows"]] == ["waits", "has not come", "waits"]
    absent = found["rows"][1]
    assert (absent["call"], absent["last"], absent["seconds"]) == ("", "1, all_reduce", 3.003)
    assert of(*ranks, now=3005, states={1: "rank 1 has died"})["rows"][1]["state"] == "rank 1 has died"
    others = [Columns(rank, 3, "world #2") for rank in range(3)]  # after an interrupt the ranks have a new group
    for rank, other in zip(ranks, others, strict=True):
        other.call(1, 50, 51, asked=50)
        for name, rows in other.rows.items():
            rank.rows.setdefault(name, []).extend(rows)
    assert of(*ranks, now=3005) is None


def test_a_call_that_was_given_up_is_reported_at_once_with_the_rank_that_differs() -> None:
    ranks = [Columns(rank, 3) for rank in range(3)]
    ranks[1].plan = intern.plans.id_of(intern.Plan("all_reduce", "communication", (3,), "int32", 12))
    for rank in ranks:
        rank.begin(1, 5)
    found = of(*ranks, now=5.1, states={FAILURE: "rank 0 ran all_reduce float32[250000] ..."})
    assert found["text"].startswith("rank 0 ran")
    assert [row["state"] for row in found["rows"]] == ["waits", "differs", "waits"]
    assert found["rows"][1]["call"] == "all_reduce int32[3]"


def test_a_mismatch_of_real_ranks_is_shown() -> None:
    live = flnb.telemetry.Live("mismatch")
    live.begin()

    def work() -> None:
        distributed.barrier()
        distributed.all_reduce(flnb.ones(3, dtype=flnb.int32 if distributed.rank() == 1 else flnb.float32))

    with pytest.raises(distributed.CollectiveError) as raised:
        distributed.run_threads(3, work)
    live.refresh()
    content, _ = live.frame(keyframe=True)
    live.finish()
    found = content["collectives"]["stuck"]
    assert found["seq"] == 2
    assert "differs" in {row["state"] for row in found["rows"]}
    assert "int32[3]" in found["text"]
    assert raised


def test_time_in_which_a_rank_waited_for_a_message_is_not_that_of_the_scope_around_it() -> None:
    ranks = [Columns(rank, 2) for rank in range(2)]
    plan = intern.plans.id_of(intern.Plan("recv", "communication", (3,), "float32", 12))
    for number, rank in enumerate(ranks):
        rank.call(1, 1, 2, asked=1)
        rank.scope("stage", 3, 10 + 40 * number)
        if number:
            context = intern.contexts.id_of(intern.Context("stage", 0))
            rank._row(schema.WAIT, plan, 5, _ns(43), 1, rank.group, 0, 0, context)
        rank.call(2, 11 + 40 * number, 60, asked=11 + 40 * number)
    (reason,) = joined(*ranks).reasons.values()
    assert (reason.rank, reason.scope, reason.ns) == (1, "recv", 38 * MS)


def test_plans_of_other_programs_are_not_looked_at() -> None:
    """A dry run of this process may have had a tensor of more bytes than 64 bits count."""
    intern.plans.id_of(intern.Plan("add", "elementwise", (1 << 70,), "float32", 1 << 72))
    with flnb.record() as run:
        distributed.run_threads(2, lambda: distributed.all_reduce(flnb.ones(3)))
    assert run.collectives.nbytes.tolist() == [12]
