"""Registry of parts (backends, memory managers, ...) by name: parts of flnb and of other installed packages."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

from flnb.dispatch.brief import brief
from flnb.interface.part import CONTRACTS

SHIPPED = {
    "backend": {
        "numpy": "flnb_backends.tensor.numpy:NumpyBackend",
        "meta": "flnb_backends.tensor.meta:MetaBackend",
        "deferred": "flnb_backends.tensor.deferred:DeferredBackend",
        "cpu": "flnb_backends.tensor.cpu:CpuBackend",
        "cuda": "flnb_backends.tensor.cuda.backend:CudaBackend",
    },
    "memory manager": {
        "native": "flnb_backends.memory.native:Native",
        "caching": "flnb_backends.memory.caching:Caching",
        "exact": "flnb_backends.memory.teaching.exact:ExactFit",
        "expandable": "flnb_backends.memory.expandable:Expandable",
        "best-fit": "flnb_backends.memory.best_fit:BestFit",
        "buddy": "flnb_backends.memory.teaching.buddy:Buddy",
        "slab": "flnb_backends.memory.teaching.slab:Slab",
        "planned": "flnb_backends.memory.planned:Planned",
        "reserved": "flnb_backends.memory.reserved:Reserved",
        "by-category": "flnb_backends.memory.teaching.by_category:ByCategory",
    },
    "memory device": {
        "host": "flnb_backends.memory.host:HostDevice",
        "simulated": "flnb_backends.memory.simulated:SimulatedDevice",
        "cuda": "flnb_backends.memory.cuda:CudaDevice",
    },
    "communicator": {
        "single": "flnb_backends.comm.single:Single",
        "mpi": "flnb_backends.comm.mpi:Mpi",
        "modelled": "flnb_backends.comm.modelled:Modelled",
    },
    "tape": {
        "linked": "flnb.autograd.tape:Linked",
        "arena": "flnb.autograd.teaching.arena:Arena",
        "pruning": "flnb.autograd.teaching.pruning:Pruning",
        "prefused": "flnb.autograd.teaching.prefused:Prefused",
    },
}
"""A copy of flnb's entry points in pyproject.toml (a test compares them); reading installed metadata takes 20 ms."""


def _offered(kind: str) -> dict[str, str]:
    """Return the parts of a kind by name, each as the text "module:class" of an installed entry point."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=CONTRACTS[kind].group)} | SHIPPED.get(kind, {})


def names(kind: str) -> list[str]:
    """List all names of parts of a kind, such as ``"memory manager"``."""
    return sorted(_offered(kind))


def find(kind: str, name: str) -> type:
    """Return the class of a part, given its kind, such as ``"backend"``, and its name.

    Raises:
        ValueError: the name is unknown; the message lists those that are known.
    """
    value = SHIPPED.get(kind, {}).get(name) or _offered(kind).get(name)
    if value is None:
        meant = get_close_matches(name, names(kind), 1)
        hint = f"; did you mean {meant[0]!r}?" if meant else ""
        raise ValueError(f"unknown {kind} {brief(name)}; known: {', '.join(names(kind))}{hint}")
    module, _, attribute = value.partition(":")
    return getattr(import_module(module), attribute)


def parsed(kind: str, text: str) -> tuple[type, dict[str, str]]:
    """Split a name such as ``"caching:split_limit=64MiB,recycling_limit=1GiB"`` into the class and a dict of settings.

    ``kind`` is the kind of part that is named, such as "memory manager".

    Raises:
        ValueError: the name or a setting is unknown, or a setting is given twice; the message lists the known ones.
    """
    name, _, options = text.partition(":")
    found = find(kind, name)
    known = [
        setting
        for setting, parameter in signature(found.__init__).parameters.items()  # type: ignore[misc]
        if setting not in ("self", "device") and parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    given: dict[str, str] = {}
    for option in filter(str.strip, options.split(",")):
        if "=" not in option and hasattr(found, "shorthand"):
            option = f"{found.shorthand}={option}"
        setting, value = (part.strip() for part in option.partition("=")[::2])
        has = (
            f"has no setting {brief(setting)}" if setting not in known
            else f"needs a value for {brief(setting)}" if not value
            else f"is given {setting!r} twice, {brief(given[setting])} and {brief(value)}" if setting in given
            else ""
        )  # fmt: skip
        if has:
            raise ValueError(f"{brief(text)}: {name} {has}; its settings: {', '.join(known) or 'none'}")
        given[setting] = value
    return found, given


def make(kind: str, what: Any) -> Any:
    """Return an instance of a part of a kind, given its name (settings may follow, see `parsed`), class or instance.

    Raises:
        ValueError: the name or a setting is unknown; the message lists those that are known.
        TypeError: ``what`` is something else, or a class whose constructor needs arguments.
    """
    expected = CONTRACTS[kind]
    if isinstance(what, str):
        found, given = parsed(kind, what)
        what = found(**given)
    if isinstance(what, type) and issubclass(what, expected):
        what = what()
    if not isinstance(what, expected):
        raise TypeError(
            f"expected the name, the class or an instance of a {kind} (a subclass of {_public(expected)}), got "
            f"{brief(what)}"
        )
    return what


def _public(contract: type) -> str:
    """Return the public name of the class that defines a kind of part: ``flnb.interface.NAME``."""
    module = contract.__module__
    return f"{'flnb.interface' if module.startswith('flnb.interface.') else module}.{contract.__name__}"
