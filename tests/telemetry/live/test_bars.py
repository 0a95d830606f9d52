"""A row of the timeline: its bars at every level of detail against the events themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from flnb_telemetry.live.bars import COUNT, FINEST, LONGEST, NUMBER, PAIR, RESOLUTIONS, T0, T1, Row
from flnb_telemetry.live.timeline import MOST

if TYPE_CHECKING:
    from flnb_telemetry.live.bars import Bars


def events(count: int, seed: int = 0, gap: int = 4000, longest: int = 3000) -> Bars:
    """Events that do not overlap, some of them long; their pairs are their numbers."""
    rng = np.random.default_rng(seed)
    spent = rng.integers(1, longest, count)
    spent[rng.random(count) < 0.01] *= 400
    t0 = 1_000_000 + np.cumsum(rng.integers(0, gap, count) + np.r_[0, spent[:-1]])
    found = np.zeros((5, count), np.int64)
    found[T0], found[T1], found[PAIR] = t0, t0 + spent, np.arange(count)
    return found


def expected(all_: Bars, t0: int, t1: int) -> tuple[int, int]:
    """The numbers of the first event that ends after t0 and of the first that begins at t1 or later."""
    return int(np.searchsorted(all_[T1], t0, "right")), int(np.searchsorted(all_[T0], t1))


@pytest.mark.parametrize("size", [50_000, 700])
def test_a_window_has_every_event_once_at_any_resolution(size: int) -> None:
    """Also where the events came in batches, and the last of them are merged nowhere yet."""
    all_, row = events(50_000), Row()
    for at in range(0, 50_000, size):
        row.append(all_[:, at : at + size])
    begin, end = int(all_[T0, 0]), int(all_[T1, -1])
    rng = np.random.default_rng(1)
    assert len(row.levels) > 4
    for resolution in (1, 500, 5_000, FINEST, 70_000, 1_000_000, 50_000_000):
        t0, t1 = np.sort(rng.integers(begin, end, 2)).tolist()
        bars = row.window(t0, t1, resolution)
        first, last = expected(all_, t0, t1)
        if resolution == 1:
            np.testing.assert_array_equal(bars[: PAIR + 1], all_[: PAIR + 1, first:last])
        # at the edges merged bars may hold events outside of the window, and no more than those within one resolution
        assert last - first <= bars[COUNT].sum()
        inside = slice(1, -1)
        middle = bars[:, inside]
        assert (bars[T0, 1:] >= bars[T1, :-1]).all()
        for bar in middle[:, :: max(1, middle.shape[1] // 50)].T:
            own = np.flatnonzero((all_[T0] >= bar[T0]) & (all_[T1] <= bar[T1]))
            assert bar[COUNT] == len(own)
            spent = all_[T1, own] - all_[T0, own]
            assert bar[LONGEST] == spent.max()
            assert spent[own == bar[NUMBER]] == spent.max()
            assert bar[PAIR] == bar[NUMBER]
            assert len(own) == 1 or bar[T1] - bar[T0] <= 2 * resolution
    whole = row.window(begin, end, (end - begin) // 1000)
    assert whole[COUNT].sum() == 50_000
    assert whole.shape[1] < 2500


@pytest.mark.parametrize("size", [1000, 40_000])
def test_of_old_events_the_coarse_levels_remain(size: int) -> None:
    all_, row = events(40_000), Row(most=4096)
    for at in range(0, 40_000, size):
        row.append(all_[:, at : at + size])
    assert row.events.used <= 4096
    assert row.events.first == 40_000 - row.events.used
    assert max(level._data.shape[1] for level in row.levels[1:]) <= 2048
    assert row.events._data.shape[1] <= 4096  # nor is there room for more
    begin, end = int(all_[T0, 0]), int(all_[T1, -1]) + 1
    bars = row.window(begin, end, 1)
    assert bars[COUNT].sum() >= 40_000  # where two levels meet, a bar may count events of both
    assert bars[COUNT].sum() < 40_000 * 1.01
    assert (bars[T0, 1:] >= bars[T1, :-1]).all()
    assert bars[T0, 0] == begin
    assert (bars[COUNT, -2000:] == 1).all()


def test_a_window_is_read_from_a_finer_level_that_goes_back_further() -> None:
    all_, row = events(40_000, gap=100_000), Row(most=32_768)  # few events are close enough to be merged at level 1
    row.append(all_)
    first, second = row.levels[:2]
    since, resolution = int(first.bars[T0, 0]), FINEST
    assert since < second.bars[T0, 0]
    bars = row.window(since, int(all_[T1, -1]), resolution)
    alone = bars[COUNT] == 1
    assert alone.mean() > 0.7
    np.testing.assert_array_equal(bars[T0, alone], all_[T0, bars[NUMBER, alone]])
    early = (bars[T0] >= since) & (bars[T0] < second.bars[T0, 0])
    assert early.sum() > 1000
    assert (bars[T1] - bars[T0])[early & ~alone].max() < 2 * resolution


def test_ten_minutes_of_ops_take_little_more_memory_than_three() -> None:
    row, sizes = Row(MOST), []
    second = np.zeros((5, 10_000), np.int64)
    second[T0] = np.arange(10_000) * 100_000
    second[T1] = second[T0] + 60_000
    for _ in range(600):
        row.append(second)
        second[:2] += 1_000_000_000
        sizes.append(sum(level._data.nbytes for level in row.levels))
    assert sizes[-1] - sizes[179] < 2 << 20, [size >> 10 for size in sizes[::60]]
    assert sizes[-1] < 3 * row.events._data.nbytes


def test_an_event_that_begins_before_the_last_has_ended_is_cut() -> None:
    row = Row()
    row.append(np.array([[0, 10], [10, 20], [1, 2], [0, 0], [0, 0]], np.int64))
    row.append(np.array([[5, 15], [12, 30], [3, 4], [0, 0], [0, 0]], np.int64))
    assert row.events.bars[: PAIR + 1].T.tolist() == [[0, 10, 1], [10, 20, 2], [20, 30, 4]]


def test_resolutions_grow() -> None:
    assert RESOLUTIONS[0] == FINEST
    assert list(RESOLUTIONS) == sorted(set(RESOLUTIONS))
