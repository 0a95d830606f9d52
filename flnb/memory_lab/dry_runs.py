"""Dry runs: the memory that a program needs, found by recording the program on tensors without values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_backends.memory.simulated import SimulatedDevice
from flnb_telemetry import Recording, bus, palette, quantity, record, schema, tables
from flnb_telemetry.formats import svg
from flnb_telemetry.intern import joined
from flnb_telemetry.safe_text import html_text, safe_lines
from flnb_telemetry.tables import Markup

from flnb import ops, random
from flnb.dispatch.parts import use_backend, use_memory_manager
from flnb.interface.memory import Lease, OutOfMemoryError
from flnb.memory_lab.replaying import fresh

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry.analysis.memory import MemoryState

    from flnb.models import Recipe

__all__ = ["DryRun", "Held", "dry_run"]

SHOWN = 10
TITLES = ("size", "category", "op", "module", "shape", "dtype")


class Held(NamedTuple):
    """A tensor that is live at the peak of memory: bytes, category, the op and module that made it, shape, dtype."""

    nbytes: int
    category: str
    op: str
    scope: str
    shape: tuple[int, ...]
    dtype: str

    def cells(self) -> tuple[str, ...]:
        """Return this tensor's row of a table whose column titles are `TITLES`."""
        shape = quantity.extents(self.shape)
        return quantity.size(self.nbytes), self.category, self.op, self.scope or quantity.UNKNOWN, shape, self.dtype


@dataclass(frozen=True, eq=False, repr=False)
class DryRun:
    """The result of `dry_run`. It prints as text, and as HTML in a notebook.

    Attributes:
        title: the name of the program or recipe.
        manager: the memory manager's name and settings.
        capacity: the capacity of the device in bytes, None for no limit.
        run: the recording, which ends where memory ran out. `flnb.memory.trace` and `flnb.memory.replay` accept it.
        whole: a recording of the whole program: `run` if the program fits, else one made on a device without a limit.
        error: the out-of-memory error, with its `report`; None if the program fits.
        seconds: the time that the dry run took, in seconds.
    """

    title: str
    manager: str
    capacity: int | None
    run: Recording
    whole: Recording
    error: OutOfMemoryError | None
    seconds: float

    @property
    def fits(self) -> bool:
        """Return whether the program ran to its end within the capacity."""
        return self.error is None

    @cached_property
    def peak(self) -> MemoryState:
        """The state of memory at the moment of `whole` at which most bytes were allocated."""
        return self.whole.memory.peak

    @property
    def reserved(self) -> int:
        """The most bytes that were reserved from the device during `whole`."""
        return int(self.whole.memory.timeline().reserved.max(initial=0))

    @property
    def by_category(self) -> dict[str, int]:
        """The bytes allocated at the peak by category, the largest first."""
        held = ((name, n) for name, n in self.peak.by_category.items() if n)
        return dict(sorted(held, key=lambda pair: -pair[1]))

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """The tensors that are live at the peak, the largest first."""
        memory = self.whole.memory
        rows = memory.live(memory.start + round(self.peak.t * 1e9))
        order = rows[np.argsort(-memory.block["requested"][rows], kind="stable")]
        block, catalog = memory.block, memory.catalog
        columns = (block[name][order] for name in ("requested", "category", "plan"))
        scopes = catalog.named(_scopes(self.whole, order))
        plans = catalog.plans.items
        return tuple(
            Held(int(size), schema.CATEGORIES[kind], plans[plan].op, scope, plans[plan].shape, plans[plan].dtype)
            for size, kind, plan, scope in zip(*columns, scopes, strict=True)
        )

    @cached_property
    def when(self) -> str:
        """Return the moment of the peak as text: step, phase, op and module."""
        memory, run = self.whole.memory, self.whole
        row = int(np.searchsorted(memory.block["t"], memory.start + round(self.peak.t * 1e9), "right")) - 1
        if row < 0:
            return "never"
        t = float(run.seconds_at(memory.block["t"][row]))
        phase = schema.PHASES[memory.catalog.phase[memory.block["context"][row]]]
        op = memory.catalog.plans.items[memory.block["plan"][row]].op
        scope = memory.catalog.named(_scopes(run, np.array([row])))[0]
        number = int(np.searchsorted(run.steps["t1"], t)) + 1
        step = f"step {number}, " if number <= len(run.steps["t1"]) else ""
        return f"{step}{'' if phase == 'other' else f'{phase}, '}in {op!r}{f' of {scope}' if scope else ''}"

    def _facts(self) -> list[str]:
        """Return the lines above the tables: whether the program fits, peak, reserved bytes and fragmentation."""
        room = "a device without limit" if self.capacity is None else f"a device of {quantity.size(self.capacity)}"
        took = quantity.duration(self.seconds * 1e9)
        lines = [f"{self.title} on {self.manager} and {room}: {'fits' if self.fits else 'DOES NOT FIT'} ({took})"]
        if self.error is not None:
            lines += [*(f"  {line}" for line in str(self.error).splitlines()[:2]), "  with no limit:"]
        found, peak = self.whole.memory.fragmentation(), self.peak
        lines += [
            f"peak: {quantity.size(peak.allocated)} in {len(self.held)} tensors: {self.when}",
            f"reserved: at most {quantity.size(self.reserved)}; reserved/live {quantity.significant(found.at_peak)} at "
            f"the peak, {quantity.significant(found.average)} on time average",
            f"fragmentation at the peak: largest hole {quantity.size(peak.largest_hole)}, internal waste "
            f"{quantity.percent(peak.internal)}, {quantity.percent(peak.unusable(found.request))} of what is free "
            f"unusable for the largest request of {quantity.size(found.request)}",
        ]
        if self.whole.dropped:
            lines.append(f"{quantity.count(self.whole.dropped)} events were dropped: these are lower bounds")
        return lines

    def _shares(self) -> list[tuple[str, str, float]]:
        """Return for each category its name, its size as text, and its share of the peak (0 to 1)."""
        whole = max(1, self.peak.allocated)
        return [(name, quantity.size(n), n / whole) for name, n in self.by_category.items()]

    def __repr__(self) -> str:
        shares = [f"  {name:<16}{n:>10}  {quantity.percent(share):>7}" for name, n, share in self._shares()]
        table = [TITLES, *(row.cells() for row in self.held[:SHOWN])]
        rows = [f"  {line}" for line in tables.lines(table)]
        return safe_lines(
            "\n".join([*self._facts(), *shares, f"the largest of {len(self.held)} tensors at the peak:", *rows])
        )

    def _repr_html_(self) -> str:
        first, *facts = self._facts()
        colour = "var(--jp-success-color1,#388e3c)" if self.fits else "var(--jp-error-color1,#d32f2f)"
        rows = [(name.replace("_", " "), n, _bar(name, share)) for name, n, share in self._shares()]
        shares = tables.html(rows, "<><", titles=False)
        held = tables.html([TITLES, *(row.cells() for row in self.held[:SHOWN])])
        memory = self.whole.memory
        return (
            f"<div style='font-variant-numeric:tabular-nums'><b style='color:{colour}'>{html_text(first)}</b>"
            f"{''.join(f'<div>{html_text(fact)}</div>' for fact in facts)}{shares}"
            f"{svg.memory_timeline(memory)}{held}{svg.block_map(self.peak)}</div>"
        )


def _bar(category: str, share: float) -> Markup:
    """Return an HTML bar in a category's colour, with a length proportional to its share."""
    style = f"background:{palette.CATEGORY[category][0]};height:10px;width:{220 * share:.0f}px"
    return Markup(f"<div style='min-width:220px'><div style='{style}'></div></div>")


def _scopes(run: Recording, rows: Any) -> Any:
    """Return for each block the module in which it was allocated; for a backward op, the module of its forward op.

    Args:
        run: the recording.
        rows: int64 (n,), the blocks as rows of `Memory.block`.

    Returns:
        (n,), the paths of the modules, as ids of strings of the recording.
    """
    block, op = run.memory.block, run.table("op")
    scope, _, _ = run.catalog.places(op["context"], op["node"])
    return joined(block["alloc_id"][rows], op["alloc_id"], scope, run.catalog.scope[block["context"][rows]])


def dry_run(
    what: str | Recipe | Callable[[], object],
    manager: Any = "caching",
    capacity: int | str | None = None,
    steps: int = 2,
    optimizer: Callable[..., Any] | str | None = None,
    batch: int | None = None,
    scale: str = "paper",
) -> DryRun:
    """Find out how much memory a program needs, without computing values; this takes seconds even for large models.

    Scratch memory inside a backend's methods, such as NumPy's for convolutions, is not counted.

    Args:
        what: a function without arguments, which is called once and must also build its model. Or a recipe of
            `flnb.models`, or the name of one; then the recipe's model is built and trained.
        manager: the memory manager's name ("caching", "caching:split_limit=64MiB"), its class, or an instance, whose
            settings are copied.
        capacity: the capacity of the simulated device, in bytes or as a string such as "16GiB"; None for no limit.
        steps: for a recipe, the number of training steps: forward, backward and the optimizer.
        optimizer: for a recipe, the name of an optimizer of `flnb.optim` ("adam"), or a function that makes one from
            the parameters; by default SGD with momentum.
        batch: for a recipe, the number of examples in the batch; by default the recipe's own.
        scale: for a recipe, the size of the model: "paper" or "small".

    Returns:
        A `DryRun`. If memory runs out, its ``error`` is set; nothing is raised.

    >>> import flnb
    >>> found = flnb.memory.dry_run("resnet18", batch=8, capacity="2GiB")
    >>> found.fits, list(found.by_category)[0], found.held[0].scope, found.held[0].shape
    (True, 'activation', 'resnet.maxpool', (8, 64, 114, 114))
    >>> flnb.memory.dry_run("resnet18", batch=8, capacity="256MiB").fits
    False

    Raises:
        TypeError: ``what`` is neither a function nor a recipe, or the program reads a tensor's value.
        ValueError: an unknown name, or arguments for recipes given with a function.
    """
    title, program = _program(what, steps, optimizer, batch, scale)
    began = perf_counter()
    device = SimulatedDevice(capacity)
    run, label, error = _recorded(title, program, manager, device)
    whole = run if error is None else _recorded(title, program, manager, SimulatedDevice())[0]
    return DryRun(title, label, device.capacity, run, whole, error, perf_counter() - began)


def _recorded(
    title: str, program: Callable[[], object], spec: Any, device: SimulatedDevice
) -> tuple[Recording, str, OutOfMemoryError | None]:
    """Run a program on the backend "meta", whose tensors have no values, and record it.

    Args:
        title: the name of the recording.
        program: the function to run.
        spec: the manager: a name, a class, an instance, or a function that makes a manager from a device.
        device: the device of the manager.

    Returns:
        The recording, the manager's name with its settings, and the out-of-memory error or None.
    """
    label, manager = fresh(spec, Lease(device))
    drawn = random.current_generator().state
    error: OutOfMemoryError | None = None
    with use_backend("meta"), use_memory_manager(manager):
        run: Recording
        try:
            with record(title, buffer="64MiB", grad_interval=None) as run:
                program()
                manager.settle()  # records the frees of what was dropped last
        except OutOfMemoryError as shortage:
            error = shortage  # with its frames, from which its report names the variables that hold memory
        finally:
            random.current_generator().state = drawn
    return run, label, error


def _program(what: Any, steps: int, optimizer: Any, batch: int | None, scale: str) -> tuple[str, Callable[[], object]]:
    """Return the title of the program and a function that runs it; the arguments are those of `dry_run`."""
    from flnb import models

    recipe = models.get(what) if isinstance(what, str) else what
    if isinstance(recipe, models.Recipe):
        if steps < 1:
            raise ValueError(f"dry_run: expected 1 step or more, got {steps}")
        recipe.batch(scale, size=batch and min(batch, 1))  # raises if there is no such scale or size
        made = _optimizer(optimizer)
        title = f"{recipe.name} ({scale}), {steps} steps of {batch or recipe.batch_sizes[scale]} examples"
        return title, lambda: _train(recipe, steps, made, batch, scale)
    if hasattr(what, "parameters"):
        raise TypeError(
            f"dry_run: got a {type(what).__name__} whose memory is allocated already; give a function that builds the "
            f"model and calls it: dry_run(lambda: Model()(flnb.ones(shape)).sum().backward())"
        )
    if not callable(what):
        raise TypeError(f"dry_run: expected a function without arguments or a recipe of flnb.models, got {what!r}")
    if optimizer is not None or batch is not None:
        raise ValueError("dry_run: optimizer= and batch= are for recipes; create both inside the function instead")
    return getattr(what, "__name__", repr(what)), what


def _train(recipe: Recipe, steps: int, optimizer: Callable[..., Any], batch: int | None, scale: str) -> None:
    """Build a recipe's model of the size ``scale``, and do ``steps`` training steps on one batch.

    ``optimizer`` is a function of the parameters; ``batch`` is the number of examples, None for the recipe's own.
    """
    with bus.phase("other"):
        model = recipe.build(scale)
        examples = [ops.asarray(array) for array in recipe.batch(scale, size=batch)]
        updating = optimizer(model.parameters())
    for _ in range(steps):
        updating.zero_grad()
        with bus.phase("forward"):
            loss = recipe.loss(model, *examples)
        loss.backward()
        updating.step()


def _optimizer(given: Any) -> Callable[..., Any]:
    """Return a function that makes an optimizer from parameters, for the argument ``optimizer`` of `dry_run`."""
    from flnb import optim

    if given is None:
        return lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9)
    if not isinstance(given, str):
        return given
    public = ((name.lower(), getattr(optim, name)) for name in optim.__all__ if name != "Optimizer")
    kinds = {name: kind for name, kind in public if isinstance(kind, type) and issubclass(kind, optim.Optimizer)}
    if given.lower() not in kinds:
        raise ValueError(f"dry_run: unknown optimizer {given!r}; known: {', '.join(sorted(kinds))}")
    return lambda parameters: kinds[given.lower()](parameters, lr=0.1)
