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
