"""Queries of recordings, data frames of them, and the list of the recordings in a folder."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from flnb_telemetry import bus, load_run, pump, record, runs
from flnb_telemetry.formats import writing

duckdb = pytest.importorskip("duckdb")

if TYPE_CHECKING:
    from pathlib import Path


def test_queries_agree_with_the_analyses(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.save(tmp_path / "a.flnb")
    monkeypatch.setattr(writing, "GROUP", 5)  # names and forward scopes hold across pieces
    run.save(tmp_path / "b.flnb")
    for one in (run, load_run(tmp_path / "a.flnb"), load_run(tmp_path / "b.flnb")):
        found = one.sql("select op, phase, scope, count(*) n, sum(seconds) s from ops group by all order by op")
        rows = sorted(one.ops.by("op", "phase", "scope"), key=lambda row: row.key)
        assert found[["op", "phase", "scope"]].values.tolist() == [list(row.key) for row in rows]
        assert found["n"].tolist() == [row.count for row in rows]
        assert found["s"].tolist() == pytest.approx([row.total / 1e9 for row in rows])
        assert one.sql("select sum(size) from memory where freed is null").iloc[0, 0] == 6 * 4096
        assert one.sql("select category, count(*) from memory group by 1 order by 2").values.tolist() == [
            ["parameter", 3], ["activation", 9]
        ]  # fmt: skip
        loss = one.sql("select value from metrics where name = ? order by step", "loss")["value"].tolist()
        assert loss == run.metrics["loss"]["value"].tolist()
        assert one.sql("select count(*), max(total) from steps").values.tolist() == [[12, 12]]
        assert one.sql("select distinct scope from scopes")["scope"].tolist() == ["net"]
        assert one.sql("select a.op from ops a join alloc b using (alloc_id) limit 1").values.tolist() == [["matmul"]]
        assert one.sql("from grad_stat where parameter = 1")["name"].unique().tolist() == ["weight"]
        assert one.sql("select shape from ops limit 1").values.tolist() == [["8×8"]]


def test_an_empty_run_has_the_tables(tmp_path: Path) -> None:
    with record() as run:
        pass
    for name in ("ops", "memory", "scopes", "steps", "metrics"):
        assert run.sql(f"select count(*) from {name}").values.tolist() == [[0]]
    run.save(tmp_path / "empty.flnb")
    for one in (run, load_run(tmp_path / "empty.flnb")):
        assert one.sql("select typeof(sum(t0)), typeof(sum(seconds)) from ops").values.tolist() == [["DOUBLE"] * 2]


def test_a_query_that_is_wrong_lists_the_tables(run: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)run\.sql: .*opps.*The tables are ops, memory, scopes, steps,"):
        run.sql("select * from opps")
    for variable in ("run", "words"):  # of the function that asks DuckDB
        with pytest.raises(ValueError, match=f"Table with name {variable} does not exist"):
            run.sql(f"select * from {variable}")
    for nothing in ("", ";", "-- a comment"):
        with pytest.raises(ValueError, match=r"run\.sql: the query is empty; expected SQL such as"):
            run.sql(nothing)
    with pytest.raises(TypeError, match=r"run\.sql: got int, expected a query as a string"):
        run.sql(3)


def test_names_that_are_no_utf8_are_answered(tmp_path: Path, program: Any) -> None:
    with record() as run, bus.scope("net\udcff"):
        program.op("add")
    assert run.sql("select scope from ops").values.tolist() == [["net?"]]
    run.ops.by("scope").to_csv(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()[1].startswith("net?,1,")
    with record() as formula, bus.scope("=1+1, or"):
        program.op("add")
    formula.ops.by("scope").to_csv(tmp_path / "b.csv")
    assert (tmp_path / "b.csv").read_text(encoding="utf-8").splitlines()[1].startswith('"\'=1+1, or",1,')
    run.save(tmp_path / "a.flnb")
    assert load_run(tmp_path / "a.flnb").to_polars()["scope"].to_list() == ["net?"]


def test_frames_of_polars_and_pandas_have_the_same_rows(run: Any) -> None:
    pytest.importorskip("polars")
    other = run.to_polars()
    frame = run.to_pandas()
    assert other["op"].to_list() == frame["op"].tolist()
    for time in ("t0", "t1", "seconds"):
        assert other[time].to_list() == frame[time].tolist()
    assert other["line"].to_list() == frame["line"].tolist() == [""] * 24


@pytest.mark.parametrize(("module", "extra", "ask"), [
    ("duckdb", "lab", lambda run: run.sql("from ops")), ("polars", "polars", lambda run: run.to_polars()),
])  # fmt: skip
def test_a_missing_package_is_named_with_its_extra(
    run: Any, monkeypatch: pytest.MonkeyPatch, module: str, extra: str, ask: Any
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"needs {module}; install it with: pip install 'flnb\[{extra}\]'"):
        ask(run)


def test_runs_lists_what_is_in_a_folder(program: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.flnb").write_bytes(b"PK")
    (tmp_path / "notes.txt").write_text("not a run")
    with pytest.raises(ValueError, match="diverged"), record("first", path=tmp_path / "first.flnb"):
        program.op("add")
        raise ValueError("diverged")
    with record("second", path=tmp_path / "second.flnb") as run:
        program.op("add")
        program.op("add")
        pump.flush()
        run._store_all(run.folder)
        listed = runs(tmp_path)
        assert {each.name: (each.events, each.state) for each in listed} == {
            "first": (1, "complete"), "second": (2, "recording"), "": (0, "unreadable")
        }  # fmt: skip
    by_name = {each.name: each for each in runs(tmp_path)}
    assert by_name["second"].state == "complete"
    assert by_name["first"].error == "ValueError: diverged"
    assert load_run(by_name["second"].path).events == 2
    assert "is damaged or no flnb run" in (by_name[""].error or "")
    titles = ["name", "began", "duration", "steps", "events", "backend", "state", "file"]
    assert repr(listed).splitlines()[0].split() == titles
    assert "second.flnb" in listed._repr_html_()
    assert listed.to_pandas()["state"].tolist() == [each.state for each in listed]
    (tmp_path / "empty").mkdir()
    assert repr(runs(tmp_path / "empty")) == f"no recordings (.flnb) in {str(tmp_path / 'empty')!r}"
    with pytest.raises(FileNotFoundError, match=r"flnb\.runs: there is no folder '.*nowhere'; name another"):
        runs(tmp_path / "nowhere")
