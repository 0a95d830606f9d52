"""Parts: what can be swapped while flnb runs, such as the tensor backend, the memory manager and the tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

__all__ = ["CONTRACTS", "Part"]

CONTRACTS: dict[str, type[Part]] = {}
"""The contract of every kind of part, by its kind."""

redefined: list[Callable[[type], None]] = []
"""Called with every new subclass of a contract: how re-running a cell replaces the class in use."""


class Part:
    """Base of the contracts. A contract names its kind; classes that derive from it implement it.

    That is all a new kind of part needs: `flnb.dispatch.parts` makes it from names, classes and instances, swaps it
    for a block or for the session, and replaces the active instance's code if its class is defined again.

    >>> import flnb
    >>> from flnb.dispatch import parts, state
    >>> class Greeter(flnb.interface.Part, kind="greeter"):
    ...     greeting = "hello"
    >>> class Polite(Greeter):
    ...     greeting = "good morning"
    >>> with parts.use_part("greeter", Polite):
    ...     state.current().parts["greeter"].greeting
    'good morning'

    Attributes:
        kind: its name in messages and in `use_part`.
        slot: the name under which a state holds it; the kind, unless the contract has another.
        group: the entry points of installed distributions that offer implementations.
        name: of an implementation, the class name where none is given.
    """

    kind: ClassVar[str] = ""
    slot: ClassVar[str] = ""
    group: ClassVar[str] = ""
    name: ClassVar[str]

    def __init_subclass__(cls, *, kind: str = "", slot: str = "", group: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if kind:
            cls.kind, cls.slot, cls.group = kind, slot or kind, group or f"flnb.{kind.replace(' ', '_')}s"
            CONTRACTS[kind] = cls
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        for notify in redefined:
            notify(cls)

    def attach(self, state: Any) -> None:
        """Set what follows for a state (`flnb.dispatch.state.State`) in which this part has just become active."""
