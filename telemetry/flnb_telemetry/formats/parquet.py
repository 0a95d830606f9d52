"""`.flnb` files: a ZIP archive with `manifest.json` and one Parquet file for each kind of event.

The Parquet files hold the columns of `Recording.table`, for any tool that reads Parquet; the manifest holds the
version of the format, the facts of the run and the names behind the ids.
"""

from __future__ import annotations

import codecs
import io
import itertools
import json
import os
import struct
import zipfile
from collections.abc import Iterator, Sized
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from flnb_telemetry import device_words, schema
from flnb_telemetry.extras import tool
from flnb_telemetry.formats import aside, foreign, stored
from flnb_telemetry.formats.stored import RunFileError, Source, Stored
from flnb_telemetry.formats.writing import regrouped, writer
from flnb_telemetry.intern import Catalog, Context, Frame, GroupInfo, Plan, Table
from flnb_telemetry.recording import Recording

FORMAT, RANKS = "flnb run", "flnb ranks"
FORMAT_VERSION = 1
BYTES_PER_BYTE = 64
"""The largest allowed ratio of decompressed to compressed bytes; more indicates a file made to fill the memory."""
FACTS: dict[str, Any] = {
    "name": str, "state": str, "error": (str, type(None)), "start": int, "end": int, "over_limit": int
}  # fmt: skip
META: dict[str, Any] = {
    "min_block": int, "granularity": int, "capacity": (int, type(None)),
    "rank": int, "ranks": int, "clock_offset": int, "clock_bound": int, "process": int, "host": str, "began": str,
    "limit": (int, type(None)), "buffer": int, "grad_interval": (int, float, type(None)), "inputs_limit": int,
    "batch_events": int, "batch_seconds": (int, float), "full_at": float,
}  # fmt: skip
"""The required types of the `meta` values that analyses and texts use."""


def save(run: Recording, path: str | os.PathLike[str]) -> None:
    """Write a run to a `.flnb` file; an existing file is replaced only when the new one is complete."""
    # The archive stores its members as they are: Parquet files are compressed.
    with aside(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        write(run, archive)


def write(run: Recording, archive: zipfile.ZipFile) -> None:
    """Write a run to an open archive piece by piece, so that only one piece of the events is in memory at a time."""
    used: Used = {table: {0} for table in set(TABLE_OF.values())}
    kinds = {name: _write_kind(name, run.chunks(name), archive, used) for name in schema.KINDS}
    archive.writestr("manifest.json", json.dumps(_manifest(run, kinds, used), indent=1))


def _write_kind(kind: str, chunks: Iterator[schema.Columns], archive: zipfile.ZipFile, used: Used) -> int:
    """Write the events of one kind to an archive as a member, if there are any, and return their number.

    The ids in the events are added to `used`.
    """
    groups, count = regrouped(chunks), 0
    for first in groups:  # written once, or not at all
        with (
            archive.open(f"{kind}.parquet", "w", force_zip64=True) as member,
            writer(kind, first, member) as to,
        ):
            for columns in itertools.chain([first], groups):
                to.write(columns)
                count += len(columns["lane"])
                for name in columns.keys() & TABLE_OF.keys():
                    used[TABLE_OF[name]].update(np.unique(columns[name]).tolist())
    return count


def _manifest(run: Recording, kinds: dict[str, int], used: Used) -> dict[str, Any]:
    """Return the manifest of a run: versions, facts, names.

    Args:
        run: the run.
        kinds: the number of events of each kind.
        used: for each table of names the ids in the events. The other names of the process are not written.
    """
    facts = {name: getattr(run, name) for name in FACTS}
    if run.state == "recording":
        facts |= {"state": "finished", "end": run.start + int(run.seconds * 1e9)}
    names = {name: _chosen(getattr(run.catalog, name).items, used[name]) for name in used}
    versions = {"format": FORMAT, "version": FORMAT_VERSION, "schema": schema.VERSION}
    return versions | {"run": facts, "meta": run.meta, "kinds": kinds} | called(run, used["contexts"]) | names


def _chosen(items: list[Any], ids: set[int]) -> list[Any]:
    """Return a copy of a table's items, up to the largest of `ids`.

    Items whose ids are not in `ids` are replaced by the first item, which is empty.
    """
    return [item if number in ids else items[0] for number, item in enumerate(items[: max(ids) + 1])]


def called(run: Recording, contexts: set[int] | None = None) -> dict[str, Any]:
    """Return the manifest's entries for call stacks, of the given contexts or of all; empty if there are none."""
    number: dict[Any, int] = {}
    stacks = {
        context: [number.setdefault(frame, len(number)) for frame in row]
        for context, row in run.stacks.items()
        if contexts is None or context in contexts
    }
    return {"frames": list(number), "stacks": stacks} if stacks else {}


def load_run(path: str | os.PathLike[str], *, earlier: Recording | None = None) -> Any:
    """Open a run that `Recording.save` or `record(path=...)` wrote, or a memory snapshot or profiler trace of PyTorch.

    Events are read from the file when they are first needed. A recording that still runs, or whose process was killed,
    is a folder: you get the events written so far, and the run's `error` says what is missing.

    Args:
        path: a `.flnb` file or folder, which needs pyarrow; a pickle of `torch.cuda.memory._dump_snapshot` (see
            `flnb.memory.load_snapshot`); or the JSON, perhaps compressed by gzip, of `torch.profiler` or `save_trace`.
        earlier: for a recording that still runs, the result of an earlier call: only events since then are read.

    Returns:
        A `Recording`; for a file that ``flnb merge`` wrote, a `Ranks` with the recordings of all ranks.

    Raises:
        FileNotFoundError: there is no such file.
        RunFileError: the file is damaged, was written by a newer version of flnb, or is not a run.

    >>> import flnb
    >>> with flnb.record("demo") as run:
    ...     y = flnb.ones(3) * 2.0
    >>> run.save("demo.flnb")
    >>> flnb.load_run("demo.flnb").ops["multiply"].count
    1
    """
    place = _place(path)
    before = place.stat()
    try:
        return _load(place, earlier)
    except (RunFileError, FileNotFoundError):
        now = _place(path)
        if os.path.samestat(before, now.stat()):
            raise
        return _load(now)  # the recording was closed, or recorded anew, while it was read


def _place(path: str | os.PathLike[str]) -> Path:
    """Return the path where a run is stored: `path`, or a temporary name if a process was killed while closing it."""
    target = Path(path)
    for place in (target, target.with_name(f".{target.name}.closing") if target.name else target, target):
        if place.exists():  # the path is looked at twice: a recording that is being closed moves there
            return place
    raise FileNotFoundError(f"flnb.load_run: no file {os.fspath(path)!r}; save one with run.save(path)")


def _load(path: Path, earlier: Recording | None = None) -> Any:
    """Open the run at a path: a file in any of the formats, or a folder.

    ``earlier`` is the result of an earlier call for the same folder, or None.
    """
    if not path.is_dir():
        if not path.is_file():  # to open a pipe would wait for its writer
            raise RunFileError(f"flnb.load_run: {os.fspath(path)!r} is a pipe or a device; expected a file or a folder")
        with open(path, "rb") as file:
            first = file.read(64).removeprefix(codecs.BOM_UTF8).lstrip()[:2]
        if first[:1] == b"\x80":  # a pickle
            return foreign("read snapshot")(path)
        if first[:1] in (b"{", b"[") or first == b"\x1f\x8b":  # JSON, or gzip
            return foreign("read trace")(path)
    try:
        if path.is_dir():
            return tool("flnb_telemetry.formats.journal", "read_folder")(path, earlier)
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(member(archive, "manifest.json"))
            check(path, manifest)
            if manifest["format"] == RANKS:
                return tool("flnb_telemetry.ranks", "restored")(archive, manifest)
            return read(archive, manifest, path)
    except (RunFileError, ImportError):
        raise
    except Exception as error:  # ZIP, JSON and Parquet raise many kinds of errors
        raise stored.damaged(path, error) from error


def read(archive: zipfile.ZipFile, manifest: dict[str, Any], path: str | os.PathLike[str] = "") -> Recording:
    """Return the run in an open archive, which has the given manifest.

    Its events are read from the file at `path` on demand; without a path, they are read into memory now.
    """
    members, opened = checked(archive), stored.Opened(path) if path else None
    sources = {}
    for kind, count in manifest["kinds"].items():
        if count:
            schema.kind_of(kind)
            info = members[f"{kind}.parquet"]
            if opened is not None and info.compress_type == zipfile.ZIP_STORED:
                source = Source(partial(opened.span, _data_offset(opened, info), info.file_size), count)
                if stored.checksum(source) != info.CRC:  # damaged Parquet can end the process
                    raise ValueError(f"{info.filename} is damaged: its bytes do not match their checksum")
                sources[kind] = [source]
            else:
                sources[kind] = [Source(partial(io.BytesIO, member(archive, f"{kind}.parquet")), count)]
    return restored(manifest, Stored(path, sources))


def checked(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an archive by name, after a check that no two have the same name or overlap in the file."""
    infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
    for one, other in itertools.pairwise(infos):
        if one.header_offset + 30 + len(one.filename) + one.compress_size > other.header_offset:
            raise ValueError(f"the members {one.filename!r} and {other.filename!r} overlap")
    members = {info.filename: info for info in infos}
    if len(members) != len(infos):
        raise ValueError("the archive has several members of one name")
    return members


def _data_offset(opened: stored.Opened, info: zipfile.ZipInfo) -> int:
    """Return the offset in the file at which the bytes of a member begin."""
    with opened.span(info.header_offset, 30) as header:
        name, extra = struct.unpack("<26xHH", header.read())
    return info.header_offset + 30 + int(name) + int(extra)


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the content of a member, after a check that it is not suspiciously larger than its compressed form."""
    info = archive.getinfo(name)
    known = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    if not known or info.file_size > BYTES_PER_BYTE * info.compress_size:
        size = f"{info.file_size:,} bytes, compressed to {info.compress_size:,}"
        raise ValueError(f"{name} claims {size}; expected at most {BYTES_PER_BYTE} times that, stored or deflated")
    return archive.read(info)


def check(path: str | os.PathLike[str], manifest: Any, *formats: str) -> None:
    """Raise an error if a manifest is not that of a run, or was written by a newer version of flnb.

    ``formats`` are the accepted values of the manifest's entry "format", by default those of a run and of `Ranks`.
    """
    if not isinstance(manifest, dict) or manifest.get("format") not in (formats or (FORMAT, RANKS)):
        what = "a folder" if os.path.isdir(path) else "a ZIP file"
        raise RunFileError(
            f"flnb.load_run: {os.fspath(path)!r} is {what} but no flnb run; expected a file that run.save wrote"
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
"""Tables that older files do not have: the first item, the form of an item, and its conversion from JSON."""
TABLE_OF = {"plan": "plans", "context": "contexts", "group": "groups", "kernel": "kernels", "info": "devices"} | (
    dict.fromkeys(("name", "place", "way", "implementation", "ways", "message", "line"), "strings")
    | dict.fromkeys(("backend", "manager", "device"), "strings")
)
"""For each column of ids, the table of names to which the ids belong."""
Used: TypeAlias = "dict[str, set[int]]"
"""For each table of names the ids that are used."""
CODES: dict[str, Sized] = {"category": schema.CATEGORIES, "direction": schema.DIRECTIONS, "route": device_words.ROUTES}


def _formed(value: Any, form: Any) -> bool:
    """Return whether a JSON value has a form: a type, ``[form]`` for a list, or a tuple with a form for each item."""
    if isinstance(form, type):
        return type(value) is form
    if isinstance(form, list):
        return type(value) is list and all(_formed(item, form[0]) for item in value)
    return type(value) is list and len(value) == len(form) and all(map(_formed, value, form))


def _require(name: str, formed: bool) -> None:
    """Raise an error that names the part `name` of the manifest, unless `formed` is True."""
    if not formed:
        raise ValueError(f"the manifest's {name} do not have the form that run.save writes")


def restored(manifest: dict[str, Any], tables: Stored) -> Recording:
    """Return the recording that a manifest and the stored tables describe; ids in the tables are checked when read."""
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
    named: dict[str, Sized] = {"strings": strings, "contexts": contexts, "plans": plans, **more}
    tables.check = partial(_check_ids, CODES | {column: named[table] for column, table in TABLE_OF.items()})
    tables.inspect()
    run = Recording()
    run.tables, run.catalog, run.meta = tables, Catalog(strings, plans, contexts), dict(manifest["meta"])
    vars(run.catalog).update(more)
    run.catalog.stacks = _stacks(manifest.get("frames", []), manifest.get("stacks", {}))
    run.events = sum(map(tables.rows, tables))
    for name, kind in META.items():
        _require("meta", name not in run.meta or _sound(run.meta[name], kind))
    for name, kind in FACTS.items():
        value = manifest["run"][name]
        _require("facts", _sound(value, kind))
        setattr(run, name, value)
    return run


def _sound(value: Any, kind: Any) -> bool:
    """Return whether a value has the type `kind` and, if it is an int, is so small that sums of values fit in int64."""
    return isinstance(value, kind) and not (isinstance(value, int) and (value.bit_length() > 61 or value is True))


def _check_ids(known: dict[str, Sized], kind: str, table: schema.Columns) -> None:
    """Raise an error if a table has an id without an entry in `known`, so that analyses need not check ids."""
    for name, names in known.items():
        ids = table.get(name, np.empty(0, np.int64))
        if not 0 <= int(ids.min(initial=0)) <= int(ids.max(initial=0)) < len(names):
            raise ValueError(f"{kind}.parquet has {name} id {ids.max()}, the manifest has ids 0 to {len(names) - 1}")


def _optional(manifest: dict[str, Any], name: str) -> Table[Any]:
    """Return the table ``name`` of a manifest; for an older file without that table, one with only the first item."""
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
