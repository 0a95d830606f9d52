"""The caching manager with separate segments for long-lived tensors, so that other segments can be released."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from flnb_telemetry import schema

from flnb_backends.memory.cached import tunable
from flnb_backends.memory.caching import SMALL, Caching
from flnb_backends.memory.pieces import MIN_BLOCK

if TYPE_CHECKING:
    from flnb.interface.memory import AllocHint, Block, MemoryDevice
    from flnb_backends.memory.cached import Size


class ByCategory(Caching):
    """The caching manager with separate segments for tensors of some categories (see `flnb.memory.AllocHint`).

    Args:
        device: the device of the segments; the host by default.
        apart: the categories with segments of their own, joined by "+". Default: the environment variable
            ``FLNB_MEM_APART``, or else "parameter+optimizer_state", which live as long as the model.
        split_limit, recycling_limit: bytes, the settings of `Caching`.

    >>> import flnb
    >>> from flnb.memory import AllocHint
    >>> manager = flnb.memory.ByCategory(flnb.memory.SimulatedDevice())
    >>> weight = manager.alloc(4096, hint=AllocHint(category="parameter"))
    >>> manager.alloc(4096, hint=AllocHint(category="activation")).segment is weight.segment
    False
    """

    name: ClassVar[str] = "by-category"
    wants_hint: ClassVar[bool] = True

    def __init__(
        self, device: MemoryDevice | None = None, apart: str | None = None, split_limit: Size = None,
        recycling_limit: Size = None,
    ) -> None:  # fmt: skip
        super().__init__(device, split_limit, recycling_limit)
        chosen = tunable("ByCategory(apart=...)", apart, "FLNB_MEM_APART", "parameter+optimizer_state", _categories)
        self.apart: frozenset[str] = chosen
        self.small_apart, self.large_apart = apart_pools = self._two_pools()
        self.pools = (self.small, self.large, *apart_pools)

    def alloc(self, nbytes: int, stream: int = 0, hint: AllocHint | None = None) -> Block:
        """Return a block in the smallest free piece that is large enough, in the segments for the hint's category."""
        if hint is None or hint.category not in self.apart:
            return super().alloc(nbytes)
        size = (nbytes + 511) & -512 or MIN_BLOCK
        return self.take(self.small_apart if size <= SMALL else self.large_apart, size)


def _categories(given: str, name: str) -> frozenset[str]:
    """Return the categories in a string such as "parameter+input"; ``name`` is the setting's name in errors."""
    found = frozenset(given.split("+"))
    if not found <= set(schema.CATEGORIES):
        raise ValueError(f"flnb: {name} is {given!r}; expected some of {', '.join(schema.CATEGORIES)}, joined by '+'")
    return found
