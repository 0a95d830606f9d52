"""Recordings: complete however they end, bounded, shown, saved and loaded, and refused when the file is bad."""

from __future__ import annotations

import csv
import gc
import io
import os
import pickle
import re
import sys
import weakref
import zipfile
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest
from flnb_telemetry import bus, load_run, log, record, schema, step
from flnb_telemetry.formats.svg import memory_timeline
from flnb_telemetry.summary import settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("error", [RuntimeError("diverged"), KeyboardInterrupt()])
def test_a_body_that_raises_leaves_a_complete_recording(program: Any, error: BaseException) -> None:
    def body() -> None:
        for _ in range(100):
            program.op("add", 10)
        raise error

    with pytest.raises(type(error)), record("broken") as run:
        body()
    assert run.ops["add"].count == 100
    assert run.state == "failed"
    assert run.error == ("RuntimeError: diverged" if isinstance(error, RuntimeError) else "KeyboardInterrupt")
    assert f"ended by {run.error}" in repr(run)
    assert bus.lanes is None


def test_analyses_while_recording_answer_from_what_is_there(program: Any) -> None:
    with record() as run:
        program.op("add", 10)
        assert run.ops["add"].count == 1
        assert run.state == "recording"
        program.op("add", 10)
        program.op("a new op", 10)
        assert run.ops["add"].count == 2
        assert run.ops["a new op"].count == 1
    assert len(run.table("op")["t0"]) == 3


def test_an_analysis_that_other_threads_overtake_is_not_kept_for_the_newer_events(program: Any) -> None:
    with record() as run:
        program.op("add")

        def overtaken(table: Any) -> int:
            count = len(table("op")["t0"])
            program.op("add")
            run.table("op")  # a newer table, as another thread may ask for it meanwhile
            return count

        assert run._cached("count", overtaken) == 1
    assert run._cached("count", lambda table: len(table("op")["t0"])) == 2


def test_one_recording_inside_another_sees_its_own_part(program: Any) -> None:
    with record("outer") as outer:
        program.op("add")
        with record("inner") as inner:
            program.op("exp")
        program.op("log")
    assert {row.key[0] for row in outer.ops} == {"add", "exp", "log"}
    assert {row.key[0] for row in inner.ops} == {"exp"}


def test_beyond_the_limit_events_are_counted(program: Any) -> None:
    with record(limit=64 * 100) as run:
        for _ in range(250):
            program.op()
    assert run.events == len(run.table("op")["t0"]) == 100
    assert run.dropped == 150
    assert 0 < run.meta["full_at"] <= run.seconds
    assert "150 events were dropped: counts, times and memory are lower bounds (150 by the limit, from " in repr(run)
    assert "stored: 100 of 250 events in memory (at most 6.25 KiB, 16.0 MiB for each thread)" in repr(run)


def test_a_full_buffer_loses_exactly_what_is_counted(program: Any) -> None:
    with record(buffer="4KiB") as run:
        for _ in range(50_000):
            program.op()
    assert len(run.table("op")["t0"]) + run.dropped == 50_000
    assert run.dropped > 0
    (said,) = [line for line in repr(run).splitlines() if "were dropped" in line]
    assert re.search(r"lower bounds \(\S+( k)? by full buffers of threads, [\d.]+ .?s to [\d.]+ .?s\)$", said), said


def test_a_recording_says_what_it_stores_and_where(program: Any, tmp_path: Path) -> None:
    with record(grad_interval=None, limit="1MiB", buffer="64KiB") as run:
        program.op()
    stored = "all 1 events in memory (at most 1.00 MiB, 64.0 KiB for each thread); no gradient norms; no call stacks"
    assert f"stored: {stored}" in run.summary()
    run.save(tmp_path / "run.flnb")
    assert repr(load_run(tmp_path / "run.flnb")) == repr(run)
    with record(grad_interval=0, path=tmp_path / "disk.flnb") as run:
        program.op()
    where = "on disk (no limit, 16.0 MiB for each thread, written every 2 s or 262 k events)"
    for each in (run, load_run(tmp_path / "disk.flnb")):
        assert f"stored: all 1 events {where}; gradient norms of every backward pass; no call stacks" in each.summary()
    run.meta |= {"stacks": True, "inputs_limit": 1 << 20, "grad_interval": 0.1}
    norms = "gradient norms of a backward pass every 100 ms"
    assert settings(run) == f"{where}; {norms}; whole call stacks; inputs of ops up to 1.00 MiB"
    run.meta = {}
    assert settings(run) == "", "of a file of another program"


@pytest.mark.parametrize("bad", ["16 apples", 0, -5, True, "", 1.5])
def test_sizes_that_are_none_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"record\(buffer=...\) is .*; expected bytes, as a positive int or text"):
        record(buffer=bad).__enter__()


def test_tables_are_typed_and_in_order(run: Any) -> None:
    table = run.table("op")
    assert {name: str(column.dtype) for name, column in table.items()} == {
        "plan": "uint32", "t0": "int64", "t1": "int64", "alloc_id": "int64", "node": "int64", "context": "int64",
        "parent0": "int64", "parent1": "int64", "lane": "int32", "estimated": "uint16",
    }  # fmt: skip
    assert (np.diff(table["t0"]) >= 0).all()
    with pytest.raises(KeyError, match="no event kind 'opps'"):
        run.table("opps")
    steps = run.steps
    assert steps["index"].tolist() == list(range(12))
    assert (steps["seconds"] > 0).all()
    assert steps["total"].tolist() == [12] * 12
    assert run.metrics["loss"]["value"].tolist() == [1 / (1 + i) for i in range(12)]
    assert run.metrics["accuracy"]["step"].tolist() == list(range(12))
    assert run.dropped == 0


def test_frames_and_arrow_tables(run: Any) -> None:
    frame = run.to_pandas()
    assert set(frame["op"]) == {"matmul", "multiply"}
    assert set(frame["scope"]) == {"net"}
    assert set(frame.loc[frame["op"] == "matmul", "phase"]) == {"forward"}
    assert set(frame.loc[frame["op"] == "multiply", "phase"]) == {"backward"}
    assert frame["shape"].iloc[0] == (8, 8)
    assert frame["t1"].iloc[0] - frame["t0"].iloc[0] == pytest.approx(1e-6)
    assert run.to_pandas("alloc")["category"].tolist() == ["parameter"] * 3 + ["activation"] * 9
    assert run.to_pandas("metric")["name"].tolist()[:2] == ["loss", "accuracy"]
    assert run.to_arrow("alloc").column("size").to_pylist() == [4096] * 12
    line = run.memory.timeline()
    assert line.by_category[:, schema.CATEGORIES.index("parameter")].max() == 3 * 4096
    assert run.memory.fragmentation().reserved.max() == 1 << 20


def test_a_recording_shows_itself(run: Any) -> None:
    text, html = repr(run), run._repr_html_()
    assert text.startswith("run 'digits' finished:")
    assert "12 steps" in text
    assert "stored: all " in text
    assert "loss: 1.00 → 0.0833 (12 values)" in text
    assert "op time: multiply 50.0 %, matmul 50.0 %" in text or "op time: matmul 50.0 %, multiply 50.0 %" in text
    assert html.count("<svg") == 4  # two curves, memory, ops
    assert "<script" not in html
    assert 'fill="#5d61c9"' in html  # the parameters' colour
    assert "peak: memory at" in repr(run.memory)
    blocks = run.memory.peak._repr_html_()
    assert blocks.count("<title>") == 7


def test_its_memory_is_drawn_to_the_scale_of_what_is_live_until_the_runs_end() -> None:
    with record() as run:
        bus.emit(schema.SEGMENT_ALLOC, run.start + 1, 1, 0, 20 << 20)
        bus.emit(schema.ALLOC, run.start + 1, 1, 0, 4 << 20, 4 << 20, 1)
    assert "live 4.00 MiB, flat, reserved ≤ 20.0 MiB, above" in run._repr_html_()
    picture = memory_timeline(run.memory, 0.25)
    assert "250 ms" in picture
    (area,) = re.findall(r'<polygon points="([^"]*)"', picture)
    corners = [tuple(map(float, point.split(","))) for point in area.split()]
    assert max(x for x, _ in corners) == 638.0
    assert min(y for _, y in corners) < 30, "as high as the picture has room for"


def test_running_out_of_memory_is_told() -> None:
    with record() as run:
        bus.emit(schema.OOM, run.start + 5, 9 << 20, 4 << 20, 2 << 20, 16 << 20, 12 << 20)
    assert "out of memory: asked for 9.00 MiB, free 4.00 MiB, largest hole 2.00 MiB" in repr(run)


def test_names_are_escaped(program: Any) -> None:
    with record("<b>run</b>") as run:
        program.op("<script>alert(1)</script>")
        log(**{"<i>": 1.0})
        log(**{"<i>": 2.0})
    assert "<script" not in run._repr_html_()
    assert "<i>" not in run._repr_html_()
    assert "<script" not in run.ops._repr_html_()


def test_an_empty_run_can_be_saved_and_shown(tmp_path: Path) -> None:
    with record() as run:
        pass
    run.save(tmp_path / "a.flnb")
    back = load_run(tmp_path / "a.flnb")
    assert repr(back).startswith("run 'run' finished")
    assert back.memory.timeline().t.tolist() == []
    assert repr(back.memory) == "no memory events"
    assert back.memory.at(0).allocated == 0
    assert math_is_nan(back.memory.fragmentation().average)
    assert back._repr_html_()


def math_is_nan(value: float) -> bool:
    return value != value


def test_a_missing_extra_is_named(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"saving a run needs pyarrow; install it with: pip install 'flnb\[lab\]'"):
        run.save(tmp_path / "a.flnb")
    assert not os.listdir(tmp_path)


def test_parquet_members_are_plain_tables(run: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    run.save(tmp_path / "a.flnb")
    with zipfile.ZipFile(tmp_path / "a.flnb") as archive:
        table = pq.read_table(io.BytesIO(archive.read("metric.parquet")))
    assert table.column("value").to_pylist()[0] == 1.0


def test_a_recording_cannot_be_pickled_and_says_what_to_do(run: Any) -> None:
    with pytest.raises(TypeError, match=r"save it with run\.save\(path\)"):
        pickle.dumps(run)


def test_reference_counting_frees_a_recording_whatever_was_asked_of_it(program: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        with record() as run, step():
            node = program.forward("matmul", -1, -2)
            with bus.phase("backward"):
                program.op("multiply", node=node)
        tape, gone = run.tape, weakref.ref(run)
        for asked in (run.ops, run.memory.peak, tape.levels, tape.step(0), tape.why(-1), run._repr_html_()):
            assert asked is not None
        before = tape.summary()
        del run
        assert gone() is None
        assert tape.summary() == before
        assert len(tape.table("op")["t0"]) == 2  # what was taken from it still answers
    finally:
        gc.enable()


def test_a_picture_and_a_table_are_files(run: Any, tmp_path: Path) -> None:
    run.save_svg(tmp_path / "run.svg")
    root = ElementTree.fromstring((tmp_path / "run.svg").read_text(encoding="utf-8"))
    inner = [each for each in root if each.tag.endswith("svg")]
    tops = [float(each.get("y", "nan")) for each in inner]
    heights = [float(each.get("viewBox", "").split()[3]) for each in inner]
    assert len(inner) >= 2  # memory, ops
    assert all(low + height <= high for low, height, high in zip(tops, heights, tops[1:], strict=False))
    assert tops[-1] + heights[-1] <= float(root.get("height", 0))
    run.ops.by("op", "shape").to_csv(tmp_path / "ops.csv")
    with open(tmp_path / "ops.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["count"]) for row in rows) == len(run.table("op")["t0"])
    assert sum(int(row["total"]) for row in rows) == sum(row.total for row in run.ops)
    assert sorted(os.listdir(tmp_path)) == ["ops.csv", "run.svg"]
