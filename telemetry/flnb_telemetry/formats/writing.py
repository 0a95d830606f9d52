"""Columns of events written as Parquet: into a `.flnb` file, or as the parts of a folder."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.extras import require
from flnb_telemetry.formats.stored import joined_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

GROUP = 1 << 18
"""The number of rows of a row group, the unit in which events are written and read."""
IDS = ("context", "name", "place", "group")


def regrouped(chunks: Iterable[schema.Columns]) -> Iterator[schema.Columns]:
    """Join small tables and divide large ones; yield tables of about `GROUP` rows."""
    waiting: list[schema.Columns] = []
    for columns in chunks:
        for first in range(0, len(columns["lane"]), GROUP):
            waiting.append({name: column[first : first + GROUP] for name, column in columns.items()})
            if sum(len(table["lane"]) for table in waiting) >= GROUP:
                yield joined_tables(waiting)
                waiting = []
    if waiting:
        yield joined_tables(waiting)


class writer:
    """Writes columns of one kind to a stream as Parquet, a row group for each `write`.

    Slowly growing numbers are stored as differences, ids by dictionaries, times unchanged (see `ROWS_PER_BYTE`).

    Args:
        kind: the kind of the events.
        columns: a table with the columns that will be written; its rows are ignored.
        target: an output stream of Arrow, or an open file of Python, which need not be seekable.
    """

    def __init__(self, kind: str, columns: schema.Columns, target: Any) -> None:
        self._arrow = arrow = require("pyarrow", "lab", "saving a run")
        fields = arrow.schema([(name, arrow.from_numpy_dtype(column.dtype)) for name, column in columns.items()])
        plain = {schema.KINDS[kind].words[0], *(name for name, column in columns.items() if column.dtype.kind == "f")}
        ids = [name for name, column in columns.items() if column.itemsize < 8 or name in IDS]
        deltas = dict.fromkeys(columns.keys() - plain - set(ids), "DELTA_BINARY_PACKED")
        self._fields = fields
        self._writer = require("pyarrow.parquet", "lab", "saving a run").ParquetWriter(
            target if isinstance(target, arrow.NativeFile) else _Counted(target), fields,
            compression="zstd", use_dictionary=ids, column_encoding=deltas,
        )  # fmt: skip

    def write(self, columns: schema.Columns) -> None:
        """Write a table as the next row group."""
        arrow, count = self._arrow, len(columns["lane"])
        arrays = [  # from memory: `arrow.array` imports pandas, which takes long, and fails when the program ends
            arrow.Array.from_buffers(
                field.type, count, [None, arrow.py_buffer(np.ascontiguousarray(columns[field.name]))]
            )
            for field in self._fields
        ]
        self._writer.write_table(arrow.Table.from_arrays(arrays, schema=self._fields), row_group_size=count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def encoded(kind: str, columns: schema.Columns) -> Any:
    """Return a table as the bytes of a Parquet file, a buffer of Arrow.

    Arrow encodes into its own memory without the interpreter's lock. A Python file would take that lock for each of
    the small pieces of a Parquet file, and in a busy program each time wait for a millisecond.
    """
    stream = require("pyarrow", "lab", "recording to a file").BufferOutputStream()
    with writer(kind, columns, stream) as file:
        for group in regrouped([columns]):
            file.write(group)
    return stream.getvalue()


class _Counted(io.RawIOBase):
    """A write-only file, such as a member of an archive, that counts the bytes written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._count = file, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._count += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self._count
