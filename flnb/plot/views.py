"""The views of the dashboard as SVG pictures: of a recording, of two that are compared, of ranks, of programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import palette, quantity
from flnb_telemetry.formats import svg
from flnb_telemetry.formats.tape_svg import tape_picture
from flnb_telemetry.live.programs import Kernels

from flnb.explore.runs import compare_runs
from flnb.graph.describing import launches
from flnb.graph.inspection import programs_of
from flnb.plot.devices import devices
from flnb.plot.ranks import collectives
from flnb.plot.svg import svg as drawn
from flnb.plot.threads import timeline

if TYPE_CHECKING:
    from flnb_telemetry.ranks import Ranks
    from flnb_telemetry.recording import Recording

    from flnb.graph.describing import Launch
    from flnb.graph.program import Program

MOST_BARS = 40
"""The most ops, scopes or kernels in a picture."""
MOST_COMPARED = 16
"""The most ops in a picture of a comparison."""
MOST_LAUNCHES = 60
"""The most launches of a program in a picture."""
MARK = 2.0
"""The least width and height of a value in the picture of a program's memory, in pixels."""


def view_svg(run: Recording | Ranks, view: str, beside: Recording | None = None) -> str:
    """Return an SVG document with a view of a recording.

    Args:
        run: a recording, or a `Ranks`, of which there is a picture of the view "collectives".
        view: one of `VIEWS`.
        beside: for the view "comparison", the recording with which ``run`` is compared.

    Raises:
        ValueError: there is no such view, or the recording has no events for the view.

    >>> import flnb
    >>> from flnb.plot.views import view_svg
    >>> with flnb.record("demo") as run:
    ...     y = flnb.ones((64, 64)) * 2.0
    >>> ">multiply<" in view_svg(run, "ops")
    True
    """
    if view == "comparison":
        if beside is None:
            raise ValueError("the view 'comparison' needs a second recording")
        return comparison_svg(run, beside)
    if view not in VIEWS:
        raise ValueError(f"no view {view[:20]!r}; expected one of {', '.join(VIEWS)}, comparison")
    run = getattr(run, "joined", None) or run if view == "collectives" else run
    if isinstance(run, Mapping) and view != "collectives":
        ranks = ", ".join(map(str, run))
        raise ValueError(f"of a recording of the ranks {ranks} only the view 'collectives' has a picture, not {view!r}")
    images = [image for image in VIEWS[view](run) if image]
    if not images:
        raise ValueError(f"the recording has no events for the view {view!r}")
    return svg.stacked(images)


def comparison_svg(a: Any, b: Any) -> str:
    """Return an SVG document that compares two recordings: op times, memory, and timelines below each other."""
    found = compare_runs(a, b)
    rows = [
        (
            f"{row.op} {row.scope}".rstrip(),
            (row.a.time, row.b.time),
            ", ".join([f"{quantity.duration(row.a.time)} → {quantity.duration(row.b.time)}", *row.changes]),
        )
        for row in found.rows[:MOST_COMPARED]
    ]
    title = f"op time per {found.per}: A (above) and B (below)"
    images = [svg.text_lines([found.summary()]), svg.bars(title, "op times of two runs", rows)]
    for name, run in (("A", a), ("B", b)):
        images += [svg.text_lines([f"{name}: {run.name}"]), svg.memory_timeline(run.memory, run.seconds)]
    if len(a.table("op")["t0"]) and len(b.table("op")["t0"]):
        images.append(drawn(timeline(a, b)))
    return svg.stacked([image for image in images if image], f"{a.name} and {b.name} compared")


def program_svg(f: Any) -> str:
    """Return an SVG document with the launches of a function's programs, and the memory of their values."""
    return svg.stacked([_program(each) for each in programs_of(f, "flnb.program")])


def _figure(plot: Callable[[Any], Any], *kinds: str) -> Callable[[Any], Iterable[str]]:
    """Return a function that draws a recording by ``plot`` if it has events of one of the ``kinds``."""

    def images(run: Any) -> Iterable[str]:
        if isinstance(run, Mapping) or any(len(next(iter(run.table(kind).values()))) for kind in kinds):
            yield drawn(plot(run))

    return images


def _memory(run: Recording) -> Iterable[str]:
    if len(run.table("alloc")["t"]):
        yield svg.memory_timeline(run.memory, run.seconds)
        yield svg.block_map(run.memory.peak).partition("<div>")[0]


def _ops(run: Recording) -> Iterable[str]:
    yield svg.op_bars(run.ops, MOST_BARS)
    yield svg.op_bars(run.ops.by("scope"), MOST_BARS, "time by scope")
    kernel, op = run.table("kernel"), run.table("op")
    kernels = Kernels(run.catalog)
    numbers = kernels.numbers(kernel, op)
    known = numbers >= 0
    spent = np.bincount(numbers[known], (kernel["t1"] - kernel["t0"])[known])
    counts = np.bincount(numbers[known])
    order = np.argsort(-spent, kind="stable")[:MOST_BARS].tolist()
    rows = [
        (kernels.items[at].name, (float(spent[at]),), f"{quantity.duration(spent[at])} · {counts[at]} runs")
        for at in order
    ]
    yield svg.bars("kernel time", "total time of the slowest kernels", rows)


VIEWS: dict[str, Callable[[Any], Iterable[str]]] = {
    "overview": svg.pictures,
    "ops": _ops,
    "memory": _memory,
    "tape": lambda run: [tape_picture(run.tape.levels)] if len(run.tape.nodes) else [],
    "timeline": _figure(timeline, "op"),
    "collectives": _figure(collectives, "collective"),
    "devices": _figure(devices, "launch", "copy"),
    "metrics": lambda run: [svg.curve(name, one["step"], one["value"]) for name, one in run.metrics.items()],
}
"""For each view of the dashboard a function that returns its pictures as SVG, of which some may be empty."""


def _program(program: Program) -> str:
    """Return a picture of a program: a row for each launch, and to its right the block of memory during the launch."""
    found = launches(program)
    shown = found[:MOST_LAUNCHES]
    size, wide, below = max(program.memory.size, 1), svg.WIDTH - 212, 20 + 18 * len(shown)
    label = f"a program of {len(found)} launches, with {quantity.size(program.memory.size)} of memory"
    more = f"; the first {MOST_LAUNCHES} are shown" if len(shown) < len(found) else ""
    body = svg.text_at(2, 12, label + more)
    for each in shown:
        body += svg.text_at(204, 33 + 18 * each.number, f"{each.title} ({each.kind})"[: svg.NAME + 8], "end")
    body += "".join(_stored(each, size, wide, below) for each in shown)
    frame = f'x="210" y="20" width="{wide}" height="{below - 20}"'
    body += f'<rect {frame} fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
    return svg.picture(label, body, below + 8)


def _stored(launch: Launch, size: int, wide: float, below: float) -> str:
    """Return the values that a launch stores in the program's block as boxes, each from its launch to its last reader.

    Args:
        launch: the launch.
        size: the bytes of the block.
        wide: the width of the block in the picture.
        below: the bottom of the picture of the block.
    """
    body = ""
    for each in launch.stored:
        if each.offset is not None:
            top, spec = 20 + 18 * each.first, each.value.spec
            x, width = 210 + wide * each.offset / size, max(MARK, wide * spec.nbytes / size)
            height = max(MARK, min(18 * (each.last - each.first + 1), below - top) - 1)
            about = f"{each.name} {quantity.extents(spec.shape)} {spec.dtype.name}, {quantity.size(spec.nbytes)}"
            colour = palette.FAMILY.get(getattr(each.value.op, "family", ""), palette.FAMILY["movement"])[0]
            body += svg.box(x, top, width, height, f'fill="{colour}" stroke="#fff" stroke-width="0.5"', about)
    return body
