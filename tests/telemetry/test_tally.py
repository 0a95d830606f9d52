"""Statistics of ops that are updated with each batch."""

from __future__ import annotations

import numpy as np
import pytest
from flnb_telemetry.tally import WORST, Tally, buckets


def test_p99_is_within_half_a_bucket_over_the_whole_range() -> None:
    rng = np.random.default_rng(0)
    for scale in (50, 1_000, 80_000, 5_000_000, 3_000_000_000):
        spent = np.maximum(1, (scale * rng.lognormal(0, 1, 5000)).astype(np.int64))
        tally = Tally()
        names = np.full(5000, 70)
        for part in np.split(np.arange(5000), 10):
            tally.add(names[part], spent[part], buckets(spent[part]), spent[part])
        exact = np.sort(spent)[4949]
        assert tally.p99()[0] == pytest.approx(exact, rel=WORST * 1.05)
        assert tally.max[0] == spent.max()
        assert tally.total[0] == spent.sum()
        assert tally.name.tolist() == [70]


def test_p99_of_a_whole_run_and_of_few_events_is_exact() -> None:
    rng = np.random.default_rng(1)
    for count in (1, 2, 99, 100, 101, 1234):
        tally, names = Tally(), rng.integers(3, 6, count)
        spent = np.maximum(1, (2000 * rng.lognormal(0, 1, count)).astype(np.int64))
        tally.add(names, spent, buckets(spent), spent)
        exact = [np.sort(spent[names == name])[-(-99 * (names == name).sum() // 100) - 1] for name in tally.name]
        few = tally.count < 100
        assert tally.p99()[few].tolist() == np.array(exact)[few].tolist()
        tally.settle(names, spent)
        assert tally.p99().tolist() == exact


def test_of_many_names_those_with_the_longest_times_stay() -> None:
    rng, tally = np.random.default_rng(2), Tally(most=64, others=7)
    names = rng.permutation(np.repeat(np.arange(100, 400), 20))
    spent = names.astype(np.int64) * 10
    for part in np.split(np.arange(len(names)), 100):
        tally.add(names[part], spent[part], buckets(spent[part]), spent[part])
        assert len(tally.name) <= 64
    large = np.full(50, 1000)
    tally.add(large, 10**9 * large, buckets(10**9 * large), large)
    more = np.arange(2000, 2064)
    tally.add(more, more, buckets(more), more)
    assert len(tally.name) == 33
    of = dict(zip(tally.name.tolist(), np.array([tally.count, tally.total, tally.max]).T.tolist(), strict=True))
    assert of[1000] == [50, 50 * 10**12, 10**12]
    assert of[7][0] > 2000
    assert tally.count.sum() == len(names) + 50 + 64
    assert tally.total.sum() == spent.sum() + 50 * 10**12 + more.sum()
    assert tally.max.max() == 10**12
    assert tally.p99()[tally.name == 1000] == pytest.approx(10**12, rel=WORST * 1.05)
