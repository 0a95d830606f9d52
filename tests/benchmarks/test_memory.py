"""The arithmetic of the fragmentation study."""

from __future__ import annotations

import json

import numpy as np
import pytest

import flnb
from benchmarks import memory
from benchmarks.memory import findings, pages, traces
from benchmarks.memory.findings import Result, best, best_over_all, less_than_default, moved
from benchmarks.memory.sweep import (
    LIMITS,
    MANAGERS,
    WITHIN,
    Measures,
    Setting,
    caching,
    effective,
    grid,
    measured,
    needed,
)
from flnb.memory import SimulatedDevice, Trace
from flnb.memory_lab.replaying import play

MIB = 1 << 20


def drawn(calls: int = 400, seed: int = 0) -> Trace:
    """Random calls, of few bytes and of many."""
    draw = np.random.default_rng(seed)
    live, order, sizes = [], [], []
    for _ in range(calls):
        if live and draw.random() < 0.45:
            order.append(-live.pop(draw.integers(len(live))))
        else:
            sizes.append(int(draw.choice([700, 300_000, 3 * MIB, 30 * MIB]) * draw.uniform(0.5, 1.5)))
            order.append(len(sizes))
            live.append(len(sizes))
    return Trace.of_calls(order, sizes)


def made(**values: float) -> Measures:
    """Measures of which only some matter."""
    return Measures(**(dict.fromkeys(Measures.__dataclass_fields__, 1) | values))


def result(sweep: dict, others: dict | None = None, **about) -> Result:
    about = {"kind": "paper", "model": "toy", "calls": 10, "peak_live": 100, "largest": 100 * MIB} | about
    return Result(**about, packed=about.pop("packed", 100), optimal=True, sweep=sweep, others=others or {})


@pytest.mark.parametrize("setting", [caching(None, None), caching(4, None), caching(8, 20), *MANAGERS], ids=str)
def test_what_is_reserved_is_live_or_in_one_of_the_three_parts(setting: Setting) -> None:
    of = measured(drawn(), setting)
    assert 1 + of.waste + of.stranded + of.idle == pytest.approx(of.average)
    assert 1 + of.waste_at_peak + of.stranded_at_peak + of.idle_at_peak == pytest.approx(of.at_peak)
    assert min(of.waste, of.stranded, of.idle, of.waste_at_peak, of.stranded_at_peak, of.idle_at_peak) >= 0
    assert of.internal == pytest.approx(of.waste_at_peak / (1 + of.waste_at_peak))


def test_the_parts_of_a_trace_that_can_be_worked_out_by_hand() -> None:
    # A segment of 30 MiB is cut for 24, then, at the peak, 26 MiB need another: of the first, 6 were stranded.
    calls = Trace.of_calls([1, -1, 2, 3, -2, -3], [30 * MIB, 24 * MIB, 26 * MIB])
    of = measured(calls, caching(None, None))
    assert (of.peak_reserved, of.native_calls, of.largest_hole) == (56 * MIB, 2, 6 * MIB)
    assert (of.waste_at_peak, of.stranded_at_peak, of.idle_at_peak) == (0, pytest.approx(6 / 50), 0)
    live, idle = 30 + 0 + 24 + 50 + 26 + 0, 0 + 30 + 0 + 0 + 30 + 56
    assert of.idle == pytest.approx(idle / live)
    assert of.stranded == pytest.approx((6 + 6) / live)
    whole = measured(calls, caching(20, None))  # the same piece is given out whole: what was stranded is waste now
    assert (whole.waste_at_peak, whole.stranded_at_peak) == (pytest.approx(6 / 50), 0)


def test_the_smallest_device_is_one_on_which_the_run_ends() -> None:
    calls = Trace.of_calls([1, -1, 2], [30 * MIB, 40 * MIB])
    assert measured(calls, caching(None, None)).peak_reserved == 70 * MIB
    assert needed(calls, caching(None, None), 70 * MIB) == pytest.approx(40 * MIB, rel=WITHIN)  # 30 go back
    for setting in (caching(4, None), *MANAGERS):
        found = measured(drawn(), setting).needed
        assert drawn().peak_live <= found
        assert play(drawn(), setting.spec, found).first_oom is None


@pytest.mark.parametrize(
    ("limits", "largest", "same"),
    [
        ((512, 128), 100 * MIB, (None, None)),
        ((64, 128), 100 * MIB, (64, None)),
        ((102, 100), 101 * MIB, (102, 100)),  # its segment has 102 MiB
        ((20, 32), 1 * MIB, (20, None)),  # of the shared segments
        ((None, None), 1, (None, None)),
    ],
)
def test_limits_that_no_block_reaches_are_none(limits: tuple, largest: int, same: tuple) -> None:
    assert effective(limits, largest) == same


def test_pairs_of_limits_that_are_left_out_of_the_grid_would_have_given_the_same() -> None:
    calls = drawn(150)
    largest = int(calls.nbytes.max())
    pairs = grid(largest)
    assert pairs[0] == (None, None)
    assert len(pairs) == len(set(pairs)) < len(LIMITS) ** 2
    for pair in [(512, None), (64, 512), (None, 256), (512, 512)]:
        told, kept = (play(calls, caching(*one).spec) for one in (pair, effective(pair, largest)))
        np.testing.assert_array_equal(told.reserved, kept.reserved)


def test_a_setting_is_replayed_with_what_it_was_told() -> None:
    manager = caching(0.25, 64).make(flnb.interface.memory.Lease(SimulatedDevice()))
    assert (manager.split_limit, manager.recycling_limit) == (MIB // 4, 64 * MIB)
    assert caching(0.25, None).spec == "caching:split_limit=256KiB"


def test_best_limits_of_a_model_and_of_all() -> None:
    first = result(
        {(None, None): made(peak_reserved=200), (64, None): made(peak_reserved=100), (8, 8): made(peak_reserved=100)}
    )
    second = result(
        {(None, None): made(peak_reserved=100), (64, None): made(peak_reserved=150), (8, 8): made(peak_reserved=50)}
    )
    assert best(first) == (64, None)  # of equals, with fewer limits
    assert best(second) == (8, 8)
    assert best_over_all([first, second]) == ((8, 8), pytest.approx(-0.5))
    small = result({(None, None): made(peak_reserved=100), (8, 8): made(peak_reserved=400)}, largest=1)
    assert small.at((64, None)) is small.default  # none of its blocks reaches 64 MiB
    assert best_over_all([first, small]) == ((64, None), pytest.approx(0.5**0.5 - 1))


def test_what_moves_is_told_for_the_mildest_limit_that_helps_most_models() -> None:
    def one(*stranded: float) -> Result:
        return result(
            dict(zip([(None, None), (64, None), (8, None), (8, 8)], (made(stranded=s) for s in stranded), strict=True))
        )

    results = [one(1.0, 0.7, 0.1, 0.0), one(2.0, 1.0, 0.1, 0.0), one(1.0, 0.85, 0.1, 0.0)]
    found = moved(results, "free in segments in use, on average", findings.splits(results))
    assert (found.limits, found.falls, found.models) == ((64, None), 2, 3)
    assert (found.before, found.after) == (1.0, 0.85)
    assert (found.least, found.most, found.reserved) == (-0.5, pytest.approx(-0.15), 0.0)
    hopeless = moved([one(1.0, 0.9, 0.95, 0.0)], "free in segments in use, on average", [(64, None), (8, None)])
    assert (hopeless.holds, hopeless.limits) == (False, (64, None))


def test_a_measure_that_was_zero_cannot_fall() -> None:
    rose = result({(None, None): made(idle=0.0), (8, None): made(idle=0.5)})
    found = moved([rose], "in idle segments, on average", [(8, None)])
    assert (found.falls, found.most) == (0, float("inf"))


def test_how_much_less_than_the_default() -> None:
    one = result(
        {(None, None): made(peak_reserved=200), (8, None): made(peak_reserved=150)},
        {"best-fit": made(peak_reserved=120)},
    )
    expected = {"best-fit": 0.4, "best setting": 0.25, "offline packing": 0.5}
    assert less_than_default(one) == pytest.approx(expected)


def test_batches_of_a_varying_run_are_at_most_the_recipe_s() -> None:
    assert traces.sizes("paper", 32) == [32, 32]
    assert max(traces.sizes("varying", 32)) == 32
    assert len(set(traces.sizes("varying", 10))) == 4
    assert min(traces.sizes("varying", 1)) == 1


def test_the_study_in_its_smoke_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert memory.main(["--quick"]) == 0
    told = capsys.readouterr().out
    for expected in ("alexnet", "lenet", "Restricted splitting lowers", "Offline packing would save"):
        assert expected in told


def test_a_result_is_kept_in_json_and_shown_in_markdown_and_as_a_figure() -> None:
    pytest.importorskip("plotly")
    one = memory.study("lenet", "cpu", quick=True)
    kept = json.loads(json.dumps(one.to_json()))
    assert kept["model"] == "lenet"
    assert [row[:2] for row in kept["sweep"]] == [list(limits) for limits in one.sweep]
    assert kept["sweep"][0][2] == one.default.peak_reserved
    text = pages.section([one])
    assert "**cpu**" in text.lower()
    assert f"{one.default.peak_reserved / one.peak_live:.3f} (" in text
    (heatmap,) = pages.drawn([one]).data
    assert heatmap.z[0][0] == one.default.peak_reserved / one.peak_live
