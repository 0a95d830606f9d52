"""Tables of each module's shapes, parameters, FLOPs and memory, from one recorded forward pass."""

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

TITLES = ("module", "kind", "output", "parameters", "FLOPs", "kept")


@dataclass(frozen=True)
class Row:
    """Statistics of one module, including the modules inside it.

    Attributes:
        path: the module's dotted path; "" for the model itself.
        kind: the name of the module's class.
        output: the shapes of the results of the module's last call; empty if it was not called.
        parameters: the number of trained numbers; a shared parameter counts once.
        flops: estimated floating-point operations of the forward pass; a multiply-add counts as two.
        kept: bytes of the tensors that are made inside the module and still exist when the forward pass ends: the
            model's result, and what backward needs.
    """

    path: str
    kind: str
    output: tuple[tuple[int, ...], ...]
    parameters: int
    flops: int
    kept: int

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, in the order of the table's columns."""
        shapes = ", ".join(map(quantity.extents, self.output)) or quantity.UNKNOWN
        numbers = f"{self.parameters:,}", quantity.count(self.flops), quantity.size(self.kept)
        return (self.path.rpartition(".")[2], self.kind, shapes, *numbers)


@dataclass(frozen=True, repr=False)
class Summary:
    """The table that `summary` returns: iterate over its rows, or index it by a module's path.

    ``total`` is the row of the whole model. The summary's repr, and its display in a notebook, are a table in which
    modules are indented by depth.
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
        """Return the lines of the table as pairs of depth and cells: titles, every row, total."""
        rows = [(row.path.count("."), row.cells()) for row in self.rows]
        return [(0, TITLES), *rows, (0, ("total", *self.total.cells()[1:]))]

    def __repr__(self) -> str:
        lines = [("  " * depth + cells[0], *cells[1:]) for depth, cells in self._lines()]
        text = tables.lines(lines, "<<<>>>")
        return "\n".join([*text[:-1], "─" * max(map(len, text)), text[-1]])

    def _repr_html_(self) -> str:
        head, *body, total = self._lines()
        whole = max(1, self.total.flops)
        rows = [_cells(*line, row.flops / whole) for line, row in zip(body, self.rows, strict=True)]
        last = [Markup(f"<b>{html_text(cell)}</b>") for cell in total[1]]
        return tables.html([head[1], *rows, last], "<<<>>>")


def _cells(depth: int, cells: tuple[str, ...], share: float) -> list[str]:
    """Return the HTML cells of one row: the name indented by depth, and a bar behind the FLOPs.

    Args:
        depth: the number of modules around this one.
        cells: the text of each cell.
        share: the length of the bar, from 0 to 1: the module's share of the model's FLOPs.
    """
    styles = {TITLES[0]: f"padding-left:{1.2 * depth:.1f}em"}
    styles["FLOPs"] = f"background:linear-gradient(to left,#4c8bf540 {100 * share:.1f}%,transparent 0);display:block"
    return [
        Markup(f"<span style='{styles[title]}'>{html_text(cell)}</span>") if title in styles else cell
        for title, cell in zip(TITLES, cells, strict=True)
    ]


def summary(of: Module | Recipe | str, *inputs: Any, scale: str = "small", depth: int | None = None) -> Summary:
    """Run a model forward once and list shapes, parameters, FLOPs and memory of each of its modules.

    The model runs in its present mode. Afterwards its buffers (such as running statistics) and the session's random
    generator are as before; no gradient is computed.

    Args:
        of: a module; or a recipe or its name, from which a model and its inputs are made.
        inputs: the module's inputs, tensors or NumPy arrays; none for a recipe.
        scale: the scale of the recipe, "small" or "paper".
        depth: the number of levels to list: 1 lists only the modules directly in the model, None all modules.

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
        ValueError: a module without inputs, or a name that no recipe has.
    """
    model, forward = _prepared(of, inputs, scale)
    root = ".".join(filter(None, (bus.threads.here.path, model._name)))
    with _as_it_was(model), _outputs(model) as outputs, record(grad_interval=None) as run:
        with use_memory_manager(EveryTensor()) as manager:
            began = perf_counter_ns()  # tensors made before are not the model's
            result = forward()
            manager.stats()  # records the tensors that were dropped up to now
        del result
    paths = {path for path, _ in model.named_modules()}
    ran, made, dropped = run.table("op"), run.table("alloc"), run.table("free_requested")
    cost = np.array([plan.flops for plan in run.catalog.plans.items])
    flops = _by_module(run, root, paths, ran["context"], cost[ran["plan"]])
    alive = (made["t"] >= began) & ~np.isin(made["alloc_id"], dropped["alloc_id"])
    kept = _by_module(run, root, paths, made["context"][alive], made["requested"][alive])
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
    """A memory manager that allocates tensors of any size, so that tiny ones are recorded too."""

    min_block = 0


def _prepared(of: Module | Recipe | str, inputs: tuple[Any, ...], scale: str) -> tuple[Module, Callable[[], Any]]:
    """Return the model of a call of `summary`, and a function without arguments that runs the model.

    The arguments are those of `summary`.
    """
    if isinstance(of, str):
        of = models.get(of)
    model = of.build(scale) if isinstance(of, Recipe) else of
    if inputs:
        given = [ops.asarray(x) if isinstance(x, np.ndarray) else x for x in inputs]
        return model, lambda: model(*given)
    if isinstance(of, Recipe):
        batch = [ops.asarray(x) for x in of.batch(scale)]
        return model, lambda: of.loss(model, *batch)
    raise ValueError(f"summary: {type(of).__name__} needs inputs: call summary(model, x), or give a recipe")


@contextmanager
def _as_it_was(model: Module) -> Iterator[None]:
    """Restore the model's buffers and the current random generator when the ``with`` block ends."""
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
    """Collect the shapes of the results of each module's latest call, by ``id(module)``, during the ``with`` block."""
    shapes: dict[int, tuple[tuple[int, ...], ...]] = {}

    def keep(module: Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Store the shapes of the results of a module's call, as a forward hook."""
        made = output if isinstance(output, (tuple, list)) else (output,)
        shapes[id(module)] = tuple(x.shape for x in made if isinstance(x, Tensor))

    handles = [module.register_forward_hook(keep) for _, module in model.named_modules()]
    try:
        yield shapes
    finally:
        for handle in handles:
            handle.remove()


def _by_module(run: Recording, root: str, paths: set[str], contexts: Any, amounts: Any) -> Counter[str]:
    """Sum amounts by module path; each amount also counts for all enclosing modules.

    Args:
        run: the recording, whose catalog has the names of the contexts.
        root: the name of the whole model in the recording.
        paths: the dotted paths of the model's modules.
        contexts: for each event, the number of its context (a module's path and a phase) in the recording.
        amounts: for each event, the number to add.
    """
    catalog, sums = run.catalog, Counter[str]()
    for scope, amount in zip(catalog.named(catalog.scope[contexts]).tolist(), amounts.tolist(), strict=True):
        if scope == root or scope.startswith(f"{root}."):
            path = scope[len(root) + 1 :]
            sums[""] += amount
            while path:
                if path in paths:
                    sums[path] += amount
                path = path.rpartition(".")[0]
    return sums
