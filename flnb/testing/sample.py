"""A sample call of an op, with inputs at which its result and gradient can be checked."""

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
    """A sample call of an op.

    Attributes:
        op: the op's name in the op table.
        function: a function that takes tensors and calls the op, possibly together with other ops.
        inputs: the function's arguments as NumPy arrays; gradients are checked with respect to the float64 arrays.
        note: what is special about the call, such as "strided".
    """

    op: str
    function: Callable[..., Any]
    inputs: tuple[Array, ...]
    note: str = ""

    def __str__(self) -> str:
        return f"{self.op}{'-' + self.note if self.note else ''}"


def apart(rng: np.random.Generator, *shape: int) -> Array:
    """Return random values in (0.5, 2.5) that differ clearly, to avoid ties, zeros and domain boundaries."""
    size = int(np.prod(shape))
    return (0.5 + 2.0 * (rng.permutation(size) + rng.uniform(0.2, 0.8, size)) / max(size, 1)).reshape(shape)


def direct(op: str, inputs: tuple[Array, ...], *attributes: Any, note: str = "") -> Sample:
    """Make a sample of a primitive op that has no public function; ``note`` describes the sample in reports."""
    return Sample(op, lambda *tensors: dispatch.call(OPS[op], tensors, attributes), inputs, note)
