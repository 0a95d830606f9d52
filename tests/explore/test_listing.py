"""`flnb.runs`: the columns of the table of recordings."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from flnb_telemetry.formats.listing import RunEntry

import flnb

pytest.importorskip("pyarrow")

if TYPE_CHECKING:
    from pathlib import Path


def test_steps_backend_and_the_last_loss_are_listed(tmp_path: Path) -> None:
    x = flnb.ones(3)
    with flnb.use_backend("numpy"), flnb.record(path=tmp_path / "mine.v2.flnb"):
        for i in range(3):
            with flnb.step():
                flnb.exp(x)
                flnb.log(train_loss=1.0 / (i + 1))
    with flnb.record("named", path=tmp_path / "other.flnb"):
        pass
    rows = {run.name: run for run in flnb.runs(tmp_path)}
    assert set(rows) == {"mine.v2", "named"}  # the file's name is the name of a recording without one
    mine, named = rows["mine.v2"], rows["named"]
    assert (mine.steps, mine.backend, mine.rank) == (3, "numpy", "")
    assert mine.loss == pytest.approx(1 / 3)
    assert (named.steps, named.loss) == (0, None)
    titles = flnb.runs(tmp_path).cells()[0]
    assert titles == ["name", "began", "duration", "steps", "loss", "events", "backend", "state", "file"]
    assert "0.333" in repr(flnb.runs(tmp_path))
    assert "0.333" in flnb.runs(tmp_path)._repr_html_()


def test_files_of_ranks_and_their_merged_file_are_told_apart(tmp_path: Path) -> None:
    for rank in range(2):
        with flnb.record("two") as run:
            flnb.ones(3)
        run.meta |= {"rank": rank, "ranks": 2}
        run.save(tmp_path / f"run-{rank}.flnb")
    flnb.telemetry.Ranks([tmp_path / "run-0.flnb", tmp_path / "run-1.flnb"]).save(tmp_path / "two.flnb")
    found = {os.path.basename(run.path): run.rank for run in flnb.runs(tmp_path)}
    assert found == {"run-0.flnb": "0 of 2", "run-1.flnb": "1 of 2", "two.flnb": "2 merged"}
    assert flnb.runs(tmp_path).cells()[0][:2] == ["name", "rank"]


def test_times_are_readable_and_of_this_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    def when(began: str) -> str:
        return RunEntry("a", began, 0.0, 0, "complete", None, "a.flnb").when

    monkeypatch.setenv("TZ", "UTC-2")  # two hours east of UTC
    time.tzset()
    try:
        assert when("2026-11-28T23:30:00+0000") == "2026-11-29 01:30:00"
        assert when("") == ""
    finally:
        monkeypatch.undo()
        time.tzset()
