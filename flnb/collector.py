"""Settings of Python's garbage collector for programs that make many small objects and no reference cycles."""

from __future__ import annotations

import gc
from typing import Self

__all__ = ["tune_gc"]


class tune_gc:
    """Make Python's garbage collector ignore all existing objects and run less often.

    The graphs that flnb records for backward have no reference cycles, so the collector can free none of their objects.
    It would only visit them repeatedly while the graphs grow. ``import flnb`` does not change the collector; only
    `flnb lab` uses this. As a context manager, it restores the old settings at the end of the block.

    >>> import flnb
    >>> with flnb.tune_gc():
    ...     pass  # train

    Args:
        threshold: the number of new container objects between two collections; Python's own default is 700 up to
            version 3.12, then 2,000.
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
