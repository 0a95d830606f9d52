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
from flnb_telemetry.catalog import Catalog
from flnb_telemetry.extras import require
from flnb_telemetry.intern import Context, Plan, Table
from flnb_telemetry.recording import Recording

FORMAT = "flnb run"
FORMAT_VERSION = 1


class RunFileError(ValueError):
    """A file that is no readable run; the text names it, says what was found and what to do."""


def save(run: Recording, path: str | os.PathLike[str]) -> None:
    """Write a run; an existing file is replaced only when the new one is complete."""
    parquet = require("pyarrow.parquet", "lab", "saving a run")
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED) as archive:  # Parquet is compressed by itself
            kinds = {}
            for name in schema.KINDS:
                table = run.to_arrow(name)
                kinds[name] = table.num_rows
                if table.num_rows:
                    buffer = io.BytesIO()
                    parquet.write_table(table, buffer, compression="zstd")
                    archive.writestr(f"{name}.parquet", buffer.getbuffer())
            archive.writestr("manifest.json", json.dumps(_manifest(run, kinds), indent=1))
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)


def _manifest(run: Recording, kinds: dict[str, int]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "schema": schema.VERSION,
        "run": {
            "name": run.name,
            "state": "finished" if run.state == "recording" else run.state,
            "error": run.error,
            "start": run.start,
            "end": run.start + int(run.seconds * 1e9) if run.end is None else run.end,
            "over_limit": run.over_limit,
        },
        "meta": run.meta,
        "kinds": kinds,
        "strings": run.catalog.strings.items,
        "contexts": run.catalog.contexts.items,
        "plans": run.catalog.plans.items,
    }


def load_run(path: str | os.PathLike[str]) -> Recording:
    """Read a run that `Recording.save` wrote.

    Raises `FileNotFoundError`, and `RunFileError` for a file that is damaged, of a newer version or something else.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"flnb.load_run: no file {os.fspath(path)!r}; save one with run.save(path)")
    parquet = require("pyarrow.parquet", "lab", "loading a run")
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read("manifest.json"))
            _check(path, manifest)
            tables = {
                name: parquet.read_table(io.BytesIO(archive.read(f"{name}.parquet")))
                for name, count in manifest["kinds"].items()
                if count
            }
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
    for what, found, known in (
        ("file version", manifest["version"], FORMAT_VERSION),
        ("event schema", manifest["schema"], schema.VERSION),
    ):
        if found > known:
            raise RunFileError(
                f"flnb.load_run: {os.fspath(path)!r} has {what} {found}, this flnb reads up to {known}; "
                f"update flnb to open it: pip install -U flnb"
            )


def _restored(manifest: dict[str, Any], tables: dict[str, Any]) -> Recording:
    strings: Table[str] = Table("")
    contexts: Table[Context] = Table(Context("", 0), Context._make)
    plans: Table[Plan] = Table(Plan("", "", (), "", 0), Plan._make)
    # The items are set as they were: ids in the tables are their positions.
    strings.items = list(manifest["strings"])
    strings.ids = {text: number for number, text in enumerate(strings.items)}
    contexts.items = [Context(*context) for context in manifest["contexts"]]
    plans.items = [
        Plan(op, family, tuple(shape), dtype, nbytes, flops, tuple(map(tuple, inputs)))
        for op, family, shape, dtype, nbytes, flops, inputs in manifest["plans"]
    ]
    run = Recording(manifest["run"]["name"], catalog=Catalog(strings, plans, contexts))
    for name, found in tables.items():
        kind = schema.kind_of(name)
        table = {column: found[column].to_numpy() for column in found.column_names}
        _expect_ids(kind, table, run.catalog)
        run.restore(table["lane"].astype(np.int32), schema.rows_of(kind, table))
    about = manifest["run"]
    run.start, run.end, run.over_limit = int(about["start"]), int(about["end"]), int(about["over_limit"])
    run.state, run.error, run.meta = about["state"], about["error"], dict(manifest["meta"])
    return run


def _expect_ids(kind: schema.Kind, table: schema.Columns, catalog: Catalog) -> None:
    """Raise `ValueError` for an id beyond its intern table: found now, not in the middle of an analysis."""
    limits = {"plan": len(catalog.plans), "context": len(catalog.contexts), "name": len(catalog.strings)}
    for name, limit in limits.items():
        if name in table and len(table[name]) and not 0 <= int(table[name].min()) <= int(table[name].max()) < limit:
            raise ValueError(f"{kind.name}.parquet names {name} {int(table[name].max())}, the manifest has {limit}")
