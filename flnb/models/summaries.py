"""What each module of a model computes, trains and stores, taken from the events of one recorded forward pass."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_backends.memory.native import Native
from flnb_telemetry import bus, quantity, record, tables
from flnb_telemetry.safe_text import html_text
from flnb_telemetry.tables import Markup

from flnb import models, ops, random
from flnb.dispatch.parts import use_memory_manager
from flnb.models.recipe import Recipe
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flnb_telemetry.recording import Recording

    from flnb.nn import Module

__all__ = ["Row", "Summary", "summary"]

TITLES = ("module", "kind", "output", "parameters", "FLOPs", "kept")


@dataclass(frozen=True)
class Row:
    """One module, with everything inside it.

    Attributes:
        path: its dotted path; "" for the model itself.
        kind: the name of its class.
        output: the shapes of the result of its last call; empty if it was not called.
        parameters: how many numbers it trains; a shared parameter counts once.
        flops: estimated floating-point operations of the forward pass; a multiplication with an addition is two.
        kept: bytes of the tensors made inside that exist when the forward pass ends: activations for backward, and
            its result.
    """

    path: str
    kind: str
    output: tuple[tuple[int, ...], ...]
    parameters: int
    flops: int
    kept: int

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of the table's columns."""
        shapes = ", ".join(map(quantity.extents, self.output)) or quantity.UNKNOWN
        numbers = f"{self.parameters:,}", quantity.count(self.flops), quantity.size(self.kept)
        return (self.path.rpartition(".")[2], self.kind, shapes, *numbers)


@dataclass(frozen=True, repr=False)
class Summary:
    """The table that `summary` returns: iterate its rows, index it by path; ``total`` is the whole model.

    Prints as a table, with names indented by depth, and is shown as one in a notebook.
    """

    rows: tuple[Row, ...]
    total: Row

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, path: str) -> Row:
        found = next((row for row in (*self.rows, self.total) if row.path == path), None)
        if found is None:
            raise KeyError(f"no module {path!r} in this summary; it has {', '.join(row.path for row in self.rows)}")
        return found

    def _lines(self) -> list[tuple[int, tuple[str, ...]]]:
        """Depth and cells of the titles, of every row, and of the total."""
        rows = [(row.path.count("."), row.cells()) for row in self.rows]
        return [(0, TITLES), *rows, (0, ("total", *self.total.cells()[1:]))]

    def __repr__(self) -> str:
        lines = [("  " * depth + cells[0], *cells[1:]) for depth, cells in self._lines()]
        told = tables.lines(lines, "<<<>>>")
        return "\n".join([*told[:-1], "─" * max(map(len, told)), told[-1]])

    def _repr_html_(self) -> str:
        head, *body, total = self._lines()
        whole = max(1, self.total.flops)
        rows = [_cells(*line, row.flops / whole) for line, row in zip(body, self.rows, strict=True)]
        last = [Markup(f"<b>{html_text(cell)}</b>") for cell in total[1]]
        return tables.html([head[1], *rows, last], "<<<>>>")


def _cells(depth: int, cells: tuple[str, ...], share: float) -> list[str]:
    """The cells of one row, the name indented; behind the FLOPs a bar as long as their share of the model's."""
    styles = {TITLES[0]: f"padding-left:{1.2 * depth:.1f}em"}
    styles["FLOPs"] = f"background:linear-gradient(to left,#4c8bf540 {100 * share:.1f}%,transparent 0);display:block"
    return [
        Markup(f"<span style='{styles[title]}'>{html_text(cell)}</span>") if title in styles else cell
        for title, cell in zip(TITLES, cells, strict=True)
    ]


def summary(of: Module | Recipe | str, *inputs: Any, scale: str = "small", depth: int | None = None) -> Summary:
    """Run a model forward once, recorded, and report what each of its modules did.

    Args:
        of: a module; or a recipe, or the name of one, of which a model is built with a batch.
        inputs: the inputs of the module: tensors or NumPy arrays. A recipe needs none.
        scale: of the recipe, "small" or "paper".
        depth: how deep to report: 1 shows the model's own parts only.

    The model runs in its present mode and is afterwards as it was: its buffers (running statistics) and the session's
    random numbers are restored, and no gradient is computed.

    >>> import flnb
    >>> flnb.models.summary(flnb.models.MLP((64, 32, 10)), flnb.ones((16, 64)))
    module   kind        output  parameters   FLOPs      kept
    layers   ModuleList  –            2,410  76.4 k     640 B
      0      Linear      16×32        2,080  66.0 k       0 B
      1      Linear      16×10          330  10.4 k     640 B
    dropout  Dropout     16×32            0       0       0 B
    ─────────────────────────────────────────────────────────
    total    MLP         16×10        2,410  77.0 k  2.62 KiB

    Raises:
        ValueError: a module without inputs, or no recipe of that name.
    """
    model, forward = _prepared(of, inputs, scale)
    root = ".".join(filter(None, (bus.threads.here.path, model._name)))
    with _as_it_was(model), _outputs(model) as outputs, record(grad_interval=None) as run:
        with use_memory_manager(EveryTensor()) as manager:
            began = perf_counter_ns()  # blocks from before are not the model's
            result = forward()
            manager.stats()  # takes in what was dropped: that is recorded now
        del result
    sums = Sums(run, root, {path for path, _ in model.named_modules()})
    flops, kept = sums.flops(), sums.kept(began)
    rows = [
        Row(
            path=path,
            kind=type(module).__name__,
            output=outputs.get(id(module), ()),
            parameters=sum(parameter.size for parameter in module.parameters()),
            flops=flops[path],
            kept=kept[path],
        )
        for path, module in model.named_modules()
    ]
    shown = (row for row in rows[1:] if depth is None or row.path.count(".") < depth)
    return Summary(tuple(shown), rows[0])


class EveryTensor(Native):
    """Blocks for tensors of any size, so that each of them is seen."""

    min_block = 0


def _prepared(of: Module | Recipe | str, inputs: tuple[Any, ...], scale: str) -> tuple[Module, Callable[[], Any]]:
    if isinstance(of, str):
        of = models.get(of)
    model = of.build(scale) if isinstance(of, Recipe) else of
    if inputs:
        given = [ops.asarray(x) if isinstance(x, np.ndarray) else x for x in inputs]
        return model, lambda: model(*given)
    if isinstance(of, Recipe):
        batch = [ops.asarray(x) for x in of.batch(scale)]
        return model, lambda: of.loss(model, *batch)
    raise ValueError(f"summary: {type(of).__name__} needs inputs to be called with: summary(model, x), or a recipe")


@contextmanager
def _as_it_was(model: Module) -> Iterator[None]:
    """Afterwards, the model's buffers and the session's generator are as they were."""
    buffers = [(buffer, ops.asarray(buffer, copy=True)) for _, buffer in model.named_buffers()]
    drawn = random.current_generator().state
    try:
        yield
    finally:
        random.current_generator().state = drawn
        for buffer, value in buffers:
            ops.assign(buffer, value)


@contextmanager
def _outputs(model: Module) -> Iterator[dict[int, tuple[tuple[int, ...], ...]]]:
    """While inside, the shapes that each module's last call gave, by the module's id."""
    shapes: dict[int, tuple[tuple[int, ...], ...]] = {}

    def keep(module: Module, inputs: tuple[Any, ...], output: Any) -> None:
        made = output if isinstance(output, (tuple, list)) else (output,)
        shapes[id(module)] = tuple(x.shape for x in made if isinstance(x, Tensor))

    handles = [module.register_forward_hook(keep) for _, module in model.named_modules()]
    try:
        yield shapes
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Sums:
    """Sums over a recording's events by module: each event counts for the module whose scope it has, and all around.

    Attributes:
        run: the recording.
        root: the scope of the whole model.
        paths: the modules'.
    """

    run: Recording
    root: str
    paths: set[str]

    def flops(self) -> Counter[str]:
        """Floating-point operations of the ops."""
        ran = self.run.table("op")
        cost = np.array([plan.flops for plan in self.run.catalog.plans.items])
        return self._of(ran["context"], cost[ran["plan"]])

    def kept(self, began: int) -> Counter[str]:
        """Bytes allocated since then (`perf_counter_ns`) and not dropped."""
        made, dropped = self.run.table("alloc"), self.run.table("free_requested")
        held = (made["t"] >= began) & ~np.isin(made["alloc_id"], dropped["alloc_id"])
        return self._of(made["context"][held], made["requested"][held])

    def _of(self, contexts: Any, amounts: Any) -> Counter[str]:
        catalog, sums = self.run.catalog, Counter[str]()
        scopes = catalog.named(catalog.scope[contexts])
        for scope, amount in zip(scopes.tolist(), amounts.tolist(), strict=True):
            if scope == self.root or scope.startswith(f"{self.root}."):
                path = scope[len(self.root) + 1 :]
                sums[""] += amount
                while path:
                    if path in self.paths:
                        sums[path] += amount
                    path = path.rpartition(".")[0]
        return sums
