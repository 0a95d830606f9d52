"""The common part of managers that keep free segments: when these are returned, and how settings are given."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

from flnb_telemetry import schema
from flnb_telemetry.quantity import bytes_of

from flnb.interface.memory import Block, MemoryManager, Segment

__all__ = ["UNLIMITED", "Cached", "rounded", "tunable"]

UNLIMITED = 1 << 62


class Cached(MemoryManager):
    """A manager that keeps free segments until `release_cached` is called, or the device is full."""

    wants_hint: ClassVar[bool] = False
    checked: ClassVar[bool] = False

    def release_cached(self) -> int:
        """Return every free segment to the device; returns their bytes, which are reported in one event."""
        self.settle()
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

    def _tiled(self) -> list[tuple[Segment, list[Block]]]:
        """Every segment with the live blocks in it, by address."""
        live = sorted(self.ledger.live.values(), key=lambda block: block.address)
        held: dict[int, list[Block]] = {number: [] for number in self.device.segments}
        for block in live:
            held[block.segment.id].append(block)
        return [(segment, held[number]) for number, segment in list(self.device.segments.items())]

    def _release_free(self) -> None:
        """Release free segments, forgetting each first: one that the device refuses stays reserved, unused."""
        raise NotImplementedError(f"memory manager {self.name!r} does not implement '_release_free'")

    def _reserve(self, nbytes: int) -> Segment:
        """Reserve a segment; if the device is full, return free ones to it and try once more."""
        try:
            return self.device.reserve(nbytes)
        except MemoryError:
            if not self.release_cached():
                raise
            return self.device.reserve(nbytes)


def rounded(nbytes: int, step: int) -> int:
    """The smallest positive multiple of a step that is not less."""
    return max(1, -(-nbytes // step)) * step


def tunable(name: str, given: Any, variable: str, default: Any, read: Callable[[Any, str], Any] = bytes_of) -> Any:
    """A manager's setting: its argument, else the environment's, else the default.

    Args:
        name: for errors: ``"Buddy(arena=...)"``.
        variable: of the environment; one that ends in ``_MB`` holds a number of MiB.
        read: converts the setting (to bytes by default), and names its source in errors.
    """
    if given is None and (text := os.environ.get(variable)):
        given, name = text, f"the environment variable {variable}"
        if variable.endswith("_MB"):
            given, name = f"{text}MiB", f"{name}, a number of MiB,"
    return read(default if given is None else given, name)
