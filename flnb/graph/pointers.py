"""Pointers: where the calls of a program hold the addresses of arrays that differ from run to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flnb.graph.values import Value

MANY = 64
"""The number of values from which NumPy writes all addresses faster than a Python loop does."""


class Pointers:
    """The places from which a program's calls of machine code read the addresses of its inputs and outputs.

    A segment is a group of calls that run together; it has one array with the addresses of all its calls.

    Args:
        values: the inputs and outputs, in the order in which `set_all` gets their addresses.
    """

    def __init__(self, values: Iterable[Value] = ()) -> None:
        self._places: dict[Value, list[tuple[Any, int, int]]] = {value: [] for value in values}
        self._columns: list[tuple[Any, Any, Any, Any]] = []

    @property
    def values(self) -> Iterable[Value]:
        """Return the inputs and outputs, in order."""
        return self._places.keys()

    def add(self, pointers: Any, places: Sequence[tuple[Value, int, int]]) -> None:
        """Add a segment: its array of addresses, and the places in the array that belong to inputs or outputs.

        Args:
            pointers: the addresses of all arrays of the segment's calls, uint64.
            places: for each place the value, the index in ``pointers``, and the bytes to add to the value's address,
                negative for some views that are reversed.
        """
        view = memoryview(pointers)  # to which numbers are written faster than to an array
        for value, place, offset in places:
            self._places[value].append((view, place, offset))
        number = {value: i for i, value in enumerate(self._places)}
        columns = zip(*[(place, number[value], offset) for value, place, offset in places], strict=True)
        if places:
            at, which, offsets = (np.array(column, np.int64) for column in columns)
            self._columns.append((pointers, at, which, offsets.view(np.uint64)))  # negative ones wrap around in the sum

    def set(self, value: Value, address: int) -> None:
        """Write the address of one value to all its places."""
        for view, place, offset in self._places[value]:
            view[place] = address + offset

    def set_all(self, addresses: Sequence[int]) -> None:
        """Write the addresses of all `values` to all their places."""
        if len(addresses) < MANY:
            for value, address in zip(self._places, addresses, strict=True):
                self.set(value, address)
        else:
            found = np.array(addresses, np.uint64)
            for pointers, at, which, offsets in self._columns:
                pointers[at] = found[which] + offsets
