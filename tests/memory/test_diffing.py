"""What is allocated in one state and not in another."""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
from flnb.dispatch.memory import array_in
from tests.memory.pretended_torch import PretendedTorch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("nothing_held")

KIB = 1 << 10


def steps() -> tuple[Any, Any, Any]:
    """A recording in whose second half one scope keeps more and another less, and its states."""
    with flnb.record("steps") as run:
        kept, gone = flnb.ones((256, 256)), flnb.zeros((128, 256))
        halfway = run.memory.at(run.seconds)
        del gone
        with flnb.scope("leak"):
            more = [kept + 1.0 for _ in range(3)]
        end = run.memory.at(run.seconds)
    del more
    return run, halfway, end


def test_rows_are_what_changed_by_op_and_scope() -> None:
    _, halfway, end = steps()
    found = flnb.memory.diff(halfway, end)
    rows = [(row.op, row.scope, row.nbytes, row.blocks) for row in found.rows]
    assert rows == [("add", "leak", 768 * KIB, 3), ("full", "", -128 * KIB, -1)]
    assert found.bytes_after - found.bytes_before == 640 * KIB
    assert repr(found).splitlines()[-2:] == ["+768 KiB      +3  add   leak", "-128 KiB      -1  full"]
    assert "+768 KiB|+3|add|leak" in re.sub("(<[^>]*>)+", "|", found._repr_html_())


def test_the_other_way_round_is_the_opposite() -> None:
    _, halfway, end = steps()
    there, back = flnb.memory.diff(halfway, end), flnb.memory.diff(end, halfway)
    assert [(row.op, row.nbytes, row.blocks) for row in back.rows] == [
        (row.op, -row.nbytes, -row.blocks) for row in there.rows
    ]


def test_addresses_do_not_matter() -> None:
    one, two = steps()[2], steps()[2]
    assert flnb.memory.diff(one, two).rows == ()
    assert repr(flnb.memory.diff(one, two)).endswith("no difference")


def test_snapshots_are_compared_by_stack(tmp_path: Path) -> None:
    torch = PretendedTorch(1)
    paths = []
    live = []
    for calls in (40, 60):
        for _ in range(calls):
            torch.step()
        paths.append(tmp_path / f"{calls}.pickle")
        paths[-1].write_bytes(pickle.dumps(torch.snapshot(), 4))
        held: dict[tuple[str, ...], list[int]] = {}
        for _, requested, frames, _ in torch.blocks.values():
            held.setdefault(tuple(f["name"] for f in frames), []).append(requested)
        live.append(held)
    found = flnb.memory.diff(*paths)
    names = {tuple(frame.name for frame in row.stack): (row.nbytes, row.blocks) for row in found.rows}
    expected = {
        key: (sum(after) - sum(before), len(after) - len(before))
        for key in {**live[0], **live[1]}
        for before, after in [(live[0].get(key, []), live[1].get(key, []))]
        if before != after
    }
    assert names == expected
    assert found.bytes_before == sum(sum(sizes) for sizes in live[0].values())


def test_memory_that_no_op_asked_for_is_named_by_its_category() -> None:
    manager = flnb.memory.Caching()
    with flnb.use_memory_manager(manager), flnb.record("bare") as run:
        array = array_in(manager, (1 << 20,), np.dtype("uint8"), 1 << 20)
        found = flnb.memory.diff(run.memory.at(0.0), run.memory.at(run.seconds))
    del array
    assert [(row.op, row.nbytes) for row in found.rows] == [("(unknown)", 1 << 20)]


def test_a_frame_of_all_rows() -> None:
    pytest.importorskip("pandas")
    _, halfway, end = steps()
    frame = flnb.memory.diff(halfway, end).to_pandas()
    assert frame["bytes"].tolist() == [768 * KIB, -128 * KIB]
    assert frame["blocks"].tolist() == [3, -1]
    assert list(frame.columns)[:2] == ["op", "scope"]


def test_long_differences_are_cut_in_displays_only() -> None:
    with flnb.record() as run:
        kept = []
        for i in range(30):
            with flnb.scope(f"part{i}"):
                kept.append(flnb.ones((64 + i, 64)))
        start, end = run.memory.at(0.0), run.memory.at(run.seconds)
    found = flnb.memory.diff(start, end)
    assert len(found.rows) == 30
    assert "the 20 largest of 30" in repr(found)
    assert len(repr(found).splitlines()) == 22


def test_what_has_no_state_is_told() -> None:
    with pytest.raises(TypeError, match=r"expected a state .* got int"):
        flnb.memory.diff(1, 2)
