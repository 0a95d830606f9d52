"""Parts of any kind: made by name, swapped for a block or the session, replaced by running their cell again."""

from __future__ import annotations

from typing import Any

import pytest

import flnb
from flnb.dispatch import parts, registry, state
from flnb.interface import Part
from flnb.interface.part import CONTRACTS


@pytest.fixture
def link() -> Any:
    """A kind of part that flnb knows nothing of."""

    class Link(Part, kind="link"):
        seconds = 0.0

    yield Link
    del CONTRACTS["link"]


def test_a_new_kind_of_part_is_a_class(link: Any) -> None:
    class Slow(link):
        seconds = 2.0

    with parts.use_part("link", Slow) as active:
        assert state.current().parts["link"] is active
        with parts.use_part("link", Slow()):
            assert state.current().parts["link"] is not active

        class Slow(link):  # type: ignore[no-redef]  # the cell runs again
            seconds = 3.0

        assert active.seconds == 3.0
    assert "link" not in state.current().parts
    with pytest.raises(ValueError, match="unknown link 'fast'; known: "):
        parts.set_part("link", "fast")
    with pytest.raises(TypeError, match=r"instance of a link \(a subclass of tests.dispatch.test_parts.Link\), got 3"):
        parts.set_part("link", 3)


def test_a_part_says_what_follows_for_a_state(link: Any) -> None:
    class Counted(link):
        attached = 0

        def attach(self, state: Any) -> None:
            self.attached += 1

    with parts.use_part("link", Counted) as counted, flnb.no_grad():
        assert counted.attached == 1  # a copy of the state has it already


@pytest.mark.parametrize("kind", ["backend", "memory manager", "memory device", "tape"])
def test_every_kind_is_swapped_in_the_same_way(kind: str) -> None:
    slot, before = CONTRACTS[kind].slot, dict(state.current().parts)
    name = before[CONTRACTS[kind].slot].name
    assert name in registry.names(kind)
    with parts.use_part(kind, name) as chosen:
        assert state.current().parts == {**before, slot: chosen}
        assert getattr(state.current(), slot) is chosen is not before[slot]
    assert state.current().parts == before
    parts.set_part(kind, chosen)
    assert state.session.parts[slot] is chosen
    parts.set_part(kind, before[slot])


def test_managers_take_segments_from_the_active_device() -> None:
    with flnb.use_memory_device("simulated:capacity=1MiB") as device:
        manager = registry.make("memory manager", "caching")
        assert manager.device.device is device
        with flnb.use_memory_device("host") as other:
            assert registry.make("memory manager", "native").device.device is other
    assert registry.make("memory manager", "native").device.device is state.session.device
