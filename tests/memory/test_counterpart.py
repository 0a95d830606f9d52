"""A recorded program under another manager: the same calls at the same times, in other places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from flnb_telemetry import load_run, schema
from flnb_telemetry.live.recording import LiveRecording

import flnb
from flnb.memory import replay, rerun, trace

if TYPE_CHECKING:
    from pathlib import Path

    from flnb_telemetry.recording import Recording

pytestmark = pytest.mark.usefixtures("nothing_held")

MANAGERS = [
    "native", "caching", "caching:split_limit=1MiB", "expandable", "best-fit", "buddy", "slab", "by-category",
    "planned",
]  # fmt: skip


@pytest.fixture(scope="module")
def run() -> Recording:
    net = flnb.nn.Sequential(flnb.nn.Linear(256, 300), flnb.nn.ReLU(), flnb.nn.Linear(300, 100))
    optimizer = flnb.optim.Adam(net.parameters())
    with flnb.record("mlp") as run:
        for i in range(4):
            with flnb.step():
                x = flnb.asarray(np.ones((64 + 16 * i, 256), np.float32))
                net(x).sum().backward()
                optimizer.step()
    return run


@pytest.mark.parametrize("manager", MANAGERS)
def test_a_recording_again_is_what_the_replay_counted(run: Recording, manager: str) -> None:
    found = rerun(run, manager)
    row = replay(run, [manager]).rows[0]
    assert (found.name, found.meta["manager"]) == (f"mlp under {row.manager}", row.manager)
    line = found.memory.timeline()
    assert line.reserved.max() == row.peak_reserved
    before, block = run.memory.block, found.memory.block
    for column in ("alloc_id", "t", "end", "requested", "category", "plan", "context", "dropped"):
        np.testing.assert_array_equal(block[column], before[column])
    np.testing.assert_array_equal(line.by_category.sum(axis=1), line.allocated)
    assert trace(found).calls.tolist() == trace(run).calls.tolist()
    for t in np.linspace(0, run.seconds, 20).tolist():
        for segment in found.memory.at(t).segments:  # blocks lie in their segments and do not overlap
            end = 0
            for placed in segment.blocks:
                assert placed.offset >= end
                end = placed.offset + placed.size
            assert end <= segment.size
    assert found.steps["index"].tolist() == run.steps["index"].tolist()
    assert [row.key for row in found.ops] == [row.key for row in run.ops]
    assert len(found.tape.nodes) == len(run.tape.nodes)


def test_where_the_device_is_full_it_ends(run: Recording, tmp_path: Path) -> None:
    capacity = replay(run, ["native"]).rows[0].peak_reserved - 4096
    found = rerun(run, "native", capacity)
    first = replay(run, ["native"], capacity).rows[0].first_oom
    assert first is not None
    assert found.state == "failed"
    assert str(found.error).startswith("OutOfMemoryError: ")
    assert found.memory.timeline().reserved.max() <= capacity
    assert len(found.memory.block["t"]) == (trace(run).calls[: first[0]] > 0).sum()
    found.save(tmp_path / "again.flnb")
    assert load_run(tmp_path / "again.flnb").memory.peak.allocated == found.memory.peak.allocated
    for path in (tmp_path / "again.flnb", str(tmp_path / "again.flnb")):
        assert trace(rerun(path, "buddy")).calls.tolist() == trace(found).calls.tolist()


def test_what_it_cannot_run_again_it_refuses(run: Recording) -> None:
    with pytest.raises(TypeError, match=r"rerun: expected a recording .*, got list"):
        rerun([])
    with pytest.raises(ValueError, match="unknown memory manager 'none'"):
        rerun(run, "none")
    with flnb.record("empty") as empty:
        pass
    with pytest.raises(ValueError, match="'empty' has no allocation"):
        rerun(empty)


@pytest.mark.parametrize("manager", ["buddy", "expandable"])
def test_it_has_the_columns_of_a_recording_and_can_be_viewed(manager: str, run: Recording) -> None:
    again = rerun(run, manager)
    for kind in schema.KINDS:
        assert again.table(kind).keys() == run.table(kind).keys()
    assert list(LiveRecording(again).frames())
