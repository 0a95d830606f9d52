"""Reading of a recording that is still a folder, because its process runs, was killed, or could not write the file."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb_telemetry import quantity, schema
from flnb_telemetry.formats import folder, parquet
from flnb_telemetry.formats.stored import RunFileError, Source, Stored, checksum, files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from flnb_telemetry.recording import Recording


class Journal(NamedTuple):
    """The content of the journal of a folder.

    Attributes:
        names: for each table of names its items.
        parts: for each kind of event, the name and the number of rows of each complete file.
        until: the time of the last event (ns).
        meta: the facts of the run.
        over_limit: the number of events that were dropped because the recording had reached its limit.
        lost: the number of events in files that are missing or damaged.
        lines: the number of lines.
        end: the facts known at the end of the run; None if it has not ended.
        called: the call stacks, in the form in which a manifest has them.
    """

    names: dict[str, list[Any]]
    parts: dict[str, list[tuple[str, int]]]
    until: int
    over_limit: int
    meta: dict[str, Any]
    lost: int
    lines: int
    end: dict[str, Any] | None
    called: dict[str, Any]


def _lines(place: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a journal as JSON objects; an incomplete last line is ignored."""
    with open(place / folder.JOURNAL, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def read_journal(place: Path, known: Collection[str] = ()) -> Journal:
    """Read the journal of a folder, and check the files that it lists, except those whose names are in ``known``."""
    names: dict[str, list[Any]] = {name: [] for name in folder.NAMES}
    parts: dict[str, list[tuple[str, int]]] = {}
    until = over_limit = lost = lines = 0
    end, meta, called = None, {}, {}
    for batch, line in enumerate(_lines(place)):
        meta, lines = line["meta"], batch + 1
        if "end" in line:
            end, called = line["end"], line["stacks"]
            break
        for name, items in line["names"].items():
            names[name] += items
        for kind, (rows, size, crc) in line["parts"].items():
            name = f"{batch:06}.{schema.kind_of(kind).name}.parquet"
            if name in known or _is_whole(place / name, size, crc):
                parts.setdefault(kind, []).append((name, rows))
            else:
                lost += rows
        until, over_limit = max(until, line["until"]), line["over_limit"]
    return Journal(names, parts, until, over_limit, meta, lost, lines, end, called)


def _is_whole(part: Path, size: int, crc: int) -> bool:
    """Return whether a file has the size and checksum in the journal; it may be incomplete after a power failure."""
    return part.exists() and part.stat().st_size == size and checksum(Source(partial(open, part, "rb"), 0)) == crc


def read_folder(place: Path, earlier: Recording | None = None) -> Recording:
    """Read a recording that is still a folder, because its process runs, was killed, or could not write the file.

    Args:
        place: the folder.
        earlier: the result of an earlier call for the same folder, or None; its files are not read again.

    Raises:
        RunFileError: `place` is not a folder of a recording.
    """
    if not (place / folder.MANIFEST).exists() or not (place / folder.JOURNAL).exists():
        raise RunFileError(
            f"flnb.load_run: {os.fspath(place)!r} is a folder but no recording; expected one that "
            f"flnb.record(path=...) wrote, or a .flnb file in it"
        )
    running = folder.is_written(place)
    manifest = json.loads((place / folder.MANIFEST).read_bytes())
    parquet.check(place, manifest, folder.FORMAT)
    start = manifest["run"]["start"]
    known = None if earlier is None or earlier.start != start else earlier.tables
    journal = read_journal(place, known.names) if isinstance(known, Stored) else read_journal(place)
    facts = journal.end or {
        "name": manifest["run"]["name"], "state": "recording" if running else "failed",
        "error": None if running else INTERRUPTED.format(quantity.count(folder.ROWS), folder.SECONDS),
        "start": start, "end": max(start, journal.until), "over_limit": journal.over_limit,
    }  # fmt: skip
    if journal.lost:
        facts["over_limit"] += journal.lost
        lost = f"{quantity.count(journal.lost)} events in damaged parts are missing"
        facts["error"] = f"{facts['error']}; {lost}" if facts["error"] else f"interrupted: {lost}"
    if not running and (unlisted := _unlisted(place, journal.lines)):
        facts["error"] = f"interrupted: {folder.JOURNAL} is cut off: the events in {unlisted} further files are missing"
    names = {name: items for name, items in journal.names.items() if items or name not in parquet.OPTIONAL}
    whole = manifest | journal.called | names | {"run": facts, "meta": journal.meta or manifest["meta"]}
    tables = Stored(place, files(place, journal.parts))
    if isinstance(known, Stored):
        tables.reuse(known)
    return parquet.restored(whole, tables)


def _unlisted(place: Path, lines: int) -> int:
    """Return the number of files of batches that have no line in the journal; ``lines`` is the number of its lines.

    Return 0 if all these files are of the next batch: the process may have been killed before it wrote that line.
    """
    parts = (name.split(".") for name in os.listdir(place) if folder.PART.fullmatch(name))
    further = [int(first) for first, *_ in parts if first.isdecimal() and int(first) >= lines]
    return len(further) if max(further, default=0) > lines else 0


INTERRUPTED = (
    "interrupted: the process ended without closing the recording; what it had not written yet is missing, at most "
    "about {} events of the last {:g} s"
)
"""The `error` of a recording whose process was killed."""
