"""Lines of code for the user to paste, each of which applies a remedy for a lack of memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flnb.dispatch import registry
from flnb.interface.device import default_device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flnb.interface.memory import Lease


def manager(
    kind: type, settings: Mapping[str, Any], lease: Lease, capacity: int, function: str = "use_memory_manager"
) -> str | None:
    """Return the line of code that activates a manager with given settings; None if one line is not enough.

    Args:
        kind: the manager's class.
        settings: the manager's settings by name.
        lease: the manager's lease, which contains the device.
        capacity: the capacity of the device in bytes; used only if the device is not the default device.
        function: the name of flnb's function to call with the manager.
    """
    if not all(value is None or isinstance(value, (str, int, float)) for value in settings.values()):
        return None
    shipped = registry.SHIPPED["memory manager"]
    name = next((key for key, at in shipped.items() if at == f"{kind.__module__}:{kind.__name__}"), None)
    if lease.device is default_device() and name is not None:
        options = ",".join(f"{key}={value}" for key, value in settings.items() if value is not None)
        return f'flnb.{function}("{name}{":" * bool(options)}{options}")'
    device = "" if lease.device is default_device() else f"{_called(type(lease.device))}({_size(capacity)})"
    given = [f"{key}={json.dumps(value)}" for key, value in settings.items() if value is not None]
    return f"flnb.{function}({_called(kind)}({', '.join([device] * bool(device) + given)}))"


def lean(models: tuple[str, ...], method: str, scopes: tuple[str, ...]) -> str:
    """Return the call of `flnb.memory.lean` that recomputes or offloads modules.

    Args:
        models: expressions for the models, such as "net"; "*layers" for a variable with a list of models.
        method: "recompute" or "offload".
        scopes: the modules' names in recordings, such as "net.block1".
    """
    alone = len(models) == 1 and not models[0].endswith(")")
    model = models[0].removeprefix("*") if alone else f"[{', '.join(models)}]"
    return f"flnb.memory.lean({model}, {method}={json.dumps(list(scopes))})"


def _called(kind: type) -> str:
    """Return a class's name in a notebook cell: ``flnb.memory.Name`` for flnb's own, else the bare name."""
    return f"flnb.memory.{kind.__name__}" if kind.__module__.startswith("flnb_backends.") else kind.__name__


def _size(nbytes: int) -> str:
    """Return code for a number of bytes: a string literal such as ``"64MiB"`` if that is exact, else digits."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes and not nbytes % (1 << shift):
            return f'"{nbytes >> shift}{unit}"'
    return str(nbytes)
