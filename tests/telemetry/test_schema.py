"""Records become columns: every word in its place, and unknown kinds are named."""

from __future__ import annotations

import numpy as np
import pytest
from flnb_telemetry import schema


@pytest.mark.parametrize("kind", schema.KINDS.values(), ids=lambda kind: kind.name)
def test_every_word_becomes_its_column(kind: schema.Kind) -> None:
    rng = np.random.default_rng(kind.number)
    rows = np.zeros((50, 8), np.int64)
    rows[:, 0] = kind.number
    rows[:, 1 : 1 + len(kind.words)] = rng.integers(-(1 << 62), 1 << 62, (50, len(kind.words)))
    if kind.aux:
        rows[:, 0] |= rng.integers(0, 1 << 16, 50) << 8
    if kind.plan:
        rows[:, 0] |= rng.integers(0, 1 << 31, 50) << 24
    table = schema.columns(kind, rows)
    assert list(table) == [name for name in (kind.plan, kind.aux, *kind.words) if name]
    for word, name in enumerate(kind.words, start=1):
        if name:
            np.testing.assert_array_equal(table[name].view(np.int64), rows[:, word])
            assert table[name].dtype == (np.float64 if name in kind.floats else np.int64)
    if kind.aux:
        np.testing.assert_array_equal(table[kind.aux], rows[:, 0] >> 8 & 0xFFFF)
    if kind.plan:
        np.testing.assert_array_equal(table[kind.plan], rows[:, 0] >> 24)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(KeyError, match="no event kind 'allocs'; the kinds are op, alloc, free_requested"):
        schema.kind_of("allocs")
