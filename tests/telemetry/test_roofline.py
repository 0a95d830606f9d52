"""A roofline's points against numbers worked out by hand, and its peaks against what cannot be exceeded."""

from __future__ import annotations

import time
from typing import Any

import pytest
from flnb_telemetry import bus, intern, record, schema
from flnb_telemetry.analysis import roofline
from flnb_telemetry.analysis.roofline import Peaks, measured, points, traffic

MATMUL = intern.Plan("matmul", "matmul", (8, 4), "float32", 128, 1024, ((8, 16), (16, 4)))
EXP = intern.Plan("exp", "elementwise", (8, 4), "float64", 256, 32, ((8, 4),))
FLIP = intern.Plan("flip", "movement", (8, 4), "float32", 128, 0, ((8, 4),))
LESS = intern.Plan("less", "elementwise", (8, 4), "bool", 32, 32, ((8, 4), ()))
EMPTY = intern.Plan("exp", "elementwise", (0, 4), "float32", 0, 0, ((0, 4),))


def ran(plan: intern.Plan, *spent: int) -> None:
    assert bus.lanes is not None
    lane, begin = bus.lanes.lane, time.perf_counter_ns()
    for ns in spent:
        code = schema.OP | intern.plans.id_of(plan) << schema.PLAN_SHIFT
        lane.emit(code, begin, begin + ns, 0, 0, lane.context, 0, 0)


def found(*calls: tuple[intern.Plan, tuple[int, ...]]) -> Any:
    with record() as run:
        for plan, spent in calls:
            ran(plan, *spent)
    return points(run.table("op"), run.catalog)


@pytest.mark.parametrize(
    ("plan", "moved"),
    [(MATMUL, 4 * (8 * 16 + 16 * 4 + 8 * 4)), (EXP, 8 * 2 * 32), (EMPTY, 0)],
    ids=lambda value: value.op if isinstance(value, intern.Plan) else "",
)
def test_the_least_bytes_that_an_op_moves(plan: intern.Plan, moved: int) -> None:
    assert traffic(plan) == moved


def test_a_point_is_all_calls_of_a_plan() -> None:
    slow, quick = found((EXP, (10,)), (MATMUL, (300, 100, 200)), (EXP, (30,)))
    assert (slow.plan, slow.calls, slow.median, slow.total) == (MATMUL, 3, 200, 600)
    assert slow.share == pytest.approx(600 / 640)
    assert slow.intensity == 1024 / 896
    assert slow.rate == pytest.approx(1024 / 200e-9)
    assert (quick.plan, quick.calls, quick.median, quick.total) == (EXP, 2, 20, 40)
    assert quick.intensity == 32 / 512


def test_what_computes_nothing_in_floating_point_has_no_point_but_its_time_counts() -> None:
    (only,) = found((FLIP, (500,)), (LESS, (100,)), (EMPTY, (100,)), (EXP, (300,)), (MATMUL, (0,)))
    assert only.plan == EXP
    assert only.share == pytest.approx(0.3)
    assert found() == []


def test_peaks_are_work_over_the_time_of_the_best_round(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, quiet = (4.0, 9.0, 1.0), (0.5, 2.0, 0.25)
    seconds = iter([*busy, *busy, *quiet, *busy, *busy, *quiet])

    def timed(work: Any, calls: int) -> float:
        work()
        return next(seconds)

    monkeypatch.setattr(roofline, "_best", timed)
    assert measured() == Peaks(2 * roofline.SIDE**3 / 0.5, roofline.LARGE, 2 * roofline.SMALL / 0.25)
    assert list(seconds) == list(quiet), "after two runs that were no faster, no more follow"


def test_the_best_round_counts_but_not_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([0, 1, 10, 14, 20, 28, 30, 36])  # rounds of 1, 4, 8 and 6 seconds
    monkeypatch.setattr(roofline.time, "perf_counter", lambda: next(readings))
    calls: list[None] = []
    assert roofline._best(lambda: calls.append(None), calls=2, rounds=3) == 2.0
    assert len(calls) == 8


def test_measured_peaks_are_positive() -> None:
    assert min(measured()) > 0


def test_the_product_that_is_measured_may_be_another_library_s(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(roofline, "_best", lambda work, calls: [work(), 1.0][1])
    assert measured(lambda a, b, out: seen.extend((a.shape, b.shape, out.shape))).flops == 2 * roofline.SIDE**3
    assert set(seen) == {(roofline.SIDE, roofline.SIDE)}
