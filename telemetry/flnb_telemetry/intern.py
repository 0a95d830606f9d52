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
_lock = threading.Lock()


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

    __slots__ = ("_make", "ids", "items")

    def __init__(self, none: T, make: Callable[[Any], T] = lambda value: value) -> None:
        self._make = make
        self.items: list[T] = [none]
        self.ids: dict[T, int] = {none: 0}

    def id_of(self, value: Any) -> int:
        """The id of a hashable value (a tuple may stand for a named one), a new one if never seen. Safe in threads."""
        number = self.ids.get(value)
        if number is None:
            with _lock:
                number = self.ids.get(value)
                if number is None:
                    number = len(self.items)
                    self.items.append(self._make(value))
                    self.ids[value] = number  # last: whoever reads the id finds the item
        return number

    def __len__(self) -> int:
        return len(self.items)


strings: Table[str] = Table("")
contexts: Table[Context] = Table(Context("", 0), Context._make)
plans: Table[Plan] = Table(Plan("", "", (), "", 0), Plan._make)

if hasattr(os, "register_at_fork"):  # else a thread that the child lacks could hold the lock there for ever
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
