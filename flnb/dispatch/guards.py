"""Guards: the objects besides its arguments on which a captured step depends, such as training flags and globals."""

from __future__ import annotations

from collections import deque
from operator import is_
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch.references import MISSING, find, is_mutable

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAIN = frozenset({bool, int, float, complex, str, bytes, MethodType})
MOST_ITEMS, MOST_BYTES = 100_000, 65_536
"""The most items of a container, and the most bytes of a NumPy array, that each call compares with a copy."""

Guard = tuple[Any, str | None, Any]
"""A tuple: a dict or object, a key or attribute of it, and the value at capture, copied if it can change in place.

If the key is None, the value is a copy of the first object, a container or an array inside of another object.
"""


def guarded(references: Iterable[tuple[Any, str | None]], grown: frozenset[int] = frozenset()) -> list[Guard]:
    """Return guards that store what attributes and names currently refer to.

    Args:
        references: pairs of a holder and a name, see `references.referred`.
        grown: ids of containers whose items are not compared, because the function itself changes them.
    """
    values = [(holder, name, find(holder, name)) for holder, name in references]
    return [(holder, name, value if id(value) in grown else _copied(value)) for holder, name, value in values]


def hold(guards: Iterable[Guard]) -> bool:
    """Return whether each guarded name still refers to the same object, or to an equal number, array or the like."""
    for holder, name, value in guards:
        now = holder.get(name, MISSING) if type(holder) is dict and name is not None else find(holder, name)
        if now is not value and not _same(now, value):
            return False
    return True


def changed(guards: Iterable[Guard]) -> frozenset[int]:
    """Return the ids of the containers whose items differ from those that the guards have copied."""
    pairs = [(find(holder, name), value) for holder, name, value in guards]
    return frozenset(id(now) for now, value in pairs if is_mutable(now) and now is not value and not _same(now, value))


def _copied(value: Any) -> Any:
    """Return a copy of a container's items (a dict or list), or of an array.

    Large containers and arrays, and objects of other types, are returned themselves.
    """
    if isinstance(value, np.ndarray):
        return np.array(value) if value.nbytes <= MOST_BYTES else value
    if not is_mutable(value) or len(value) > MOST_ITEMS:
        return value
    return dict(value) if isinstance(value, dict) else list(value)


def _same(now: Any, then: Any) -> bool:
    """Return whether the object ``now`` still equals ``then``, the copy (see `_copied`) of an earlier object.

    The items of containers may be the same objects, or equal numbers, texts or methods.
    """
    if isinstance(now, dict):
        return type(then) is dict and now.keys() == then.keys() and _same_items(now.values(), then.values())
    if isinstance(now, (list, set, deque)):
        return type(then) is list and len(now) == len(then) and _same_items(now, then)
    if isinstance(now, np.ndarray):
        described = type(then) is np.ndarray and now.dtype == then.dtype and now.shape == then.shape
        return described and now.nbytes <= MOST_BYTES and now.tobytes() == then.tobytes()
    return _same_plain(now, then)


def _same_items(now: Iterable[Any], then: Iterable[Any]) -> bool:
    return all(map(is_, now, then)) or all(map(_same_plain, list(now), then))  # another thread may add items meanwhile


def _same_plain(now: Any, then: Any) -> bool:
    """Return whether two objects are identical, or equal numbers, texts or methods; 0.0 and -0.0 are not equal."""
    if now is then:
        return True
    kind = type(now)
    if kind is not type(then) or kind not in PLAIN or now != then:
        return False
    return kind not in (float, complex) or repr(now) == repr(then)
