"""The arithmetic of comparisons, on numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from flnb.explore.turns import Spread, in_turn, ratios, table


def test_each_takes_its_turn_and_another_is_first_in_every_round() -> None:
    order: list[str] = []

    def work(name: str) -> int:
        order.append(name)
        return len(order)

    found = in_turn(["a", "b", "c"], work, rounds=4)
    assert "".join(order) == "abcbcacababc"
    assert found == [[1, 6, 8, 10], [2, 4, 9, 11], [3, 5, 7, 12]]
    assert in_turn(["a"], work, rounds=0) == [[]]


def test_a_ratio_is_taken_within_a_round() -> None:
    """A round in which everything took ten times as long changes nothing."""
    assert ratios([2.0, 30.0, 5.0], [1.0, 10.0, 2.0]) == Spread(2.5, 2.0, 3.0)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("values", "spread"),
    [([4.0], (4.0, 4.0, 4.0)), ([3.0, 1.0], (2.0, 1.0, 3.0)), ([9.0, 1.0, 2.0], (2.0, 1.0, 9.0))],
)
def test_spread(values: list[float], spread: tuple[float, float, float]) -> None:
    assert Spread.of(values) == spread


def test_the_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="one number or more, got none"):
        Spread.of([])


def test_a_table_is_aligned_and_has_no_spaces_at_its_ends() -> None:
    assert table([{"a": 1, "long name": ""}, {"a": 222, "long name": "x"}]) == "a    long name\n1\n222  x"
    assert table([]) == "(no rows)"
