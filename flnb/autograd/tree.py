"""Nested containers of arguments and results: dicts, lists, tuples and named tuples, here called trees.

Every other object in a tree is a leaf, except None, which is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def leaves(tree: Any) -> list[Any]:
    """Return a list of the leaves of a tree, in order.

    >>> leaves({"a": 1, "b": (2, [3], None)})
    [1, 2, 3]
    """
    if tree is None:
        return []
    if isinstance(tree, dict):
        return [leaf for child in tree.values() for leaf in leaves(child)]
    if isinstance(tree, (list, tuple)):
        return [leaf for child in tree for leaf in leaves(child)]
    return [tree]


def rebuild(tree: Any, values: Iterable[Any]) -> Any:
    """Return nested containers like those of ``tree``, with leaves taken in order from ``values``.

    >>> rebuild({"a": 1, "b": (2, [3])}, "xyz")
    {'a': 'x', 'b': ('y', ['z'])}
    """
    return _rebuilt(tree, iter(values))


def _rebuilt(tree: Any, values: Iterator[Any]) -> Any:
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: _rebuilt(child, values) for key, child in tree.items()}
    if isinstance(tree, (list, tuple)):
        children = [_rebuilt(child, values) for child in tree]
        return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)
    return next(values)


def spread(prefix: Any, tree: Any, what: str) -> list[Any]:
    """Return a list with a value from ``prefix`` for each leaf of ``tree``.

    ``prefix`` is a tree with the structure of ``tree``, but may have a single value in place of a container; this value
    is used for all leaves in that container.

    >>> spread((0, {"w": 1, "b": None}), ("x", {"w": "y", "b": ["z", "z"]}), "in_axes")
    [0, 1, None, None]

    Raises:
        ValueError: the containers do not match; the message begins with ``what``.
    """
    if isinstance(prefix, dict):
        if not isinstance(tree, dict) or prefix.keys() != tree.keys():
            got = f"the keys {list(tree)}" if isinstance(tree, dict) else f"a {type(tree).__name__}"
            raise ValueError(f"{what}: got the keys {list(prefix)} for {got}; expected the same keys, or one value")
        return [value for key, child in tree.items() for value in spread(prefix[key], child, what)]
    if isinstance(prefix, (list, tuple)):
        if not isinstance(tree, (list, tuple)) or len(prefix) != len(tree):
            got = f"{len(tree)} values" if isinstance(tree, (list, tuple)) else f"a {type(tree).__name__}"
            raise ValueError(f"{what}: got {len(prefix)} entries {prefix!r} for {got}; give one for each, or for all")
        return [value for p, child in zip(prefix, tree, strict=True) for value in spread(p, child, what)]
    return [prefix] * len(leaves(tree))
