"""Decides which steps of a nest must round as NumPy does; other steps may be fused, as a*b+c into one operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flnb.graph.emitter import kind
from flnb.graph.scalars import APPROXIMATE, DISCRETE

if TYPE_CHECKING:
    from flnb.graph.nests import Nest, Step


def rounded_steps(nest: Nest) -> set[int]:
    """Return the steps that must round exactly as NumPy does, or equally in all kernels.

    A step must round as NumPy does if its value is computed by exact operations only, and is stored or used by exact
    operations whose result is stored. This does not apply to values that depend on an approximation or a reordered sum.

    A step must round equally in all kernels if a comparison, a maximum or the like depends on its value. For example,
    the largest element of a row must equal an element of the row, even if a kernel computes that element again.
    """
    count = len(nest.steps)
    users: list[list[int]] = [[] for _ in range(count)]
    exact: list[bool] = []
    for j, step in enumerate(nest.steps):
        exact.append(not _approximate(step) and all(exact[i] for i in step.inputs))
        for i in step.inputs:
            users[i].append(j)
    stored = {j for j, _ in nest.stores}
    seen: set[int] = set()
    compared: set[int] = set()
    for j in reversed(range(count)):
        if exact[j] and (j in stored or not seen.isdisjoint(users[j])):
            seen.add(j)
        if any(nest.steps[k].op in DISCRETE for k in users[j]) or not compared.isdisjoint(users[j]):
            compared.add(j)
    return seen | compared


def _approximate(step: Step) -> bool:
    """Return whether a step's result may differ from NumPy's in the last bits."""
    return step.op in APPROXIMATE or (step.op in ("sum", "prod") and kind(step.dtype) == "f")
