"""Backends that count the calls of methods, which counts as overriding them."""

from __future__ import annotations

from collections import Counter
from typing import Any


def counting(base: type, *names: str) -> Any:
    """A subclass of a backend that counts the calls of the methods ``names`` in its attribute ``calls``."""

    def __init__(self: Any) -> None:
        base.__init__(self)
        self.calls = Counter(dict.fromkeys(names, 0))

    def counted(name: str) -> Any:
        def method(self: Any, *arguments: Any) -> Any:
            self.calls[name] += 1
            return getattr(super(made, self), name)(*arguments)  # which may be a ufunc, that takes no self

        return method

    made: Any = type(f"Counting{base.__name__}", (base,), {"__init__": __init__, **{x: counted(x) for x in names}})
    return made
