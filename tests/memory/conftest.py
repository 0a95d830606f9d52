"""Recordings begin with what the active manager holds; tests that count events begin with one that holds nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import flnb

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def nothing_held() -> Iterator[None]:
    """A manager of this module's own is active."""
    with flnb.use_memory_manager(flnb.memory.Caching()):
        yield
