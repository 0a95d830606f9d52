"""`flnb.testing.conformance`: check a backend or a memory manager, whichever is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb.dispatch import registry
from flnb.interface import MemoryManager
from flnb.testing.backends import check_backend
from flnb.testing.managers import check_manager

if TYPE_CHECKING:
    from flnb.explore.report import Report


def conformance(part: Any, **options: Any) -> Report:
    """Check a backend by `check_backend`, or a memory manager by `check_manager`, and return the report.

    Args:
        part: the name, class or instance of a backend, or the name or class of a memory manager.
        options: arguments of the check: ``tolerance`` and ``dtypes`` for a backend; ``capacity``, ``examples`` and
            ``seed`` for a manager.

    >>> import flnb.testing
    >>> report = flnb.testing.conformance("numpy")
    >>> bool(report), report["matmul"].passed
    (True, True)

    Raises:
        TypeError: an instance of a memory manager, or something that is no backend.
    """
    if isinstance(part, str) and part in registry.names("memory manager"):
        return check_manager(type(registry.make("memory manager", part)), **options)
    if isinstance(part, type) and issubclass(part, MemoryManager):
        return check_manager(part, **options)
    if isinstance(part, MemoryManager):
        raise TypeError(
            f"conformance: got the memory manager {part!r}; expected its class, because each check makes a new one"
        )
    return check_backend(part, **options)
