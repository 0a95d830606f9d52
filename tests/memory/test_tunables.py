"""The settings that `flnb.memory.tune` finds in a memory manager's constructor, and the values it tries."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import pytest

import flnb
from flnb.dispatch import registry
from flnb.interface import MemoryManager
from flnb.memory_lab.tunables import Tunable, as_text, tunables


class Order(Enum):
    LOW = 1
    HIGH = 2


class Typed(MemoryManager):
    """Settings of every kind."""

    def __init__(
        self, device: Any = None, slab: int = 4 << 20, merge: bool = True, order: Literal["low", "high"] = "low",
        keep: float = 0.25, count: int = 6, which: Order = Order.LOW, note: Any = None, unit: str = "3MiB",
    ) -> None:  # fmt: skip
        super().__init__(device)


class Passing(flnb.memory.Caching):
    """Passes keywords on to its base."""

    def __init__(self, device: Any = None, reuse: bool = False, **options: Any) -> None:
        super().__init__(device, **options)


def by_name(kind: type, **choices: Any) -> dict[str, Tunable]:
    return {one.name: one for one in tunables(kind, 16 << 20, choices)}


def test_each_kind_of_setting_has_values_of_its_kind() -> None:
    found = by_name(Typed)
    assert list(found) == ["slab", "merge", "order", "keep", "count", "which", "note", "unit"]
    assert found["slab"].values == tuple(1 << power for power in range(9, 25))  # an int stays one
    assert found["unit"].values[12:15] == ("2MiB", "3MiB", "4MiB")  # a text stays one, in its place
    assert found["merge"].values == (False, True)
    assert found["order"].values == ("low", "high")
    assert found["keep"].values == (0.1, 0.2, 0.25, *(round(n / 10, 1) for n in range(3, 11)))
    assert found["count"].values == (1, 2, 3, 6, 12, 24, 48, 96)
    assert found["which"].values == (Order.LOW, Order.HIGH)
    assert found["note"].values == ()
    assert [one.name for one in found.values() if one.ordered] == ["slab", "keep", "count", "unit"]
    assert all(one.default in one.values for one in found.values() if one.values)
    assert [as_text(value) for value in (None, 4 << 20, 6, Order.LOW, "64MiB")] == [
        "default",
        "4MiB",
        "6",
        "LOW",
        "64MiB",
    ]


def test_settings_of_a_base_count_where_keywords_are_passed_on() -> None:
    assert list(by_name(Passing)) == ["reuse", "split_limit", "recycling_limit"]
    assert by_name(Passing)["split_limit"].values[0] is None


@pytest.mark.parametrize("name", registry.SHIPPED["memory manager"])
def test_shipped_managers_have_the_settings_of_their_constructor(name: str) -> None:
    kind = registry.find("memory manager", name)
    found = by_name(kind)
    for one in found.values():
        if one.values and one.name != "plan":
            text = f"{name}:{one.name}={one.values[-1]}"
            assert registry.parsed("memory manager", text) == (kind, {one.name: str(one.values[-1])})


def test_given_values_replace_the_suggested_ones() -> None:
    assert by_name(Typed, slab=[1 << 20, 2 << 20])["slab"].values == (4 << 20, 1 << 20, 2 << 20)
    with pytest.raises(TypeError, match=r"Typed has no setting 'slob' to tune; its settings: slab, merge"):
        by_name(Typed, slob=[1])


def test_a_setting_without_default_needs_values() -> None:
    class Needy(MemoryManager):
        def __init__(self, device: Any, arena: int) -> None:
            super().__init__(device)

    with pytest.raises(TypeError, match=r"Needy: the setting 'arena' has no default.*arena=\[...\]"):
        by_name(Needy)
    assert by_name(Needy, arena=[64, 128])["arena"] == Tunable("arena", 64, (64, 128), True, required=True)
    with pytest.raises(ValueError, match="Needy: got no values to try for arena; expected one or more"):
        by_name(Needy, arena=[])
    for wrong in (3, "3MiB"):
        with pytest.raises(
            TypeError, match=rf"Needy: got arena={wrong!r}, expected the values to try, as in .*\[{wrong!r}\]"
        ):
            by_name(Needy, arena=wrong)
