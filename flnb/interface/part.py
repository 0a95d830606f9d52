"""Parts: objects that can be exchanged at run time, such as tensor backend, memory manager, device and tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, ClassVar

__all__ = ["CONTRACTS", "Part"]

CONTRACTS: dict[str, type[Part]] = {}
"""The contract (base class) of every kind of part, by the kind: ``"backend"``, ``"memory manager"``, ..."""

redefined: list[Callable[[type], None]] = []
"""Functions that are called with every new subclass of a contract, so that running a cell again replaces its class."""


class Part:
    """Base of the contracts: a contract names a kind of part; classes that derive from it are implementations.

    A new kind needs no more than a contract: `flnb.dispatch.parts.use_part` then makes its parts active for a block,
    given by name, class or instance, and an active part gets the new code if its class is defined again.

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
        kind: the name of the kind in messages and in `use_part`.
        slot: the name by which `flnb.dispatch.state.State` stores the active part of this kind; else the kind.
        group: the entry-point group in which installed distributions offer implementations.
        name: the name of an implementation; the class's own unless it sets another.
        required: names of the contract's methods that every implementation must define.
        shorthand: the setting that a text without ``=`` is for: ``"cuda:1"`` is ``"cuda:ordinal=1"``.
    """

    kind: ClassVar[str] = ""
    slot: ClassVar[str] = ""
    group: ClassVar[str] = ""
    name: ClassVar[str]
    required: ClassVar[tuple[str, ...]] = ()
    shorthand: ClassVar[str]

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
        """Adapt a state (`flnb.dispatch.state.State`) in which this part has just been activated."""

    def lacks(self, method: str, required: Sequence[str] = ()) -> NotImplementedError:
        """Make the error for calling a method that the class of this part does not define.

        Args:
            required: names of all required methods; by default those in `required`.
        """
        contract = CONTRACTS[self.kind]
        inherited: dict[str, Any] = {name: getattr(contract, name, None) for name in required or self.required}
        missing = [name for name, found in inherited.items() if getattr(type(self), name, None) is found]
        names = list(signature(inherited[method]).parameters) if inherited.get(method) else ["self", "..."]
        more = f" and {len(missing) - 12} more" if len(missing) > 12 else ""
        return NotImplementedError(
            f"{self.kind} {self.name!r} does not implement {method!r}: define {method}({', '.join(names)}) in its "
            f"class, or derive that from one that has it. It lacks {len(missing)} of the {len(inherited)} methods that "
            f"flnb.interface.{contract.__name__} requires: {', '.join(missing[:12])}{more}"
        )
