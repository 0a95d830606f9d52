"""Columns of events that are read from Parquet on demand: of a `.flnb` file, or of a folder of parts."""

from __future__ import annotations

import io
import os
import weakref
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.extras import require
from flnb_telemetry.formats.footer import TYPES, Footer, read_footer
from flnb_telemetry.safe_text import safe_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import IO

    from numpy.typing import NDArray

ROWS_PER_BYTE = 8
"""The largest allowed ratio of rows to bytes of a Parquet file; more indicates a file made to fill the memory.
Real files need at least a byte per row for the times."""


class RunFileError(ValueError):
    """Raised if the file of a recording cannot be read; the message names the file, the problem and a remedy."""


class Source(NamedTuple):
    """A Parquet file with events of one kind.

    Attributes:
        open: a function that opens the file.
        rows: the number of rows in the file.
        name: the file's name in the folder of a recording, where files never change; "" for a source in a `.flnb` file.
    """

    open: Callable[[], Any]
    rows: int
    name: str = ""


class Group(NamedTuple):
    """A row group of a Parquet file: its number in the file, its number of rows, and its first and last time (ns)."""

    source: Source
    number: int
    rows: int
    first: int
    last: int


class Span(io.RawIOBase):
    """A range of bytes of a file as a readable file object; any number of threads may read parts of the same file.

    Args:
        file: the descriptor of the file.
        first, length: the range in bytes.
    """

    def __init__(self, file: int, first: int, length: int) -> None:
        self._file, self._first, self._length, self._at = file, first, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._length)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = max(0, min(len(buffer), self._length - self._at))
        data = os.pread(self._file, wanted, self._first + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class Opened:
    """An open file, whose ranges of bytes can be read even after another file has been moved to the same path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def span(self, first: int, length: int) -> IO[bytes]:
        """Return `length` bytes of the file from byte `first` on, as a readable file object."""
        span = Span(self._file, first, length)
        span.opened = self  # type: ignore[attr-defined]  # stays open as long as the range is used
        return io.BufferedReader(span, 1 << 16)


class Stored(Mapping[str, schema.Columns]):
    """The columns of a stored recording by kind, in order of time; each kind is read at its first access.

    Args:
        path: the file or folder, for messages.
        sources: for each kind its Parquet files, in the order in which they were written.
        check: a function called with each kind and its columns before these are returned; raises `ValueError` if they
            are invalid.
    """

    def __init__(
        self, path: str | os.PathLike[str], sources: Mapping[str, Sequence[Source]],
        check: Callable[[str, schema.Columns], None] = lambda kind, columns: None,
    ) -> None:  # fmt: skip
        self.path, self.sources, self.check = os.fspath(path), sources, check
        self._read: dict[str, schema.Columns] = {}
        self._known: dict[str, tuple[int, schema.Columns]] = {}  # by kind: of the first so many sources, the events
        self._inspected: dict[str, int] = {}  # by kind: how many sources `inspect` has checked, from the first on

    @property
    def names(self) -> set[str]:
        """The names of the files in a recording's folder, whose contents never change; empty for a `.flnb` file."""
        return {source.name for sources in self.sources.values() for source in sources if source.name}

    def reuse(self, earlier: Stored) -> None:
        """Take over the tables that an earlier object for the same folder has read; only newer files are opened."""
        for kind, sources in earlier.sources.items():
            names = [source.name for source in sources]
            if all(names) and names == [source.name for source in self.sources.get(kind, ())][: len(names)]:
                self._inspected[kind] = earlier._inspected.get(kind, 0)
                if kind in earlier._read:
                    self._known[kind] = len(names), earlier._read[kind]
                elif kind in earlier._known:
                    self._known[kind] = earlier._known[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(schema.KINDS)

    def __len__(self) -> int:
        return len(schema.KINDS)

    def __contains__(self, kind: object) -> bool:
        return kind in schema.KINDS

    def __getitem__(self, kind: str) -> schema.Columns:
        if kind not in self._read:
            count, *known = self._known.pop(kind, (0,))
            self._read[kind] = merge(schema.kind_of(kind), [*known, *self.chunks(kind, count)])
        return self._read[kind]

    def rows(self, kind: str) -> int:
        """Return the number of events of a kind, without reading them."""
        return sum(source.rows for source in self.sources.get(kind, ()))

    def chunks(self, kind: str, first: int = 0) -> Iterator[schema.Columns]:
        """Yield the events of a kind as tables of about a row group's rows, in the order in which they were written.

        Args:
            kind: the kind.
            first: the number of sources (files) to skip; reading begins with the next one.

        Raises:
            RunFileError: a part cannot be read.
        """
        yield from self._chunks(kind, [(source, None) for source in self.sources.get(kind, ())[first:]])

    def between(self, kind: str, t0: int, t1: int) -> list[Group]:
        """Return the row groups with events of a kind between two times (ns), without reading the events.

        Files are in order of time, so only the metadata of few of them is read.
        """
        empty = schema.table(schema.kind_of(kind), [])
        first, last = schema.kind_of(kind).words[0], "t1" if "t1" in empty else schema.kind_of(kind).words[0]
        sources = self.sources.get(kind, ())

        def groups(source: Source) -> list[Group]:
            with source.open() as file:
                return _timed(inspected(file, empty, source.rows)[0], source, first, last)

        at = bisect_left(sources, t0, key=lambda source: max(group.last for group in groups(source)))
        found: list[Group] = []
        for source in sources[max(0, at - 1) :]:  # the events of two threads may be written in another order
            own = groups(source)
            found += [group for group in own if group.first <= t1 and group.last >= t0]
            if min(group.first for group in own) > t1:
                break
        return found

    def of_groups(self, kind: str, groups: Iterable[Group]) -> schema.Columns:
        """Read row groups that `between` has returned, and return their events in order of time."""
        wanted: dict[str, tuple[Source, list[int]]] = {}
        for group in groups:
            wanted.setdefault(group.source.name, (group.source, []))[1].append(group.number)
        return merge(schema.kind_of(kind), list(self._chunks(kind, wanted.values())))

    def _chunks(self, kind: str, wanted: Iterable[tuple[Source, list[int] | None]]) -> Iterator[schema.Columns]:
        """Yield the events in row groups of files; None stands for all row groups of a file."""
        empty = schema.table(schema.kind_of(kind), [])
        for source, numbers in wanted:
            try:
                with source.open() as file:
                    for columns in _groups(file, empty, source.rows, numbers):
                        self.check(kind, columns)
                        yield columns
            except (ImportError, RunFileError, GeneratorExit):
                raise
            except FileNotFoundError as error:
                raise RunFileError(
                    f"flnb: {error.filename!r} no longer exists: the recording {self.path!r} was closed or removed "
                    f"after it was opened; open it again with flnb.load_run"
                ) from error
            except Exception as error:
                raise damaged(self.path, error, f"the events {kind!r} of ") from error

    def inspect(self) -> None:
        """Check the metadata of all Parquet files, including the smallest and the largest ids; no events are read."""
        for kind, sources in self.sources.items():
            empty = schema.table(schema.kind_of(kind), [])
            for source in sources[self._inspected.get(kind, 0) :]:
                with source.open() as file:
                    self.check(kind, _extremes(inspected(file, empty, source.rows)[0], empty))
            self._inspected[kind] = len(sources)


def damaged(path: str | os.PathLike[str], error: Exception, what: str = "") -> RunFileError:
    """Return a `RunFileError` for a file that cannot be read; `what` names the damaged part."""
    return RunFileError(
        f"flnb.load_run: {what}{os.fspath(path)!r} is damaged or no flnb run "
        f"({type(error).__name__}: {safe_text(str(error))}); "
        f"expected a whole file that run.save wrote. Copy it again, or record the run again"
    )


def _extremes(footer: Footer, empty: schema.Columns) -> schema.Columns:
    """Return the minimum and maximum of each column in the row groups, from the metadata of a Parquet file."""
    found: dict[str, bytes] = {}
    for chunk in (chunk for chunks in footer.groups for chunk in chunks if chunk.name in empty):
        found[chunk.name] = found.get(chunk.name, b"") + b"".join(chunk.extremes)
    codes = {name: "u" if empty[name].dtype.kind == "u" else "i" for name in found}
    return {
        name: np.frombuffer(data, f"<{codes[name]}{TYPES[footer.columns[name]][1]}") for name, data in found.items()
    }


def merge(kind: schema.Kind, tables: list[schema.Columns]) -> schema.Columns:
    """Concatenate tables of one kind, in order of time."""
    tables = [table for table in tables if len(table["lane"])]
    if not tables:
        return schema.table(kind, [])
    whole = joined_tables(tables) if tables[1:] else tables[0]
    t = whole[kind.words[0]]
    if (t[1:] < t[:-1]).any():
        order = np.argsort(t, kind="stable")
        whole = {name: column[order] for name, column in whole.items()}
    return whole


def joined_tables(tables: list[schema.Columns]) -> schema.Columns:
    """Concatenate tables with the same columns."""
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def inspected(file: IO[bytes], empty: schema.Columns, count: int) -> tuple[Footer, Any]:
    """Return the footer of a Parquet file and a `pyarrow.parquet.ParquetFile`, after checks of the metadata.

    Args:
        file: the open Parquet file.
        empty: the columns to read, with their dtypes.
        count: the number of rows that the manifest names.
    """
    footer, size = read_footer(file), file.seek(0, os.SEEK_END)
    rows, names = sum(chunks[0].rows for chunks in footer.groups if chunks), footer.columns.keys()
    if rows != count:
        raise ValueError(f"the table has {rows:,} rows, the manifest says {count:,}")
    most = 16 * rows + 4096
    if rows > ROWS_PER_BYTE * size or any(chunk.nbytes > most for chunks in footer.groups for chunk in chunks):
        raise ValueError(f"the table claims {rows:,} rows, more than its {size:,} bytes can hold")
    if not set(footer.columns.values()) <= TYPES.keys():
        expected = ", ".join(name for name, _ in TYPES.values())
        raise ValueError(f"the table has columns of other types than {expected}, the only types of a recording")
    found, types = require("pyarrow.parquet", "lab", "loading a run").ParquetFile(file), require("pyarrow", "lab").types
    if not all(types.is_integer(field.type) or types.is_floating(field.type) for field in found.schema_arrow):
        raise ValueError("the table has columns that are no numbers")
    if len(names) != len(found.schema_arrow) or not empty.keys() - OLDER <= names:
        raise ValueError(f"the table has the columns {sorted(names)}, expected {sorted(empty)}")
    return footer, found


OLDER = {"name", "place", "estimated"}
"""Columns that older files do not have: content of gradient buckets, device of memory, and kernels."""


def _timed(footer: Footer, source: Source, first: str, last: str) -> list[Group]:
    """Return the row groups of a Parquet file, given the names of the columns with the first and the last times.

    In a file without statistics, each row group is assumed to have events of all times.
    """
    found = []
    for number, chunks in enumerate(footer.groups):
        known = {
            chunk.name: [int.from_bytes(each, "little", signed=True) for each in chunk.extremes] for chunk in chunks
        }
        span = (known[first][0], known[last][1]) if known[first] and known[last] else (0, np.iinfo(np.int64).max)
        found.append(Group(source, number, chunks[0].rows, *span))
    return found


def _groups(
    file: IO[bytes], empty: schema.Columns, count: int, numbers: list[int] | None = None
) -> Iterator[schema.Columns]:
    """Yield the columns of each row group of a Parquet file, or of those with the given numbers.

    `empty` is a table without rows that has the expected columns; `count` is the number of rows in the manifest.
    """
    footer, found = inspected(file, empty, count)
    names = [name for name in empty if name in footer.columns]
    for i in range(len(footer.groups)) if numbers is None else numbers:
        group = found.read_row_group(i, columns=names, use_threads=False)
        table = dict(zip(group.column_names, group.columns, strict=True))
        older = np.zeros(group.num_rows, np.uint16)
        yield {
            name: _numbers(table[name]).astype(none.dtype, casting="safe", copy=False)
            if name in table
            else older.astype(none.dtype)
            for name, none in empty.items()
        }


def _numbers(column: Any) -> NDArray[Any]:
    """Return a column of Arrow as an array. Arrow's own conversion would import pandas, which takes seconds."""
    if column.null_count or not len(column):
        return np.asarray(column)
    parts = [
        np.frombuffer(chunk.buffers()[1], chunk.type.to_pandas_dtype(), chunk.offset + len(chunk))[chunk.offset :]
        for chunk in column.chunks
    ]
    return np.concatenate(parts) if parts[1:] else parts[0]


def checksum(source: Source) -> int:
    """Return the CRC-32 of a source's bytes, as used in ZIP archives."""
    found = 0
    with source.open() as file:
        while piece := file.read(1 << 20):
            found = zlib.crc32(piece, found)
    return found


def files(folder: Path, names: Mapping[str, Sequence[tuple[str, int]]]) -> dict[str, list[Source]]:
    """Return the sources of files in a folder, given for each kind of event the files' names and numbers of rows."""
    return {
        kind: [Source(partial(open, folder / name, "rb"), rows, name) for name, rows in parts]
        for kind, parts in names.items()
    }
