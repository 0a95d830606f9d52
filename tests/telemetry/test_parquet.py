"""`.flnb` files: a run comes back whole; newer, damaged and hostile files are the named error, at once."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import RunFileError, intern, load_run, record, runs, schema
from flnb_telemetry.formats import parquet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

if TYPE_CHECKING:
    from pathlib import Path


def test_a_saved_run_comes_back_whole(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    run.save(path)
    back = load_run(path)
    assert [item.name for item in tmp_path.iterdir()] == ["a.flnb"]  # nothing left aside
    for kind in schema.KINDS:
        there, here = run.table(kind), back.table(kind)
        assert there.keys() == here.keys()
        for name in there:
            np.testing.assert_array_equal(here[name], there[name])
            assert here[name].dtype == there[name].dtype
    assert repr(back) == repr(run)
    assert repr(back.ops.by("scope", "phase", "shape")) == repr(run.ops.by("scope", "phase", "shape"))
    assert repr(back.tape) == repr(run.tape)
    assert list(back.tape.nodes) == list(run.tape.nodes)
    assert back._repr_html_() == run._repr_html_()
    assert back.meta == run.meta
    back.save(tmp_path / "b.flnb")
    assert repr(load_run(tmp_path / "b.flnb").memory) == repr(run.memory)


def test_only_names_that_the_run_uses_are_written(run: Any, program: Any, tmp_path: Path) -> None:
    intern.strings.id_of("a secret name")
    with record("earlier"):
        program.forward("secret op", -1, family="secret family")
    with record("later") as later:
        program.forward("matmul", -1, family="matmul")
    later.save(tmp_path / "later.flnb")
    with zipfile.ZipFile(tmp_path / "later.flnb") as archive:
        manifest = archive.read("manifest.json").decode()
    assert "secret" not in manifest
    assert "weight" not in manifest  # of `run`
    assert "matmul" in manifest
    assert load_run(tmp_path / "later.flnb").ops["matmul"].count == 1
    run.save(tmp_path / "run.flnb")
    back = load_run(tmp_path / "run.flnb")
    assert back.catalog.strings.id_of("") == back.catalog.plans.ids[back.catalog.plans.items[0]] == 0


def test_a_save_that_fails_keeps_the_old_file(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.flnb"
    path.write_text("precious")
    monkeypatch.setattr(parquet, "_manifest", lambda *_: {"not": object()})
    with pytest.raises(TypeError):
        run.save(path)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def damaged(path: Path, change: Any) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def edited(members: dict[str, bytes], **changes: Any) -> None:
    manifest = json.loads(members["manifest.json"]) | changes
    members["manifest.json"] = json.dumps(manifest).encode()


def test_a_newer_file_says_to_update(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    run.save(path)
    damaged(path, lambda members: edited(members, version=9))
    with pytest.raises(RunFileError, match=r"a\.flnb' has file version 9, this flnb reads up to 1; update flnb"):
        load_run(path)
    run.save(path)
    damaged(path, lambda members: edited(members, schema=4))
    with pytest.raises(RunFileError, match="has event schema 4, this flnb reads up to 3"):
        load_run(path)


def test_a_file_from_before_there_were_groups_opens(run: Any, tmp_path: Path) -> None:
    def older(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        del manifest["groups"]
        for kind in ("collective_begin", "collective", "wait", "clock_sync"):
            assert not manifest["kinds"].pop(kind)
        members["manifest.json"] = json.dumps(manifest).encode()

    path = tmp_path / "a.flnb"
    run.save(path)
    damaged(path, older)
    back = load_run(path)
    assert repr(back) == repr(run)
    assert len(back.collectives) == 0


def written(members: dict[str, bytes], change: Any) -> bytes:
    """The Parquet file of the ops, changed."""
    buffer = io.BytesIO()
    pq.write_table(change(pq.read_table(io.BytesIO(members["op.parquet"]))), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda members: members.pop("manifest.json"),
        lambda members: members.pop("op.parquet"),
        lambda members: members.update({"op.parquet": b"PAR1 nonsense PAR1"}),
        lambda members: members.update({"manifest.json": b"{"}),
        lambda members: edited(members, plans=[]),
        lambda members: edited(members, plans=[[1, 2]]),
        lambda members: edited(members, contexts=[["", 0]]),
        lambda members: edited(members, kinds={"unheard": 3}),
        lambda members: edited(members, run={}),
        lambda members: members.update({"op.parquet": members["alloc.parquet"]}),
        lambda members: members.update({"manifest.json": b"\xff"}),
        lambda members: members.update({"manifest.json": b"[" * 100_000}),
        lambda members: edited(members, kinds={"op": 10**8}),
        lambda members: edited(members, kinds=[]),
        lambda members: edited(members, version="new"),
        lambda members: edited(members, strings=[["a"]]),
        lambda members: edited(members, contexts=[["", 99]] * 50),
        lambda members: edited(members, plans=[["", "", [[]], "", 0, 0, []]] * 50),
        lambda members: edited(members, meta=3),
        lambda members: edited(members, frames=[["f", "a.py", 1, []]], stacks={"1": [1]}),
        lambda members: edited(members, frames=[["f", None, 1, []]], stacks={"1": [0]}),
        lambda members: edited(members, run={"name": [], "state": "", "error": None, "start": 0, "end": 0}),
        lambda members: members.update(
            {"op.parquet": written(members, lambda op: op.set_column(0, "plan", [[None] * len(op)]))}
        ),
        lambda members: members.update(
            {"op.parquet": written(members, lambda op: op.set_column(0, "plan", [["x"] * len(op)]))}
        ),
    ],
)
def test_a_damaged_file_is_named(run: Any, tmp_path: Path, change: Any) -> None:
    path = tmp_path / "a.flnb"
    run.save(path)
    damaged(path, change)
    with pytest.raises(RunFileError, match=r"a\.flnb' is damaged or no flnb run .*expected a whole file"):
        load_run(path)


def test_a_truncated_file_at_any_length_is_refused(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    run.save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 50)):
        path.write_bytes(whole[:length])
        with pytest.raises(RunFileError, match="is damaged or no flnb run"):
            load_run(path)


def test_a_few_bytes_that_claim_millions_of_rows_are_refused_before_any_is_made(run: Any, tmp_path: Path) -> None:
    path, count = tmp_path / "a.flnb", 20_000_000
    run.save(path)

    def claim(members: dict[str, bytes]) -> None:
        same = pa.chunked_array([pa.array(np.zeros(1_000_000, np.int64))] * 20)
        members["step.parquet"] = written(members, lambda _: pa.table(dict.fromkeys(run.table("step"), same)))
        edited(members, kinds=json.loads(members["manifest.json"])["kinds"] | {"step": count})

    damaged(path, claim)
    pool = pa.default_memory_pool()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RunFileError, match=r"the table claims 20,000,000 rows, more than its \d{1,3},\d{3} bytes"):
        load_run(path)
    assert pool.bytes_allocated() < 50e6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_a_member_that_claims_to_be_much_larger_than_the_file_is_refused(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b" " * 10_000_000)
    with pytest.raises(RunFileError, match=r"manifest\.json claims 10,000,000 bytes, compressed to 9,"):
        load_run(path)


@pytest.mark.parametrize("seed", range(4))
def test_damage_anywhere_is_the_named_error_or_another_run(run: Any, tmp_path: Path, seed: int) -> None:
    path, random = tmp_path / "a.flnb", np.random.default_rng(seed)
    run.save(path)
    whole = path.read_bytes()
    for _ in range(60):
        content = np.frombuffer(whole, np.uint8).copy()
        at = random.integers(0, len(content), random.integers(1, 20))
        content[at] = random.integers(0, 256, len(at))
        path.write_bytes(content.tobytes())
        try:
            load_run(path)
        except RunFileError:
            pass


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    key=st.sampled_from(
        ["version", "schema", "run", "meta", "kinds", "strings", "contexts", "plans", "frames", "stacks", "groups"]
    ),
    value=json_values,
    listed=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_strange_manifest_is_the_named_error_or_another_run(
    run: Any, tmp_path: Path, key: str, value: Any, listed: bool
) -> None:
    path, saved = tmp_path / "a.flnb", tmp_path / "saved.flnb"
    if not saved.exists():
        run.save(saved)
    shutil.copyfile(saved, path)
    damaged(path, lambda members: edited(members, **{key: [value] * 40 if listed else value}))
    try:
        repr(load_run(path))
    except RunFileError:
        pass


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file '.*nowhere.flnb'; save one with run.save"):
        load_run(tmp_path / "nowhere.flnb")
    (tmp_path / "text.flnb").write_text("hello")
    with pytest.raises(RunFileError, match="is damaged or no flnb run"):
        load_run(tmp_path / "text.flnb")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("manifest.json", json.dumps({"format": "something else"}))
    with pytest.raises(RunFileError, match="is a ZIP file but no flnb run"):
        load_run(tmp_path / "other.zip")
    os.mkfifo(tmp_path / "pipe.flnb")
    with pytest.raises(RunFileError, match="is a pipe or a device; expected a file or a folder"):
        load_run(tmp_path / "pipe.flnb")
    assert [each.state for each in runs(tmp_path) if each.path.endswith("pipe.flnb")] == ["unreadable"]
