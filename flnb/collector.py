"""Python's cyclic garbage collector, tuned for programs that make many small objects and no cycles."""

from __future__ import annotations

import gc
from typing import Self

__all__ = ["tune_gc"]


class tune_gc:
    """Freeze the objects that exist now and look for cycles less often; undone when used as a context manager.

    flnb's tapes are acyclic, so the collector finds nothing in them, yet it walks them again and again while they grow.
    The library leaves the collector alone; `flnb lab` and you may call this.

    >>> import flnb
    >>> with flnb.tune_gc():
    ...     pass  # train

    Args:
        threshold: new container objects between two collections (Python's default is 700).
    """

    def __init__(self, threshold: int = 50_000) -> None:
        self._before = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(threshold, 20, 100)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        gc.set_threshold(*self._before)
        gc.unfreeze()
