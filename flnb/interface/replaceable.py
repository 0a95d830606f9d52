"""The common base of tensor backends, memory managers and tapes: a name, and new code by running their cell again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

__all__ = ["Replaceable"]

redefined: list[Callable[[type], None]] = []
"""Called with every new subclass of an interface: how re-running a cell replaces the class in use."""


class Replaceable:
    """A part that can be replaced; a class without a name is known by its own."""

    name: ClassVar[str]

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        for notify in redefined:
            notify(cls)
