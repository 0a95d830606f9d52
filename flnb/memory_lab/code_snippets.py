"""Remedies as lines of code to paste, such as `use_memory_manager` with a manager on a device of the same capacity."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flnb.dispatch import registry
from flnb.interface.device import default_device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flnb.interface.memory import Lease

__all__ = ["lean", "manager"]


def manager(kind: type, told: Mapping[str, Any], lease: Lease, capacity: int) -> str | None:
    """Return the line of code that activates a manager like the recorded one, or None if one line cannot express it.

    Args:
        told: the manager's settings.
        capacity: of the device in bytes; None for the machine's own memory.
    """
    if not all(value is None or isinstance(value, (str, int, float)) for value in told.values()):
        return None
    shipped = registry.SHIPPED["memory manager"]
    name = next((key for key, at in shipped.items() if at == f"{kind.__module__}:{kind.__name__}"), None)
    if lease.device is default_device() and name is not None:
        options = ",".join(f"{key}={value}" for key, value in told.items() if value is not None)
        return f'flnb.use_memory_manager("{name}{":" * bool(options)}{options}")'
    device = "" if lease.device is default_device() else f"{_called(type(lease.device))}({_size(capacity)})"
    settings = [f"{key}={json.dumps(value)}" for key, value in told.items() if value is not None]
    return f"flnb.use_memory_manager({_called(kind)}({', '.join([device] * bool(device) + settings)}))"


def lean(models: tuple[str, ...], method: str, scopes: tuple[str, ...]) -> str:
    """Return the line that runs steps with modules recomputed or offloaded (`flnb.memory.lean`).

    Args:
        models: variables of modules; "*" before one that holds several.
        method: "recompute" or "offload"; scopes: of what.
    """
    alone = len(models) == 1 and not models[0].endswith(")")
    model = models[0].removeprefix("*") if alone else f"[{', '.join(models)}]"
    return f"flnb.memory.lean({model}, {method}={json.dumps(list(scopes))})"


def _called(kind: type) -> str:
    """Return the name by which a notebook cell reaches a class: flnb's own through flnb, others by their bare name."""
    return f"flnb.memory.{kind.__name__}" if kind.__module__.startswith("flnb_backends.") else kind.__name__


def _size(nbytes: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes and not nbytes % (1 << shift):
            return f'"{nbytes >> shift}{unit}"'
    return str(nbytes)
