"""A recording on disk while it runs: a folder of complete Parquet files, and a journal that lists them.

``manifest.json`` has the facts known at the beginning. Events are written in batches, which have one Parquet file for
each kind of event. After each batch, a line is added to ``journal.jsonl``, with the sizes and checksums of these files
and the names that are new since the last line. A batch without a line counts as not written. When the recording ends,
the folder is replaced by one `.flnb` file. Until then the recording process holds a lock on the file ``lock``. The
operating system releases the lock when the process ends for any reason.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import warnings
import zipfile
import zlib
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry import device_words, quantity, schema
from flnb_telemetry.extras import require
from flnb_telemetry.formats import aside, check_parent, parquet, target_of
from flnb_telemetry.formats.stored import Stored, files
from flnb_telemetry.formats.writing import encoded

if TYPE_CHECKING:
    from typing import IO

    from flnb_telemetry.recording import Recording

FORMAT = "flnb folder"
MANIFEST, JOURNAL, LOCK, WHOLE = "manifest.json", "journal.jsonl", "lock", "whole.flnb"
ROWS, SECONDS = 1 << 18, 2.0
"""A batch is written when it has about this many events, or after this many seconds."""
NAMES = ("strings", "contexts", "plans", "groups", *device_words.TABLES)
PART = re.compile(rf"\d{{6,}}\.({'|'.join(schema.KINDS)})\.parquet|\.({MANIFEST}|{WHOLE})\.[0-9a-f]{{16}}\.part")
"""The names of files that this module writes, beside those above."""

_open: set[tuple[int, int] | None] = set()
"""The device and inode of each folder that this process writes. Their lock files must not be opened again, because
closing such a file releases the lock."""
os.register_at_fork(after_in_child=_open.clear)


class Written(NamedTuple):
    """The state of a folder after the last batch that was written completely.

    A new object replaces it after each batch, so that other threads never see a half-changed state.

    Attributes:
        batches: the number of lines in the journal; the next batch has this number.
        length: the length of the journal in bytes.
        known: for each table of names, the number of its items that are in the journal.
        parts: for each kind of event, the names of its files and their numbers of rows.
        events: the number of events in these files.
    """

    batches: int
    length: int
    known: dict[str, int]
    parts: dict[str, list[tuple[str, int]]]
    events: int


class Folder:
    """The folder in which a running recording stores its events; `open` makes the folder.

    Args:
        path: the path of the recording's final file.
        replace: whether `open` deletes an existing recording at `path`.

    Raises:
        ValueError: `path` names no file.
    """

    def __init__(self, path: str | os.PathLike[str], replace: bool = False) -> None:
        require("pyarrow.parquet", "lab", "recording to a file")
        self.path = Path(os.path.abspath(target_of(path)))  # the program may change its folder
        self._replace, self._process, self._at = replace, os.getpid(), monotonic()
        self.written = Written(0, 0, dict.fromkeys(NAMES, 0), {}, 0)
        self._made = self._begun = self._ended = False
        self._identity: tuple[int, int] | None = None
        self._files: list[IO[bytes]] = []

    def open(self) -> None:
        """Make the folder at `path`, and lock it while this process writes the recording.

        If this method raises an error or is interrupted by Ctrl-C, call `discard` to delete the folder.

        Raises:
            FileExistsError: there is a file or folder at the path, and `replace` is False or it is not a recording.
            FileNotFoundError: the parent folder does not exist.
        """
        _vacate(self.path, self._replace)
        self._made = True  # before it is so: Ctrl-C could arrive right after it
        try:
            self.path.mkdir()
        except OSError:
            self._made = False
            raise
        for name in (LOCK, JOURNAL):
            self._files.append(open(self.path / name, "ab", buffering=0))  # noqa: SIM115  # closed by `_release`
        fcntl.lockf(self._files[0], fcntl.LOCK_EX)
        self._identity = _identity(self.path)
        _open.add(self._identity)

    def discard(self) -> None:
        """Delete the folder if `open` made it, and release its lock; after this call nothing can be written."""
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
        self._release()

    def begin(self, run: Recording) -> None:
        """Write the facts and names that are known at the beginning; then `flnb.load_run` can open the folder."""
        self.write(run, [])
        about = {"format": FORMAT, "version": parquet.FORMAT_VERSION, "schema": schema.VERSION, "meta": run.meta}
        with aside(self.path / MANIFEST) as part:
            part.write_text(json.dumps(about | {"run": {"name": run.name, "start": run.start}}))
        self._begun = True

    patience = SECONDS / 4
    """Seconds between two times at which the recording receives all events, so that none is written too late."""

    def settings(self) -> dict[str, Any]:
        """Return the settings of storage (path, size and interval of batches) for `Recording.meta`."""
        return {"path": os.fspath(self.path), "batch_events": ROWS, "batch_seconds": SECONDS}

    def due(self, batches: schema.Batches) -> bool:
        """Return whether the events in memory, ``batches``, are so many or so old that they should be written now."""
        return sum(len(rows) for _, rows in batches) >= ROWS or (
            bool(batches) and monotonic() - self._at >= SECONDS - self.patience
        )

    def late(self, batches: schema.Batches) -> bool:
        """Return whether so many events wait in memory that they must be written before more are received."""
        return sum(len(rows) for _, rows in batches) >= 2 * ROWS

    @property
    def own(self) -> bool:
        """Whether this process writes the recording; a forked process does not write that of its parent."""
        return os.getpid() == self._process

    def write(self, run: Recording, batches: schema.Batches) -> None:
        """Write the next events, and the names that are new since the last call, to the folder.

        Raises:
            OSError: the disk is full, or the folder cannot be written; events written before remain readable.
        """
        if not self.own:
            return
        before, sizes, until = self.written, {}, 0
        made: list[tuple[str, Path, int]] = []
        try:
            kinds = [schema.numbers(rows) for _, rows in batches]
            present = {number for each in kinds for number in np.flatnonzero(np.bincount(each)).tolist()}
            for kind in schema.KINDS.values():
                if kind.number in present:
                    columns = schema.table(kind, batches, kinds)
                    count = len(columns["lane"])
                    path = self.path / f"{before.batches:06}.{kind.name}.parquet"
                    made.append((kind.name, path, count))
                    data = encoded(kind.name, columns)
                    path.write_bytes(data)
                    sizes[kind.name] = [count, len(data), zlib.crc32(data)]
                    until = max(until, *(int(columns[name].max()) for name in ("t", "t1") if name in columns))
            tables = {name: getattr(run.catalog, name).items for name in NAMES}
            names = {name: items[before.known[name] :] for name, items in tables.items()}
            facts = {"until": until, "over_limit": run.over_limit, "meta": run.meta}
            length = self._append({"parts": sizes, "names": {name: new for name, new in names.items() if new}} | facts)
            known = {name: before.known[name] + len(items) for name, items in names.items()}
            parts = dict(before.parts)
            for kind_name, path, count in made:
                parts[kind_name] = [*parts.get(kind_name, ()), (path.name, count)]
            events = before.events + sum(count for *_, count in made)
            self._at, self.written = monotonic(), Written(before.batches + 1, length, known, parts, events)
        except Exception as error:
            for _, path, _ in made:
                path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise self._failed(error) from error
            raise

    def _failed(self, error: OSError) -> OSError:
        """Return the error for a batch that could not be written."""
        return OSError(
            error.errno, f"flnb.record: {os.fspath(self.path)!r} could not be written ({error.strerror or error}); "
            f"the first {quantity.count(self.written.events)} events are in it, later ones are lost. "
            f"{self._advice(error)}record again",
        )  # fmt: skip

    def _advice(self, error: OSError) -> str:
        """Return advice on the cause of an error; the message continues it with "record again"."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return "Free some space and "
        if not self.path.is_dir():
            return "The folder was moved or deleted: leave it in its place until the recording ends, and "
        return "Repair that and "

    def _append(self, line: dict[str, Any]) -> int:
        """Add a line to the journal, completely or not at all, and return the new length of the journal in bytes.

        If Ctrl-C interrupted an earlier call after it had written its line, this call overwrites that line.
        """
        data, before, journal = json.dumps(line).encode() + b"\n", self.written.length, self._files[1]
        try:
            os.ftruncate(journal.fileno(), before)
            if journal.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except BaseException:
            os.ftruncate(journal.fileno(), before)
            raise
        return before + len(data)

    def stored(self, written: Written) -> Stored:
        """Return the events that the folder has in the state ``written``; they are read from the files on demand."""
        return Stored(self.path, files(self.path, written.parts))

    def close(self, run: Recording) -> None:
        """Replace the folder by one file, and let `run` read its events from that file; may be called twice.

        If the file cannot be written, the folder remains, and `flnb.load_run` can open it.
        """
        if not self.own or not self._files:
            return
        try:
            self._close(run)
        except OSError as error:
            place = os.fspath(self.path)
            stays = (
                "it stays a folder, which flnb.load_run opens: run.save(path) writes the file elsewhere"
                if self.path.is_dir() or closing_name(self.path).is_dir()
                else "the folder was moved or deleted: flnb.load_run opens it where it is now"
            )
            warnings.warn(
                f"flnb.record: {place!r} could not be made one file ({error.strerror or error}); {stays}",
                RuntimeWarning,
                stacklevel=2,
            )
        except KeyboardInterrupt:
            raise  # `record` calls again
        except BaseException:
            self._release()
            raise
        self._release()

    def _close(self, run: Recording) -> None:
        if not self._begun:  # not a single fact of it could be written
            shutil.rmtree(self.path)
            return
        run.tables = self.stored(self.written)
        if not self._ended:
            facts = {name: getattr(run, name) for name in parquet.FACTS}
            self._append({"end": facts, "meta": run.meta, "stacks": parquet.called(run)})
            self._ended = True
        if run.failure is None:
            self._pack(run)

    def _release(self) -> None:
        for file in self._files:
            file.close()
        self._files = []
        _open.discard(self._identity)

    def _pack(self, run: Recording) -> None:
        """Write the final file, give it the name of the folder, and delete the folder."""
        closing = closing_name(self.path)
        if self.path.is_dir():
            parquet.save(run, self.path / WHOLE)
            os.rename(self.path, closing)
        if (closing / WHOLE).exists():
            os.replace(closing / WHOLE, self.path)
        run.tables = parquet.load_run(self.path).tables
        shutil.rmtree(closing, ignore_errors=True)


def closing_name(path: Path) -> Path:
    """Return the temporary name of the folder at `path` while the final file is moved to `path`."""
    return path.with_name(f".{path.name}.closing")


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _vacate(path: Path, replace: bool) -> None:
    """Check that a path for a new recording is free; with `replace`, delete a recording that exists there."""
    check_parent(path)
    for place in (path, closing_name(path)):
        if not os.path.lexists(place):
            continue
        what = f"flnb.record: path={os.fspath(path)!r} exists already"
        if not replace:
            raise FileExistsError(
                f"{what}; choose another path, or give replace=True to delete what was recorded there"
            )
        if not place.exists():
            raise FileExistsError(f"{what} and is a link to nothing; choose another path, or delete the link")
        if not place.is_dir():
            if not _is_file_of_flnb(place):
                raise FileExistsError(f"{what} and is a file, but no recording; choose another path")
            place.unlink()
            continue
        if place.is_symlink() or not _is_recording(place, closing=place != path):
            raise FileExistsError(f"{what} and is a folder, but no recording; choose another path")
        if is_written(place):
            raise FileExistsError(f"{what} and is being recorded now; end that recording, or choose another path")
        shutil.rmtree(place)


def _is_recording(place: Path, closing: bool) -> bool:
    """Return whether a folder holds a recording, or the beginning of one, and nothing else.

    Args:
        place: the folder.
        closing: whether the folder has the temporary name of a closing recording; then files may be missing.
    """
    names = {name for name in os.listdir(place) if not PART.fullmatch(name)}
    if names - {MANIFEST, JOURNAL, LOCK, WHOLE}:
        return False
    if closing:
        return True
    return {JOURNAL, LOCK} <= names and (MANIFEST not in names or _has_format((place / MANIFEST).read_bytes(), FORMAT))


def _has_format(manifest: bytes, *formats: str) -> bool:
    """Return whether a manifest, given as bytes, names one of the given formats."""
    try:
        found = json.loads(manifest)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("format") in formats


def _is_file_of_flnb(place: Path) -> bool:
    """Return whether a file is a recording, perhaps with damaged events."""
    try:
        with zipfile.ZipFile(place) as archive:
            return _has_format(parquet.member(archive, MANIFEST), parquet.FORMAT, parquet.RANKS)
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        return False


def is_written(place: Path) -> bool:
    """Return whether a process, this one or another, is writing the recording in a folder."""
    if _identity(place) in _open:
        return True
    try:
        with open(place / LOCK, "rb") as lock:
            fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return True
        raise
    return False
