"""One call of an op, with inputs at which it can be checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flnb.dispatch import crossing as dispatch
from flnb.dispatch.table import OPS

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sample:
    """A call of the table's op ``op``: ``function(*inputs)``, the inputs NumPy arrays (float64 ones are checked)."""

    op: str
    function: Callable[..., Any]
    inputs: tuple[Array, ...]
    note: str = ""

    def __str__(self) -> str:
        return f"{self.op}{'-' + self.note if self.note else ''}"


def apart(rng: np.random.Generator, *shape: int) -> Array:
    """Values in (0.5, 2.5), no two within 0.01: away from ties, zeros and the ends of domains."""
    size = int(np.prod(shape))
    return (0.5 + 2.0 * (rng.permutation(size) + rng.uniform(0.2, 0.8, size)) / max(size, 1)).reshape(shape)


def direct(op: str, inputs: tuple[Array, ...], *attributes: Any, note: str = "") -> Sample:
    """A primitive that has no public function, called as it is."""
    return Sample(op, lambda *tensors: dispatch.call(OPS[op], tensors, attributes), inputs, note)
