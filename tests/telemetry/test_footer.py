"""Metadata of Parquet files: decoded as pyarrow does; damaged ones are an error, not the end of the process."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_telemetry import RunFileError, load_run
from flnb_telemetry.formats import footer

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

if TYPE_CHECKING:
    from pathlib import Path


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_footer_is_the_one_that_pyarrow_reads(run: Any, tmp_path: Path) -> None:
    run.save(tmp_path / "a.flnb")
    tables = [data for name, data in members(tmp_path / "a.flnb").items() if name.endswith(".parquet")]
    for data in tables:
        read, known = footer.read_footer(io.BytesIO(data)), pq.ParquetFile(io.BytesIO(data)).metadata
        assert list(read.columns) == known.schema.names
        assert len(read.groups) == known.num_row_groups
        for number, chunks in enumerate(read.groups):
            for at, chunk in enumerate(chunks):
                theirs = known.row_group(number).column(at)
                assert (chunk.name, footer.TYPES[chunk.kind][0]) == (theirs.path_in_schema, theirs.physical_type)
                assert (chunk.rows, chunk.nbytes) == (theirs.num_values, theirs.total_uncompressed_size)
                if theirs.physical_type != "DOUBLE":
                    numbers = [int.from_bytes(value, "little", signed=True) for value in chunk.extremes]
                    assert numbers == [theirs.statistics.min, theirs.statistics.max]
    assert len(tables) > 5


def test_metadata_at_which_pyarrow_ends_the_process_are_an_error(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.flnb"
    run.save(path)
    whole = members(path)
    optional = b"\x25\x02\x18\x04plan"  # of a column: it may have nulls, its name
    assert optional in whole["op.parquet"]
    whole["op.parquet"] = whole["op.parquet"].replace(optional, b"\x25\x00\x18\x04plan")
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in whole.items():
            archive.writestr(name, data)
    with pytest.raises(RunFileError, match=r"a\.flnb' is damaged"):
        load_run(path).table("op")


def test_damaged_metadata_are_a_value_error(run: Any, tmp_path: Path) -> None:
    run.save(tmp_path / "a.flnb")
    data = members(tmp_path / "a.flnb")["op.parquet"]
    length, rng, refused = int.from_bytes(data[-8:-4], "little"), np.random.default_rng(0), 0
    for _ in range(150):
        changed = bytearray(data)
        for at in rng.integers(len(data) - 8 - length, len(data), rng.integers(1, 4)).tolist():
            changed[at] = rng.integers(256)
        try:
            footer.read_footer(io.BytesIO(changed))
        except (ValueError, RecursionError):
            refused += 1
    assert 40 < refused < 150
    for text in (b"", b"PAR1", b"\xff\xff\xff\x7fPAR1", b"\x00\x00\x00\x00PAR1"):
        with pytest.raises(ValueError, match=r"the table is no Parquet file|the metadata of the table are damaged"):
            footer.read_footer(io.BytesIO(text))
    nested = io.BytesIO()
    pq.write_table(pa.table({"t": [[1, 2], [3]]}), nested)
    with pytest.raises(ValueError, match="the table has nested columns, expected numbers only"):
        footer.read_footer(nested)
