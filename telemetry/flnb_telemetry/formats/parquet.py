"""`.flnb` files: a ZIP archive with `manifest.json` and one Parquet file for each kind of event.

The Parquet files hold the columns of `Recording.table`, for any tool that reads Parquet; the manifest holds the
version of the format, the facts of the run and the names behind the ids.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import zipfile
from collections.abc import Sized
from pathlib import Path
from typing import Any

import numpy as np

from flnb_telemetry import device_words, schema
from flnb_telemetry.extras import require, tool
from flnb_telemetry.formats import aside, foreign
from flnb_telemetry.intern import Catalog, Context, Frame, GroupInfo, Plan, Table
from flnb_telemetry.recording import Recording
from flnb_telemetry.safe_text import safe_text

FORMAT, RANKS = "flnb run", "flnb ranks"
FORMAT_VERSION = 1
ROWS_PER_BYTE, BYTES_PER_BYTE = 8, 64
"""The most rows per byte of a Parquet file, and bytes per byte of a compressed member, that are read: a file with more
was made to fill the memory. In others the times alone take a byte per row."""
FACTS: dict[str, Any] = {
    "name": str, "state": str, "error": (str, type(None)), "start": int, "end": int, "over_limit": int
}  # fmt: skip


class RunFileError(ValueError):
    """Raised for a file that is no readable run; the message names it, and says what was found and what to do."""


def save(run: Recording, path: str | os.PathLike[str]) -> None:
    """Write a run to a `.flnb` file; an existing file is replaced only when the new one is complete."""
    # The archive stores its members as they are: Parquet files are compressed.
    with aside(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        write(run, archive)


def write(run: Recording, archive: zipfile.ZipFile) -> None:
    """Write a run to an open archive."""
    parquet, kinds = require("pyarrow.parquet", "lab", "saving a run"), {}
    for name in schema.KINDS:
        table = run.to_arrow(name)
        kinds[name] = table.num_rows
        if table.num_rows:
            buffer = io.BytesIO()
            parquet.write_table(table, buffer, compression="zstd")
            archive.writestr(f"{name}.parquet", buffer.getbuffer())
    archive.writestr("manifest.json", json.dumps(_manifest(run, kinds), indent=1))


def _manifest(run: Recording, kinds: dict[str, int]) -> dict[str, Any]:
    """Return the manifest of a run: versions, facts, names; `kinds` is the number of events of each kind."""
    facts = {name: getattr(run, name) for name in FACTS}
    if run.state == "recording":
        facts |= {"state": "finished", "end": run.start + int(run.seconds * 1e9)}
    names = {name: getattr(run.catalog, name).items for name in ("strings", "contexts", "plans", *OPTIONAL)}
    versions = {"format": FORMAT, "version": FORMAT_VERSION, "schema": schema.VERSION}
    number: dict[Any, int] = {}
    stacks = {i: [number.setdefault(frame, len(number)) for frame in row] for i, row in run.stacks.items()}
    called = {"frames": list(number), "stacks": stacks} if stacks else {}
    return versions | {"run": facts, "meta": run.meta, "kinds": kinds} | called | names


def load_run(path: str | os.PathLike[str]) -> Any:
    """Read a run that `Recording.save` wrote, or a memory snapshot or profiler trace of PyTorch.

    Args:
        path: a `.flnb` file, which needs pyarrow; a pickle of `torch.cuda.memory._dump_snapshot` (see
            `flnb.memory.load_snapshot`); or the JSON, perhaps compressed by gzip, of `torch.profiler` or `save_trace`.

    Returns:
        A `Recording`; of a file that ``flnb merge`` wrote `Ranks`, the recordings of all ranks.

    Raises:
        FileNotFoundError: there is no such file.
        RunFileError: it is damaged, of a newer version of flnb, or no run at all.

    >>> import flnb
    >>> with flnb.record("demo") as run:
    ...     y = flnb.ones(3) * 2.0
    >>> run.save("demo.flnb")
    >>> flnb.load_run("demo.flnb").ops["multiply"].count
    1
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"flnb.load_run: no file {os.fspath(path)!r}; save one with run.save(path)")
    with open(path, "rb") as file:
        first = file.read(64).removeprefix(codecs.BOM_UTF8).lstrip()[:2]
    if first[:1] == b"\x80":  # a pickle
        return foreign("read snapshot")(path)
    if first[:1] in (b"{", b"[") or first == b"\x1f\x8b":  # JSON, or gzip
        return foreign("read trace")(path)
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(member(archive, "manifest.json"))
            check(path, manifest)
            if manifest["format"] == RANKS:
                return tool("flnb_telemetry.ranks", "restored")(archive, manifest)
            return read(archive, manifest)
    except (RunFileError, ImportError):
        raise
    except Exception as error:  # ZIP, JSON and Parquet each have many kinds of errors
        raise RunFileError(
            f"flnb.load_run: {os.fspath(path)!r} is damaged or no flnb run "
            f"({type(error).__name__}: {safe_text(str(error))}); "
            f"expected a whole file that run.save wrote. Copy it again, or record the run again"
        ) from error


def read(archive: zipfile.ZipFile, manifest: dict[str, Any]) -> Recording:
    """Read a run from an open archive with this manifest."""
    parquet = require("pyarrow.parquet", "lab", "loading a run")
    tables = {name: schema.table(kind, []) for name, kind in schema.KINDS.items()}
    for name in [name for name, count in manifest["kinds"].items() if count]:
        tables[name] = _table(parquet, member(archive, f"{name}.parquet"), tables[name], manifest["kinds"][name])
    return _restored(manifest, tables)


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Read a file of the archive; one that claims to be much larger than its compressed bytes is an error."""
    info = archive.getinfo(name)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or (
        info.file_size > BYTES_PER_BYTE * info.compress_size
    ):
        raise ValueError(f"{name} claims {info.file_size:,} bytes, compressed to {info.compress_size:,}; expected less")
    return archive.read(info)


def _table(parquet: Any, data: bytes, empty: schema.Columns, count: int) -> schema.Columns:
    """Read the columns of a Parquet file, after a check of its metadata: a few bytes may claim any number of rows.

    Args:
        parquet: the module `pyarrow.parquet`.
        data: the file.
        empty: the columns to read, with their dtypes.
        count: the number of rows that the manifest names.
    """
    file = parquet.ParquetFile(io.BytesIO(data))
    metadata = file.metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    rows = sum(group.num_rows for group in groups)
    if not rows == metadata.num_rows == count or any(chunk.num_values > count for chunk in chunks):
        raise ValueError(f"the table has {metadata.num_rows:,} rows, the manifest says {count:,}")
    if rows > ROWS_PER_BYTE * len(data) or any(chunk.total_uncompressed_size > 16 * rows + 4096 for chunk in chunks):
        raise ValueError(f"the table claims {rows:,} rows, more than its {len(data):,} bytes can hold")
    kinds = {metadata.schema.column(i).physical_type for i in range(metadata.num_columns)}
    if not kinds <= {"INT32", "INT64", "DOUBLE"}:
        raise ValueError(f"the table has columns of the types {sorted(kinds)}, expected numbers only")
    found = file.read(columns=list(empty), use_threads=False)
    # older files do not name what buckets of gradients hold, of which device memory is, and have no kernels
    older = dict.fromkeys(("name", "place", "estimated"), np.zeros(count, np.uint16))
    table = older | dict(zip(found.column_names, found.columns, strict=True))
    return {key: np.asarray(table[key]).astype(none.dtype, casting="safe") for key, none in empty.items()}


def check(path: str | os.PathLike[str], manifest: Any) -> None:
    """Raise an error for a manifest that is not of a run, or of a newer version."""
    if not isinstance(manifest, dict) or manifest.get("format") not in (FORMAT, RANKS):
        raise RunFileError(
            f"flnb.load_run: {os.fspath(path)!r} is a ZIP file but no flnb run; expected one that run.save wrote"
        )
    known = {"version": ("file version", FORMAT_VERSION), "schema": ("event schema", schema.VERSION)}
    for key, (what, newest) in known.items():
        if manifest[key] > newest:
            raise RunFileError(
                f"flnb.load_run: {os.fspath(path)!r} has {what} {manifest[key]}, this flnb reads up to {newest}; "
                f"update flnb to open it: pip install -U flnb"
            )


PLAN = (str, str, [int], str, int, int, [[int]])
CONTEXT = (str, int, str, int, str)
OPTIONAL = {"groups": (GroupInfo("", 0, 1, "", 0), (str, int, int, str, int), GroupInfo._make)} | device_words.TABLES
"""Tables that older files lack: what is in all of them, the form of an item, and what makes it of a JSON value."""
CODES: dict[str, Sized] = {"category": schema.CATEGORIES, "direction": schema.DIRECTIONS, "route": device_words.ROUTES}


def _formed(value: Any, form: Any) -> bool:
    """Return whether a JSON value has a form: a type, ``[form]`` for lists of it, a tuple for one form per item."""
    if isinstance(form, type):
        return type(value) is form
    if isinstance(form, list):
        return type(value) is list and all(_formed(item, form[0]) for item in value)
    return type(value) is list and len(value) == len(form) and all(map(_formed, value, form))


def _require(name: str, formed: bool) -> None:
    """Raise an error that names a part of the manifest unless it is well formed."""
    if not formed:
        raise ValueError(f"the manifest's {name} do not have the form that run.save writes")


def _restored(manifest: dict[str, Any], tables: dict[str, schema.Columns]) -> Recording:
    """Make the recording of a manifest and the tables by kind, whose ids are checked."""
    # of schema version 1: without devices; of 2: without lines
    listed = manifest | {"contexts": [[*one, *("", 0, "")[len(one) - 2 :]] for one in manifest["contexts"]]}
    _require("strings", _formed(listed["strings"], [str]))
    _require("contexts", _formed(listed["contexts"], [CONTEXT]))
    _require("contexts", all(0 <= phase < len(schema.PHASES) for _, phase, *_ in listed["contexts"]))
    _require("plans", all(_formed(plan[:7], PLAN) and _formed(plan[7:], [int]) for plan in listed["plans"]))
    more = {name: _optional(manifest, name) for name in OPTIONAL}
    strings, contexts = Table(listed["strings"]), Table([Context(*context) for context in listed["contexts"]])
    rows = ((*p[:2], tuple(p[2]), *p[3:6], tuple(map(tuple, p[6])), *p[7:]) for p in listed["plans"])
    plans = Table(list(map(Plan._make, rows)))
    known_ids: dict[str, Sized] = {"plan": plans, "context": contexts, "name": strings, "place": strings}
    known_ids |= {
        "way": strings,
        "implementation": strings,
        "ways": strings,
        "group": more["groups"],
        "kernel": more["kernels"],
        "info": more["devices"],
    }
    # An id without a name is an error now, not in the middle of an analysis.
    for kind, table in tables.items():
        for name, known in (CODES | known_ids).items():
            ids = table.get(name, np.empty(0, np.int64))
            if not 0 <= int(ids.min(initial=0)) <= int(ids.max(initial=0)) < len(known):
                raise ValueError(f"{kind}.parquet has {name} id {ids.max()}, the manifest names {len(known)} of them")
    run = Recording()
    run.tables, run.catalog, run.meta = tables, Catalog(strings, plans, contexts), dict(manifest["meta"])
    vars(run.catalog).update(more)
    run.catalog.stacks = _stacks(manifest.get("frames", []), manifest.get("stacks", {}))
    run.events = sum(len(table["lane"]) for table in tables.values())
    for name, kind in FACTS.items():
        value = manifest["run"][name]
        _require("facts", isinstance(value, kind) and not (kind is int and value.bit_length() > 63))
        setattr(run, name, value)
    return run


def _optional(manifest: dict[str, Any], name: str) -> Table[Any]:
    """Return a table that older files lack, with its first item alone if this file does."""
    first, form, make = OPTIONAL[name]
    if name not in manifest:
        return Table([first])
    _require(name, _formed(manifest[name], [list]) and bool(manifest[name]))
    whole = [[*item, *first[len(item) :]] for item in manifest[name]]  # those of older files have fewer fields
    _require(name, _formed(whole, [form]))
    return Table([make(item) for item in whole])


def _stacks(frames: list[Any], stacks: dict[str, Any]) -> dict[int, tuple[Frame, ...]]:
    """Return the call stacks by context id, from the manifest's frames and lists of frame numbers."""
    _require("frames", all(_formed(frame[:3], (str, str, int)) and len(frame) == 4 for frame in frames))
    _require("frames", all(not about or _formed(about, ([int], str, int)) for *_, about in frames))
    _require("stacks", all(_formed(row, [int]) and all(0 <= k < len(frames) for k in row) for row in stacks.values()))
    known = [Frame._make((*place, (tuple(about[0]), *about[1:]) if about else ())) for *place, about in frames]
    return {int(context): tuple(known[k] for k in row) for context, row in stacks.items()}
