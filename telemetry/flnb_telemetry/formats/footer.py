"""The metadata at the end of a Parquet file, decoded in Python, because damaged ones can make pyarrow end the process.

They are written in Thrift's compact protocol. A structure is decoded to a dict from the numbers of its fields, which
are those of Parquet's definition (``parquet.thrift``), to values.
"""

from __future__ import annotations

import os
from typing import IO, Any, NamedTuple

TYPES = {1: ("INT32", 4), 2: ("INT64", 8), 5: ("DOUBLE", 8)}
"""The types of columns that a recording has, by Parquet's number: name, and bytes of a value."""
LONGEST = 1 << 24
"""The most bytes of metadata that are decoded; each may become an object."""


class Chunk(NamedTuple):
    """The values of one column in one row group.

    Attributes:
        name: the column's name.
        kind: Parquet's number of the column's type.
        rows: the number of values.
        nbytes: their size before compression.
        extremes: the smallest and the largest value as bytes; empty if unknown.
    """

    name: str
    kind: int
    rows: int
    nbytes: int
    extremes: tuple[bytes, ...]


class Footer(NamedTuple):
    """The metadata of a Parquet file: Parquet's number of each column's type, and the row groups as lists of chunks."""

    columns: dict[str, int]
    groups: list[list[Chunk]]


def read_footer(file: IO[bytes]) -> Footer:
    """Decode the metadata of an open Parquet file.

    Raises:
        ValueError: the metadata are damaged, or describe a table with nested columns.
    """
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 8))
    tail = file.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or length > min(end - 8, LONGEST):
        raise ValueError("the table is no Parquet file")
    file.seek(end - 8 - length)
    try:
        whole = _Compact(file.read(length)).struct()
        leaves = [(_text(leaf[4]), leaf[1]) for leaf in whole[2][1:] if leaf.get(3) in (0, 1) and 5 not in leaf]
        nested = not len(leaves) == len(whole[2]) - 1 == whole[2][0][5]
        rows = [_count(group[3]) for group in whole.get(4, [])]
        groups = [list(map(_chunk, group[1])) for group in whole.get(4, [])]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("the metadata of the table are damaged: they do not follow the Parquet format") from error
    if nested:
        raise ValueError("the table has nested columns, expected numbers only")
    for count, chunks in zip(rows, groups, strict=True):
        if [chunk[:3] for chunk in chunks] != [(*leaf, count) for leaf in leaves]:
            raise ValueError("the metadata of the table are damaged: a row group has other columns than the table")
    return Footer(dict(leaves), groups)


def _chunk(column: dict[int, Any]) -> Chunk:
    """Return one column of a row group, given the column's Thrift structure, whose field 3 has the metadata."""
    about = column[3]
    known, name = about.get(12, {}), b".".join(about[3])
    extremes = (known[6], known[5]) if 5 in known and 6 in known else ()
    return Chunk(_text(name), _count(about[1]), _count(about[5]), _count(about[6]), extremes)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _count(value: int) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(value)
    return value


class _Compact:
    """Decodes Thrift's compact protocol from bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self) -> dict[int, Any]:
        """Decode a structure to a dict from the numbers of its fields to their values."""
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            found[number] = (head & 15 == 1) if head & 15 in (1, 2) else self._value(head & 15)
        return found

    def _value(self, kind: int) -> Any:
        """Decode the next value, of a type given by its number in the protocol."""
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 8:
            return self._bytes(self._natural())
        if kind == 12:
            return self.struct()
        if kind in (9, 10):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._natural()
            if count > len(self._data) - self._at:
                raise IndexError(count)
            return [self._value(head & 15) for _ in range(count)]
        return self._bytes({1: 1, 2: 1, 3: 1, 7: 8}[kind])

    def _bytes(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._data):
            raise IndexError(count)
        return self._data[self._at - count : self._at]

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _integer(self) -> int:
        """Decode a signed integer."""
        value = self._natural()
        return value >> 1 ^ -(value & 1)

    def _natural(self) -> int:
        """Decode an unsigned integer of up to 64 bits; each of its bytes but the last has the highest bit set."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise IndexError(value)
