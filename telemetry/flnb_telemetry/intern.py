"""Names, contexts and plans become small integers once, so that a record holds nothing but integers.

The tables are append-only and shared by all threads and recordings of the process; id 0 means "none". A `Catalog` is
their view as arrays, so that columns of plan and context ids can be looked up all at once.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from flnb_telemetry import schema
from flnb_telemetry.safe_text import safe_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from flnb_telemetry.schema import Ints

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
    saved: int = 0  # bytes that its node keeps for backward, where every input needs a gradient


class Context(NamedTuple):
    """Where an event happened: the dotted scope path and the phase (index into `schema.PHASES`)."""

    scope: str
    phase: int


class Frame(NamedTuple):
    """One line of a call stack; what flnb itself writes has a shape, dtype and phase as well."""

    name: str
    filename: str
    line: int
    about: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}:{self.name}"


class Table(Generic[T]):
    """An append-only table: `id_of(value)` gives the same number for equal values, `items[number]` gives it back."""

    __slots__ = ("_make", "ids", "items")

    def __init__(self, items: list[T], make: Callable[[Any], T] = lambda value: value) -> None:
        self._make = make
        self.items = items
        self.ids = {item: number for number, item in enumerate(items)}

    def id_of(self, value: Any) -> int:
        """The id of a hashable value (a tuple may stand for a named one), a new one if never seen. Safe in threads."""
        number = self.ids.get(value)
        if number is not None:
            return number
        with _lock:
            if value not in self.ids:
                self.items.append(self._make(value))
                self.ids[value] = len(self.items) - 1  # last: whoever reads the id finds the item
            return self.ids[value]

    def __len__(self) -> int:
        return len(self.items)


strings = Table([""])
contexts = Table([Context("", 0)], Context._make)
plans = Table([Plan("", "", (), "", 0)], Plan._make)

NONE = np.empty((2, 0), np.int64)
LONGEST = 400  # characters of a name, or of a line, that a browser gets
MOST = 2**63 - 1  # bytes that fit in a column: a plan may ask for more, and fail


class Catalog:
    """Three intern tables and, for each plan and context id, what an analysis groups by (as ids of `strings`).

    `refresh` takes in what was interned since; the process's own tables are used when none are given. `stacks` has call
    stacks by context, where they are known.
    """

    def __init__(
        self, strings: Table[str] = strings, plans: Table[Plan] = plans, contexts: Table[Context] = contexts
    ) -> None:
        self.strings, self.plans, self.contexts = strings, plans, contexts
        self.stacks: dict[int, tuple[Frame, ...]] = {}
        self.op, self.family, self.nbytes, self.saved = np.empty((4, 0), np.int64)
        self.scope, self.phase = np.empty((2, 0), np.int64)
        self.refresh()

    def refresh(self) -> None:
        """Extend the arrays to the tables' present length."""
        name = self.strings.id_of
        plans = self.plans.items[len(self.op) :]
        if fresh := [(name(p.op), name(p.family), min(p.nbytes, MOST), min(p.saved, MOST)) for p in plans]:
            known = np.array([self.op, self.family, self.nbytes, self.saved])
            self.op, self.family, self.nbytes, self.saved = np.concatenate([known, np.array(fresh).T], axis=1)
        if new := [(name(c.scope), c.phase) for c in self.contexts.items[len(self.scope) :]]:
            known = np.array([self.scope, self.phase])
            self.scope, self.phase = np.concatenate([known, np.array(new).T], axis=1)

    def told(self, name: str, first: int = 0) -> list[Any]:
        """The items of a table ("strings", "plans", "contexts") from number `first` on, as JSON, safe to show."""
        items: list[Any] = list(getattr(self, name).items[first:])
        if name == "plans":
            keys = ("op", "family", "shape", "dtype", "nbytes")
            return [dict(zip(keys, (_shown(op), *plan), strict=False)) for op, *plan in items]
        if name == "contexts":
            return [{"scope": _shown(scope), "phase": schema.PHASES[phase]} for scope, phase in items]
        return list(map(_shown, items))

    def named(self, ids: NDArray[Any]) -> NDArray[Any]:
        """The strings of string ids, as an object array."""
        found: NDArray[Any] = np.array(self.strings.items, object)[ids]
        return found

    def places(self, context: Ints, node: Ints, earlier: Ints = NONE) -> tuple[Ints, Ints, Ints]:
        """The scope (string id) and phase of ops, and the (node, scope) pairs, shape (2, n), of the forward ones.

        The phase is what user code said, else forward for what made a tape node. An op of the backward phase works for
        a tape node: it belongs to the scope of that node's forward op, if that is among these or the `earlier` pairs.
        """
        scope, phase = self.scope[context], self.phase[context]
        phase[(phase == 0) & (node > 0)] = schema.FORWARD
        back = phase == schema.BACKWARD
        ahead = np.concatenate([earlier, np.array([node, scope])[:, ~back & (node > 0)]], axis=1)
        scope[back] = joined(node[back], ahead[0], ahead[1], scope[back])
        return scope, phase, ahead


def _shown(name: str) -> str:
    return safe_lines(name, LONGEST)


def joined(ids: Ints, keys: Ints, values: Ints, otherwise: Any = 0) -> Ints:
    """The value of each id, `otherwise` where `keys` lacks it; of equal keys the first counts."""
    if not len(keys) or not len(ids):
        return np.broadcast_to(np.asarray(otherwise, np.int64), len(ids)).copy()
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    slot = np.minimum(np.searchsorted(keys, ids), len(keys) - 1)
    found: Ints = np.where(keys[slot] == ids, values[order[slot]], otherwise)
    return found


if hasattr(os, "register_at_fork"):  # else a thread that the child lacks could hold the lock there for ever
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
