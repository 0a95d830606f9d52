"""The base class of managers that cache free segments, and functions that read the settings of managers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from flnb_telemetry import schema
from flnb_telemetry.quantity import bytes_of

from flnb.interface.memory import MemoryManager, Segment

UNLIMITED = 1 << 62

Size: TypeAlias = int | str | None
"""A setting in bytes: a number, or a string such as "2MiB"; None for the environment variable or the default."""


class Cached(MemoryManager):
    """A manager that caches free segments until `release_cached` is called, or the device is full."""

    wants_hint: ClassVar[bool] = False
    checked: ClassVar[bool] = False

    def release_cached(self) -> int:
        """Release every free segment to the device, emit one event, and return the number of bytes released."""
        self.settle()
        return self._shrink()

    def _shrink(self) -> int:
        """Release free segments like `release_cached`, but do not free the blocks of deleted arrays first."""
        lease = self.device
        try:
            with self.ledger.lock:
                before, held = lease.reserved, len(lease.segments)
                self._release_free()
                given = int(before - lease.reserved)
        except BaseException:
            self.recover()
            raise
        if given:
            lease.tell(schema.RELEASED, given, held - len(lease.segments))
        return given

    def _release_free(self) -> None:
        """Release the free segments.

        A segment is first removed from the free lists, so that it is not used again if the device fails to release it.
        """
        raise NotImplementedError(f"memory manager {self.name!r} does not implement '_release_free'")

    def _reserve(self, nbytes: int) -> Segment:
        """Reserve a segment; if the device is full, release the free segments and try once more."""
        try:
            return self.device.reserve(nbytes)
        except MemoryError:
            if not self._shrink():
                raise
            return self.device.reserve(nbytes)


def rounded(nbytes: int, step: int) -> int:
    """Return the smallest positive multiple of ``step`` that is at least ``nbytes``."""
    return max(1, -(-nbytes // step)) * step


def tunable(name: str, given: Any, variable: str, default: Any, read: Callable[[Any, str], Any] = bytes_of) -> Any:
    """Return a manager's setting: the argument if given, else the environment variable, else the default.

    Args:
        name: the argument's name in errors, such as ``"Buddy(arena=...)"``.
        given: the argument's value; None if it was not given.
        variable: the name of the environment variable; one that ends in ``_MB`` holds a number of MiB.
        default: the value if there is neither an argument nor an environment variable.
        read: converts a value, by default to bytes; its second argument is the name of the setting for errors.
    """
    if given is None and (text := os.environ.get(variable)):
        given, name = text, f"the environment variable {variable}"
        if variable.endswith("_MB"):
            given, name = f"{text}MiB", f"{name}, a number of MiB,"
    return read(default if given is None else given, name)
