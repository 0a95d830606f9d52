"""Predicted memory of each rank in the stages of `Sharded`, computed from a dry run of one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flnb_telemetry import quantity, schema, tables


@dataclass(frozen=True, eq=False, repr=False)
class ZeroMemory:
    """The memory of one rank at each ZeRO stage, returned by `zero_memory`; prints as a table.

    Attributes:
        ranks: the number of ranks.
        stages: for each stage from 0 (nothing divided) to 3, the bytes of parameters, of gradients, of optimizer state
            and of everything else.
    """

    ranks: int
    stages: tuple[dict[str, int], ...]

    def cells(self) -> list[list[str]]:
        """Return the table of stages as rows of texts; the first row has the titles."""
        titles = ["stage", *(name.replace("_", " ") for name in self.stages[0]), "together"]
        return [titles] + [
            [str(stage), *(quantity.size(n) for n in row.values()), quantity.size(sum(row.values()))]
            for stage, row in enumerate(self.stages)
        ]

    def __repr__(self) -> str:
        return "\n".join([f"bytes on each of {self.ranks} ranks", *tables.lines(self.cells(), "<>")])

    def _repr_html_(self) -> str:
        return tables.html(self.cells(), "<>", f"bytes on each of {self.ranks} ranks")


DIVIDED = {"optimizer_state": 1, "gradient": 2, "parameter": 3}
"""The stage from which on a category of memory is divided."""


def zero_memory(dry_run: Any, ranks: int) -> ZeroMemory:
    """Predict each rank's memory under `flnb.distributed.Sharded`, stages 0 to 3 (Rajbhandari et al., 2020).

    Parameters, gradients and optimizer state are counted at the end of the dry run's last step; a rank's part of each
    tensor is rounded up to whole elements. "other" is all other memory, such as activations, in use at the peak of the
    dry run. In stage 3 the whole parameters of the module that is being called must be added.

    Args:
        dry_run: the result of `flnb.memory.dry_run`, of one rank.
        ranks: the number of ranks.

    Raises:
        ValueError: the dry run has no training step.

    >>> import flnb
    >>> found = flnb.distributed.zero_memory(flnb.memory.dry_run("lenet", optimizer="adam", scale="small"), ranks=8)
    >>> found.stages[0]["parameter"] / found.stages[3]["parameter"] > 7.9
    True
    """
    memory, steps = dry_run.whole.memory, dry_run.whole.table("step")
    if not len(steps["t1"]):
        raise ValueError(
            "zero_memory: the dry run has no training step: call an optimizer in its function, or pass dry_run the "
            "name of a recipe"
        )
    block, catalog = memory.block, memory.catalog
    rows = memory.live(int(steps["t1"].max()))
    held: dict[str, list[tuple[int, int]]] = {name: [] for name in ("parameter", "gradient", "optimizer_state")}
    for nbytes, kind, plan in zip(
        *(block[name][rows].tolist() for name in ("requested", "category", "plan")), strict=True
    ):
        if (name := schema.CATEGORIES[kind]) in held:
            held[name].append((nbytes, np.dtype(catalog.plans.items[plan].dtype or "u1").itemsize))
    if sum(n for n, _ in held["gradient"]) > sum(n for n, _ in held["parameter"]):
        held["gradient"] = held["parameter"]  # some that are not used any more have not been freed yet
    other = dry_run.peak.allocated - sum(dry_run.by_category.get(name, 0) for name in held)

    def stored(stage: int) -> dict[str, int]:
        parts = {name: ranks if stage >= DIVIDED[name] else 1 for name in held}
        found = {
            name: sum(-(-nbytes // (item * parts[name])) * item for nbytes, item in tensors)
            for name, tensors in held.items()
        }
        return found | {"other": other}

    return ZeroMemory(ranks, tuple(stored(stage) for stage in range(4)))
