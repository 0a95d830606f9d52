"""What traces on the backend `deferred` are repeated and left is counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from flnb_backends.tensor import replay
from flnb_backends.tensor.trace_log import upcoming

from flnb.graph import repetition, values


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a trace was repeated and left, and how many values were recorded; programs are made at once."""
    count: Counter[str] = Counter()
    finish, leave, make = replay.Replay.finish, replay.Replay.leave, values.Value.__init__

    def finished(self: Any, asked: Any) -> Any:
        done = finish(self, asked)
        count["repeated"] += done is not None
        return done

    def left(self: Any, *out: Any) -> None:
        count["left"] += self.known is not None
        leave(self, *out)

    def made(self: Any, op: Any, *arguments: Any) -> None:
        count["values"] += op is not None and type(self) is values.Value
        make(self, op, *arguments)

    upcoming.set(None)  # of the test before
    monkeypatch.setattr(replay.Replay, "finish", finished)
    monkeypatch.setattr(replay.Replay, "leave", left)
    monkeypatch.setattr(values.Value, "__init__", made)
    monkeypatch.setattr(repetition, "WORTH", 1)
    return count
