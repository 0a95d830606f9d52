"""Tables that assign small integer ids to names, contexts, plans and the like, so that records need only integers.

The tables only grow and are shared by all threads and recordings of the process; id 0 means "none". A `Catalog` has
the content of the tables as arrays, so that whole columns of ids can be looked up at once.
"""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from flnb_telemetry import device_words, quantity, schema
from flnb_telemetry.safe_text import safe_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from flnb_telemetry.schema import Ints

_NATIVE = re.compile(r"^(\?\?)?$|\.(c|cc|cpp|cxx|cu|cuh|h|hh|hpp|inl|so[.\d]*)$", re.IGNORECASE)
T = TypeVar("T")
_lock = threading.Lock()


class Plan(NamedTuple):
    """An op on inputs of certain shapes and dtypes: the facts common to all its events.

    `shape`, `dtype` and `nbytes` are those of the result; `inputs` are the shapes of the inputs.
    """

    op: str
    family: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    flops: int = 0
    inputs: tuple[tuple[int, ...], ...] = ()
    saved: int = 0  # bytes that its tape node stores for the backward pass if every input needs a gradient


class Context(NamedTuple):
    """The scope path ("net.block1") and the phase (index into `schema.PHASES`) in which an event happened.

    `device` is "" for the host, else a place such as "cuda:0"; `stream` is the number of the device's stream, 0 for the
    default one. `line` is the user's line as text ("train.py:12: y = x * w"), "" if unknown; if call stacks are
    recorded, the lines of the callers follow it.
    """

    scope: str
    phase: int
    device: str = ""
    stream: int = 0
    line: str = ""

    @property
    def innermost(self) -> str:
        """The user's line, without the lines of its callers."""
        return self.line.partition("\n")[0]


class GroupInfo(NamedTuple):
    """A group of ranks as seen by one member: the group's name and size, and the member's number, host and process."""

    name: str
    rank: int
    size: int
    host: str
    process: int


class Frame(NamedTuple):
    """One frame of a call stack: the name of the function, the name of the file, and the number of the line.

    In memory snapshots for PyTorch that flnb has exported, a frame can also describe the allocated tensor: then `about`
    is (shape, dtype, phase, line), in files by earlier versions without the line. For other frames `about` is empty.
    """

    name: str
    filename: str
    line: int
    about: tuple[Any, ...] = ()

    @property
    def native(self) -> bool:
        """Whether the frame is one of C or C++: its file is unknown ("??"), a library or a source of these two."""
        return _NATIVE.search(self.filename) is not None

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}:{self.name}"


class Table(Generic[T]):
    """A table that only grows: `id_of(value)` returns the number of a value, `items[number]` is its item.

    Args:
        items: the first items, numbered from 0; of equal items, `id_of` returns the number of the first.
        make: a function that converts a new value to the item to store; values with equal items have equal numbers.
    """

    __slots__ = ("_make", "ids", "items")

    def __init__(self, items: list[T], make: Callable[[Any], T] = lambda value: value) -> None:
        self._make = make
        self.items = items
        self.ids = {items[number]: number for number in reversed(range(len(items)))}

    def id_of(self, value: Any) -> int:
        """Return the id of a hashable value, which is added if it is new. Threads may call this at the same time."""
        number = self.ids.get(value)
        if number is not None:
            return number
        with _lock:
            if value not in self.ids:
                item = self._make(value)
                if item not in self.ids:
                    self.items.append(item)
                    self.ids[item] = len(self.items) - 1  # last: a thread that finds the id must find the item
                self.ids[value] = self.ids[item]
            return self.ids[value]

    def append(self, item: T) -> int:
        """Append an item, even if an equal one exists, and return its number."""
        with _lock:
            self.items.append(item)
            return len(self.items) - 1

    def __len__(self) -> int:
        return len(self.items)


strings = Table([""])
contexts = Table([Context("", 0)], lambda value: Context(*value))
plans = Table([Plan("", "", (), "", 0)], Plan._make)
groups = Table([GroupInfo("", 0, 1, "", 0)], GroupInfo._make)
_contexts = contexts
kernels, devices = (Table([first]) for first, *_ in device_words.TABLES.values())

stacks: dict[int, tuple[Frame, ...]] = {}
"""Call stacks by context id, for contexts with a recorded stack; the innermost frame is the first."""
NONE = np.empty((2, 0), np.int64)
LONGEST = 400  # characters of a name, or of a line, that are sent to a browser
MOST = 2**63 - 1  # the most bytes that fit in a column: an op that fails may ask for more


class Catalog:
    """The tables of strings, plans, contexts and others, and arrays of their fields, indexed by plan id and context id.

    The arrays `op`, `family`, `shape`, `nbytes` and `saved` have an entry for each plan. The arrays `scope`, `phase`,
    `line` and `stack` have an entry for each context. Names, lines and shapes in them are string ids. `refresh` adds
    entries for new items of the tables. Without arguments, the tables of this process are used. `stacks` has call
    stacks by context id.
    """

    def __init__(
        self, strings: Table[str] = strings, plans: Table[Plan] = plans, contexts: Table[Context] = contexts
    ) -> None:
        self.strings, self.plans, self.contexts, self.groups = strings, plans, contexts, groups
        self.kernels, self.devices = kernels, devices
        self.stacks: dict[int, tuple[Frame, ...]] = stacks if contexts is _contexts else {}
        self.op, self.family, self.shape, self.nbytes, self.saved = np.empty((5, 0), np.int64)
        self.scope, self.phase, self.line, self.stack = np.empty((4, 0), np.int64)
        self.refresh()

    def refresh(self) -> None:
        """Extend the arrays to the current length of the tables."""
        name = self.strings.id_of
        plans = self.plans.items[len(self.op) :]
        if fresh := [
            (name(p.op), name(p.family), name(quantity.extents(p.shape)), min(p.nbytes, MOST), min(p.saved, MOST))
            for p in plans
        ]:
            known = np.array([self.op, self.family, self.shape, self.nbytes, self.saved])
            known = np.concatenate([known, np.array(fresh).T], axis=1)
            self.op, self.family, self.shape, self.nbytes, self.saved = known
        if new := [
            (name(c.scope), c.phase, name(c.innermost), name(c.line)) for c in self.contexts.items[len(self.scope) :]
        ]:
            known = np.array([self.scope, self.phase, self.line, self.stack])
            self.scope, self.phase, self.line, self.stack = np.concatenate([known, np.array(new).T], axis=1)

    def to_json(self, name: str, first: int = 0) -> list[Any]:
        """Return the items of table `name` from number `first` on, for JSON; control characters are escaped."""
        items: list[Any] = list(getattr(self, name).items[first:])
        if name == "plans":
            keys = ("op", "family", "shape", "dtype", "nbytes")
            return [dict(zip(keys, (_shown(op), *plan), strict=False)) for op, *plan in items]
        if name == "contexts":
            return [
                {"scope": _shown(one.scope), "phase": schema.PHASES[one.phase]}
                | ({"line": _shown(one.innermost)} if one.line else {})
                for one in items
            ]
        return list(map(_shown, items))

    def named(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Return the strings with the given ids as an object array."""
        return np.array(self.strings.items, object)[ids]

    def places(self, context: Ints, node: Ints, earlier: Ints = NONE) -> tuple[Ints, Ints, Ints]:
        """Return the scope (string id) and the phase of each op.

        Ops outside of all phases count as "forward" if they made a tape node. Ops of the backward phase belong to the
        scope of the forward op that made their tape node, if it is known.

        Args:
            context: the context id of each op.
            node: the tape node of each op, 0 for none.
            earlier: pairs (node, scope) of earlier forward ops, shape (2, n).

        Returns:
            Scopes, phases, and the pairs (node, scope) of all forward ops including the earlier ones.
        """
        scope, phase = self.scope[context], self.phase[context]
        phase[(phase == 0) & (node > 0)] = schema.FORWARD
        back = phase == schema.BACKWARD
        ahead = np.concatenate([earlier, np.array([node, scope])[:, ~back & (node > 0)]], axis=1)
        scope[back] = joined(node[back], ahead[0], ahead[1], scope[back])
        return scope, phase, ahead


def _shown(name: str) -> str:
    return safe_lines(name, LONGEST)


def located(keys: Ints, ids: Ints, sort: bool = False) -> tuple[Ints, NDArray[np.bool_]]:
    """Return for each id its index in `keys`, and whether `keys` contains the id.

    The keys must be ascending; with `sort` they may be in any order.
    """
    if not len(keys):
        return np.zeros(len(ids), np.int64), np.zeros(len(ids), np.bool_)
    if keys[-1] - keys[0] + 1 == len(keys) and not sort:  # without gaps
        found = (ids >= keys[0]) & (ids <= keys[-1])
        return np.where(found, ids - keys[0], 0), found
    order = np.argsort(keys, kind="stable") if sort and not (keys[1:] > keys[:-1]).all() else None
    ascending = keys if order is None else keys[order]
    at = np.minimum(np.searchsorted(ascending, ids), len(keys) - 1)
    found = ascending[at] == ids
    return (at if order is None else order[at]), found


def joined(ids: Ints, keys: Ints, values: Ints, otherwise: Any = 0) -> Ints:
    """Return the value of each id in a table of keys and values; `otherwise` (one value, or one an id) if it has none.

    If keys are equal, the value of the first one is returned.
    """
    if not len(keys):
        return np.full(len(ids), otherwise, np.int64)
    at, known = located(keys, ids, sort=True)
    return np.where(known, values[at], otherwise)


if hasattr(os, "register_at_fork"):  # else a thread that the child lacks could hold the lock there for ever
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
