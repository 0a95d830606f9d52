"""Names, contexts and plans become small integers once, so that a record holds nothing but integers.

The tables are append-only and shared by all threads and recordings of the process; id 0 means "none".
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Plan(NamedTuple):
    """What one (op, shapes, dtypes) signature gives: the static half of every op event of that signature."""

    op: str
    family: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    flops: int = 0
    inputs: tuple[tuple[int, ...], ...] = ()


class Context(NamedTuple):
    """Where an event happened: the dotted scope path and the phase (index into `schema.PHASES`)."""

    scope: str
    phase: int


class Table(Generic[T]):
    """An append-only table: `id_of(value)` gives the same number for equal values, `items[number]` gives it back."""

    __slots__ = ("_lock", "_make", "ids", "items")

    def __init__(self, none: T, make: Callable[[Any], T] = lambda value: value) -> None:
        self._make = make
        self.items: list[T] = [none]
        self.ids: dict[T, int] = {none: 0}
        self._lock = threading.Lock()

    def id_of(self, value: Any) -> int:
        """The id of a hashable value (a tuple may stand for a named one), a new one if never seen. Safe in threads."""
        number = self.ids.get(value)
        if number is None:
            with self._lock:
                number = self.ids.get(value)
                if number is None:
                    number = len(self.items)
                    self.items.append(self._make(value))
                    self.ids[value] = number  # last: whoever reads the id finds the item
        return number

    def __len__(self) -> int:
        return len(self.items)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # the parent's may have been held by a thread that does not exist here


strings: Table[str] = Table("")
contexts: Table[Context] = Table(Context("", 0), Context._make)
plans: Table[Plan] = Table(Plan("", "", (), "", 0), Plan._make)


def _after_fork() -> None:
    for table in (strings, contexts, plans):
        table._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
