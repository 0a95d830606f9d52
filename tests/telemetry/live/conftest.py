"""A live view of what is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from flnb_telemetry import pump
from flnb_telemetry.live.view import Live

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def live() -> Iterator[Live]:
    found = Live("test")
    yield found
    pump.detach(found)
