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
