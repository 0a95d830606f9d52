"""Parts: objects that can be exchanged at run time, such as tensor backend, memory manager, device and tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, ClassVar

CONTRACTS: dict[str, type[Part]] = {}
"""The contract (base class) of every kind of part, by the name of the kind: ``"backend"``, ``"memory manager"``, ..."""

redefined: list[Callable[[type], None]] = []
"""Functions that are called with every new subclass of a contract, so that running a cell again replaces its class."""


class Part:
    """Base of the contracts. A contract is a class that names a kind of part; its subclasses are implementations.

    A new kind of part needs only a contract. Then `flnb.dispatch.parts.use_part` activates a part of that kind for a
    ``with`` block, given its name, class or instance. If the class of an active part is defined again (its notebook
    cell is run again), the part gets the new code.

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
        slot: the attribute of `flnb.dispatch.state.State` that stores the active part of this kind; by default the
            kind.
        group: the entry-point group by which installed packages provide implementations.
        name: the name of an implementation; by default the name of its class.
        required: the names of the contract's methods that every implementation must define.
        shorthand: the setting to which a value without a name belongs: if it is "ordinal", ``"cuda:1"`` means
            ``"cuda:ordinal=1"``.
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
        """Return the error for a call of a method that the class of this part does not define.

        Args:
            method: the name of the method.
            required: the names of all methods that must be defined; by default those of the attribute `required`.
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
