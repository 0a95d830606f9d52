"""Remedies of a post-mortem as code that a cell can run."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, NamedTuple

import flnb
from flnb.dispatch import registry
from flnb.dispatch.state import current

if TYPE_CHECKING:
    from flnb.memory.postmortem import Postmortem

__all__ = ["Action", "action"]

_MANAGER = re.compile(r"(?P<name>[A-Za-z_]\w*)\((?P<told>.*)\)")
_REGISTERED = re.compile(r"flnb\.use_memory_manager\(\"(?P<name>[\w-]+)\"\)")
NOTE = "  # for tensors made from now on: run again from where the model is made"


class Action(NamedTuple):
    """Code for a cell, "" where a remedy has none; whether it runs as it is, without the reader's names put in."""

    code: str
    runs: bool = False


def action(what: str, report: Postmortem) -> Action:
    """What a remedy (`flnb.memory.remedies.Remedy.what`) is as code.

    >>> import flnb
    >>> manager = flnb.memory.Caching(flnb.memory.SimulatedDevice("8MiB"))
    >>> try:
    ...     flnb.memory.allocate(manager, 16 << 20)
    ... except flnb.memory.OutOfMemoryError as error:
    ...     report = error.report
    >>> print(action('Caching(split_limit="2MiB")', report).code.partition("  #")[0])
    flnb.set_memory_manager(flnb.memory.Caching(flnb.memory.SimulatedDevice(8388608), split_limit="2MiB"))
    """
    if what.startswith("del ") and ";" not in what:
        names = [name.strip() for name in what[4:].split(",")]
        return Action(what, all(name in vars(sys.modules["__main__"]) for name in names))
    if what == "flnb.memory.release_cached()":
        return Action(what, current().manager is report.shortage.manager)
    if found := _REGISTERED.fullmatch(what):
        kind = registry.find("memory manager", found["name"])
        return _managed(kind.__name__, "", report) or Action(f'flnb.set_memory_manager("{found["name"]}"){NOTE}')
    if found := _MANAGER.fullmatch(what):
        return _managed(found["name"], found["told"], report) or Action("")
    return Action(what if what.startswith(("with ", "flnb.")) else "")


def _managed(name: str, told: str, report: Postmortem) -> Action | None:
    """A manager of flnb's on a device like the one that was full; None where either is not flnb's."""
    lent = report.shortage.manager.device.device
    device = type(lent).__name__
    ours = all(hasattr(flnb.memory, one) for one in (name, device))
    if not ours or not isinstance(lent, getattr(flnb.memory, device)) or report.capacity is None:
        return None
    made = ", ".join(part for part in (f"flnb.memory.{device}({report.capacity})", told) if part)
    return Action(f"flnb.set_memory_manager(flnb.memory.{name}({made})){NOTE}", True)
