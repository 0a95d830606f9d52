"""A Ctrl-C in the middle of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def interrupt_writes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once called, every file that is written breaks off after fifty bytes, by a Ctrl-C."""

    def write(self: Path, content: bytes) -> None:
        with self.open("wb") as file:
            file.write(content[:50])
        raise KeyboardInterrupt

    return lambda: monkeypatch.setattr(Path, "write_bytes", write)
