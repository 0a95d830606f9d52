"""`.flnb` files: a ZIP with `manifest.json` and one Parquet file for each kind of event.

The Parquet files hold the columns of `Recording.table`, so that any tool that reads Parquet reads them; the manifest
holds the format's version, the facts of the run and the intern tables.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.extras import require
from flnb_telemetry.formats import aside
from flnb_telemetry.intern import Catalog, Context, Frame, Plan, Table
from flnb_telemetry.recording import Recording, columns

FORMAT = "flnb run"
FORMAT_VERSION = 1
FACTS = ("name", "state", "error", "start", "end", "over_limit")


class RunFileError(ValueError):
    """A file that is no readable run; the text names it, says what was found and what to do."""


def save(run: Recording, path: str | os.PathLike[str]) -> None:
    """Write a run; an existing file is replaced only when the new one is complete."""
    parquet = require("pyarrow.parquet", "lab", "saving a run")
    # Parquet is compressed by itself.
    with aside(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        kinds = {}
        for name in schema.KINDS:
            table = run.to_arrow(name)
            kinds[name] = table.num_rows
            if table.num_rows:
                buffer = io.BytesIO()
                parquet.write_table(table, buffer, compression="zstd")
                archive.writestr(f"{name}.parquet", buffer.getbuffer())
        archive.writestr("manifest.json", json.dumps(_manifest(run, kinds), indent=1))


def _manifest(run: Recording, kinds: dict[str, int]) -> dict[str, Any]:
    facts = {name: getattr(run, name) for name in FACTS}
    if run.state == "recording":
        facts |= {"state": "finished", "end": run.start + int(run.seconds * 1e9)}
    names = {name: getattr(run.catalog, name).items for name in ("strings", "contexts", "plans")}
    versions = {"format": FORMAT, "version": FORMAT_VERSION, "schema": schema.VERSION}
    number: dict[Any, int] = {}
    stacks = {i: [number.setdefault(frame, len(number)) for frame in row] for i, row in run.stacks.items()}
    told = {"frames": list(number), "stacks": stacks} if stacks else {}
    return versions | {"run": facts, "meta": run.meta, "kinds": kinds} | told | names


def load_run(path: str | os.PathLike[str]) -> Recording:
    """Read a run that `Recording.save` wrote, or a PyTorch memory snapshot (see `torch_snapshot.load_snapshot`).

    Raises `FileNotFoundError`, and `RunFileError` for a file that is damaged, of a newer version or something else.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"flnb.load_run: no file {os.fspath(path)!r}; save one with run.save(path)")
    with open(path, "rb") as file:
        if file.read(1) == b"\x80":  # a pickle
            from flnb_telemetry.formats.torch_snapshot import load_snapshot

            return load_snapshot(path)
    parquet = require("pyarrow.parquet", "lab", "loading a run")
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read("manifest.json"))
            _check(path, manifest)
            tables = {name: columns(kind, []) for name, kind in schema.KINDS.items()}
            for name in [name for name, count in manifest["kinds"].items() if count]:
                table = parquet.read_table(io.BytesIO(archive.read(f"{name}.parquet")))
                tables[name] = {key: table[key].to_numpy().astype(none.dtype) for key, none in tables[name].items()}
        return _restored(manifest, tables)
    except RunFileError:
        raise
    except (zipfile.BadZipFile, OSError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise RunFileError(
            f"flnb.load_run: {os.fspath(path)!r} is damaged or no flnb run ({type(error).__name__}: {error}); "
            f"expected a whole file that run.save wrote. Copy it again, or record the run again"
        ) from error


def _check(path: str | os.PathLike[str], manifest: Any) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
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


def _frame(name: str, filename: str, line: int, about: list[Any]) -> Frame:
    shape, *others = about or [()]
    return Frame(name, filename, line, (tuple(shape), *others) if about else ())


def _restored(manifest: dict[str, Any], tables: dict[str, schema.Columns]) -> Recording:
    strings: Table[str] = Table(manifest["strings"])
    contexts = Table([Context(*context) for context in manifest["contexts"]])
    plans = Table(
        [
            Plan(op, family, tuple(shape), dtype, nbytes, flops, tuple(map(tuple, inputs)), *saved)
            for op, family, shape, dtype, nbytes, flops, inputs, *saved in manifest["plans"]
        ]
    )
    # An id beyond its intern table is found now, not in the middle of an analysis.
    for kind, table in tables.items():
        for name, known in (("plan", plans), ("context", contexts), ("name", strings)):
            ids = table.get(name, np.empty(0, np.int64))
            if not 0 <= int(ids.min(initial=0)) <= int(ids.max(initial=0)) < len(known):
                raise ValueError(f"{kind}.parquet names {name} {ids.max()}, the manifest has {len(known)}")
    run = Recording()
    run.tables, run.catalog, run.meta = tables, Catalog(strings, plans, contexts), dict(manifest["meta"])
    frames = [_frame(*told) for told in manifest.get("frames", [])]
    run.catalog.stacks = {int(i): tuple(frames[k] for k in row) for i, row in manifest.get("stacks", {}).items()}
    run.events = sum(len(table["lane"]) for table in tables.values())
    for name in FACTS:
        setattr(run, name, manifest["run"][name])
    return run
