"""What a replay shows: the same numbers as its rows, the bounds, and the best of each column."""

from __future__ import annotations

import re
from typing import Any

import pytest

import flnb
from flnb.memory import Replay, Trace
from flnb.memory_lab.replaying import SLICE

MIB = 1 << 20
TRACE = Trace.of_calls([1, 2, -1, 3, -2, -3], [3 * MIB, 2 * MIB, 4 * MIB], name="by hand")


@pytest.fixture(scope="module")
def found() -> Replay:
    return flnb.memory.replay(TRACE, ["native", "caching", "buddy"])


def test_the_bounds_are_what_is_live_and_what_a_packing_needs(found: Replay) -> None:
    assert found.bounds == {"live": 6 * MIB, "packed offline, optimal": 6 * MIB}
    assert found.packing.optimal


def test_the_table_has_a_row_for_each_bound_and_each_manager_and_marks_the_best(found: Replay) -> None:
    head, live, packed, native, caching, _ = found.cells()
    assert head[:4] == ["manager", "peak reserved", "at the peak", "on average"]
    assert live[:4] == ["live", "6.00 MiB", "1.000×", "–"]
    assert packed[:3] == ["packed offline, optimal", "6.00 MiB", "1.000×"]
    assert native[:3] == ["native", "6.00 MiB*", "1.000×*"]
    assert native[7] == "6"
    assert caching[:3] == ["caching", "20.0 MiB", "3.333×"]
    assert caching[7] == "1*"
    assert caching[-1] == "–"
    text = repr(found)
    assert text.startswith("by hand: 6 calls, 3 allocations, at most 6.00 MiB live\nmanager ")
    assert "reserved / live (requested) bytes when most are live" in text
    assert "unusable(r) = sum(free blocks < r) / sum(free)" in text.replace("\n", " ")
    wide = repr(flnb.memory.replay(TRACE, ["caching", "caching:recycling_limit=20MiB"], capacity="48MiB"))
    assert max(map(len, f"{text}\n{wide}".splitlines())) <= 100


def test_in_a_notebook_the_best_is_bold_and_names_are_escaped(found: Replay) -> None:
    html = found._repr_html_()
    assert re.findall(r"<b>([^<]*)</b>", html)[:2] == ["6.00 MiB", "1.000×"]
    assert html.count("<tr>") == 1 + 2 + 3
    assert "at the peak: reserved / live (requested) bytes" in html

    class Odd(flnb.memory.Native):
        name = "<odd>"

    assert "&lt;odd&gt;" in flnb.memory.replay(TRACE, [Odd])._repr_html_()


def test_a_manager_that_ran_out_of_memory_is_best_in_nothing() -> None:
    found = flnb.memory.replay(TRACE, ["native", "caching", "slab"], capacity="8MiB")
    *_, native, caching, _ = found.cells()
    assert caching[1:] == ["–"] * 8 + ["at once, for 3.00 MiB"], "nothing is said of what never was"
    assert "first OOM: caching, at once, for 3.00 MiB" in repr(found)
    assert not any(cell.endswith("*") for cell in caching)
    assert native[-1] == "–"


def test_alone_nobody_is_the_best() -> None:
    assert not any(cell.endswith("*") for row in flnb.memory.replay(TRACE).cells() for cell in row)


def test_as_a_data_frame(found: Replay) -> None:
    pytest.importorskip("pandas")
    frame = found.to_pandas()
    assert frame["manager"].tolist() == ["native", "caching", "buddy"]
    assert frame["peak_reserved"].tolist() == [row.peak_reserved for row in found.rows]
    assert frame["peak_live"].tolist() == frame["packed"].tolist() == [6 * MIB] * 3
    assert not {"live", "reserved"} & set(frame)


def test_progress_counts_every_call_of_every_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class Bar:
        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def update(self, n: int) -> None:
            told.append(n)

    monkeypatch.setattr("flnb.memory_lab.replaying._bar", lambda total: told.append(total) or Bar())
    count = SLICE + 5
    trace = Trace.of_calls([sign * k for k in range(1, count) for sign in (1, -1)], [MIB] * (count - 1))
    flnb.memory.replay(trace, ["native", "caching"], progress=True, capacity="2MiB", seconds=0)
    total, *steps = told
    assert total == 2 * len(trace)
    assert sum(steps) == total  # also of the one that runs out of memory
    assert len(steps) > 3


def test_the_bar_is_tqdms(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    flnb.memory.replay(TRACE, ["native"], progress=True)
    assert "6.00/6.00" in capsys.readouterr().err


def test_planned_by_name_plans_what_it_is_asked() -> None:
    found = flnb.memory.replay(TRACE, ["planned"])
    (row,) = found.rows
    assert row.manager == "planned"
    assert row.peak_reserved == found.packing.height
    assert row.native_calls == 1
