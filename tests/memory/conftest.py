"""Recordings begin with what the active manager holds; tests that count events begin with one that holds nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from flnb_telemetry import bus, schema
from flnb_telemetry.lane import Lane, Lanes

import flnb
from flnb.dispatch.memory import drain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flnb.memory import MemoryManager


@pytest.fixture(scope="module")
def nothing_held() -> Iterator[None]:
    """A manager of this module's own is active."""
    with flnb.use_memory_manager(flnb.memory.Caching()):
        yield


@pytest.fixture
def manager() -> Iterator[MemoryManager]:
    """A manager of its own, whose live bytes are those of the test."""
    with flnb.use_memory_manager(flnb.memory.Caching(flnb.memory.HostDevice("256MiB"))) as active:
        yield active


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[tuple[str, dict[str, int]]]]:
    """Records as (kind name, columns): read after the calls under test."""
    drain()
    lane = Lane(0)
    monkeypatch.setattr(bus, "lanes", Lanes(lambda: lane))

    def rows() -> list[Any]:
        found = []
        for row in lane.drain():
            (kind,) = (kind for kind in schema.KINDS.values() if kind.number == int(row[0]) & 0xFF)
            found.append((kind.name, {k: int(v[0]) for k, v in schema.columns(kind, row[None]).items()}))
        return found

    return rows
