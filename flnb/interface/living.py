"""A collection of weak references by key, which runs no Python code when an object is deleted."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class Living(Generic[T]):
    """A dict of weak references to objects, by key: an object disappears when nothing else refers to it.

    Unlike the classes of `weakref`, it runs no Python code when an object is deleted, because CPython would ignore a
    Ctrl-C that arrives during such code.

    >>> class Thing: ...
    >>> things, one = Living(), Thing()
    >>> things.add(one, "first")
    >>> things.get("first") is one, len(list(things))
    (True, 1)
    >>> del one
    >>> things.get("first"), list(things)
    (None, [])
    """

    def __init__(self) -> None:
        self._refs: dict[Any, weakref.ref[Any]] = {}

    def add(self, item: T, key: Any = None) -> None:
        """Add an object under a key, which is by default the object's `id`."""
        key = id(item) if key is None else key
        self._refs[key] = weakref.ref(item, partial(self._refs.pop, key))

    def get(self, key: Any) -> T | None:
        """Return the object of a key, None if there is none or it no longer exists."""
        ref = self._refs.get(key)
        return None if ref is None else ref()

    def __iter__(self) -> Iterator[T]:
        for ref in list(self._refs.values()):
            item = ref()
            if item is not None:
                yield item
