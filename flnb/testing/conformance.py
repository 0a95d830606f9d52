"""`flnb.testing.conformance`: the right kit for a part of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb.dispatch import registry
from flnb.interface import MemoryManager
from flnb.testing.backends import check_backend
from flnb.testing.managers import check_manager

if TYPE_CHECKING:
    from flnb.explore.report import Report

__all__ = ["conformance"]


def conformance(part: Any, **options: Any) -> Report:
    """Check a backend (`check_backend`) or a memory manager (`check_manager`), by name, class or instance.

    Args:
        part: the part; a manager by its name or class, as each check needs a fresh one.
        options: arguments of the kit: ``tolerance`` and ``dtypes``, or ``capacity``, ``examples`` and ``seed``.

    >>> import flnb.testing
    >>> report = flnb.testing.conformance("numpy")
    >>> bool(report), report["matmul"].passed
    (True, True)

    Raises:
        TypeError: an instance of a memory manager, or something that is neither.
    """
    if isinstance(part, str) and part in registry.names("memory manager"):
        return check_manager(type(registry.make("memory manager", part)), **options)
    if isinstance(part, type) and issubclass(part, MemoryManager):
        return check_manager(part, **options)
    if isinstance(part, MemoryManager):
        raise TypeError(f"conformance: got {part!r}; give its class, as every check needs a fresh memory manager")
    return check_backend(part, **options)
