"""The results of the study as tables on the screen, as a section of benchmarks/results/README.md, and as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry import quantity

from benchmarks.memory.findings import (
    CLAIM,
    NO_LIMIT,
    READINGS,
    Moved,
    Result,
    best,
    best_over_all,
    less_than_default,
    moved,
    name_of,
    peak,
    splits,
)  # fmt: skip
from benchmarks.memory.sweep import LIMITS, SMALL_LIMITS
from benchmarks.memory.traces import KINDS
from benchmarks.report import markdown, table

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["drawn", "section", "told"]


def managers(results: Sequence[Result]) -> list[dict[str, str]]:
    """Return a row of the table for each model, with two ratios for each manager, the second in brackets.

    The first ratio is the peak of reserved bytes, the second the bytes of the smallest sufficient device, both divided
    by the peak of live bytes.
    """
    rows = []
    for result in results:
        row = {"trace": result.model, "most live": quantity.size(result.peak_live)}
        row["packed"] = f"{result.packed / result.peak_live:.3f}{'' if result.optimal else ' *'}"
        shown = {"caching": result.default, "best limits": result.sweep[best(result)]} | result.others
        for name, measures in shown.items():
            row[name] = f"{peak(result, measures):.3f} ({measures.needed / result.peak_live:.2f})"
        rows.append(row)
    return rows


def defaults(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return a row of the table for each model, with every measure of the default caching manager."""
    rows = []
    for result in results:
        of = result.default
        parts = {
            name: f"{getattr(of, f'{part}_at_peak'):.4f} / {getattr(of, part):.4f}"
            for name, part in {"in blocks": "waste", "in use": "stranded", "idle": "idle"}.items()
        }
        rows.append(
            {
                "trace": result.model, "calls": f"{result.calls:,}", "reserved/live: at peak": f"{of.at_peak:.3f}",
                "on average": f"{of.average:.3f}", **parts, "internal": f"{of.internal:.2%}",
                "unusable": f"{of.unusable:.0%}", "largest hole": quantity.size(of.largest_hole),
                "native calls": of.native_calls, "ns per call": round(of.ns_per_call),
            }
        )  # fmt: skip
    return rows


def settings(results: Sequence[Result]) -> list[dict[str, str]]:
    """Return rows of the table with the caching manager's best limits, for each model and for all models together.

    Half of the rows are about the limits with the lowest peak of reserved bytes, the others about the limits with the
    smallest sufficient device.
    """
    rows = []
    measures = {"most reserved": peak, "smallest device": lambda result, of: of.needed / result.peak_live}
    for title, measure in measures.items():
        for result in results:
            limits = best(result, measure)
            before, after = (measure(result, result.sweep[pair]) for pair in (NO_LIMIT, limits))
            rows.append(
                {
                    "least": title,
                    "trace": result.model,
                    "limits": name_of(limits),
                    "change": f"{after / before - 1:+.1%}",
                }
            )
        limits, mean = best_over_all(results, measure)
        rows.append({"least": title, "trace": "all", "limits": name_of(limits), "change": f"{mean:+.1%} (mean)"})
    return rows


def found(results: Sequence[Result]) -> list[Moved]:
    """Return the effect of limited splitting for every measure that the paper may mean by "internal fragmentation"."""
    return [moved(results, reading, splits(results)) for reading in READINGS]


def readings(results: Sequence[Result]) -> list[dict[str, str]]:
    """Return the results of `found` as rows of the table."""
    return [
        {
            "bytes that are not live, per live byte": one.reading,
            f"falls by over {CLAIM:.0%} for": f"{one.falls} of {one.models}",
            "with": name_of(one.limits),
            "median before -> after": f"{one.before:.4f} -> {one.after:.4f}",
            "change, of single models": f"{_signed(one.least)} .. {_signed(one.most)}",
            "most reserved": f"{one.reserved:+.0%}",
        }
        for one in found(results)
    ]


STRANDED, WASTE = "free in segments in use, on average", "in blocks, on average"
"""Readings of "internal fragmentation": the one that falls, and the one of the textbooks."""

BOUNDS = ("offline packing", "native")
"""Entries that are bounds rather than competitors: the native manager reserves only the live bytes, at a high cost."""


def _signed(change: float) -> str:
    return f"{change:+.0%}" if change < 10 else "> +999%"


def conclusions(results: Sequence[Result]) -> list[str]:
    """Return sentences that state the results with their numbers."""
    moves = {one.reading: one for one in found(results)}
    count, most = len(results), len(results) // 2
    held = [f"{one.reading} ({name_of(one.limits)})" for one in moves.values() if one.holds]
    sentences = [f"Restricted splitting lowers by over {CLAIM:.0%} for most models: {'; '.join(held) or 'nothing'}."]
    free = moves[STRANDED]
    if free.holds:
        waste = moved(results, WASTE, [free.limits])
        sentences.append(
            f"With {name_of(free.limits)}, what is {STRANDED}, falls from {free.before:.3f} to {free.after:.3f} of "
            f"what is live (median); what lies {WASTE}, goes from {waste.before:.3f} to {waste.after:.3f}, "
            f"and the most that is reserved changes by {free.reserved:+.1%} (mean)."
        )
    less = [less_than_default(result) for result in results]
    others = [name for name in less[0] if name not in BOUNDS]
    sentences += [
        f"{name} reserves at least {CLAIM:.0%} less than the default for most models."
        for name in others
        if sum(one[name] >= CLAIM for one in less) > most
    ]
    top = max(others, key=lambda name: sum(one[name] for one in less))
    parts = [f"{one[top]:.1%} of {one['offline packing']:.1%}" for one in less]
    could = sum(one["offline packing"] >= CLAIM for one in less)
    sentences.append(
        f"Offline packing would save {CLAIM:.0%} or more of what the default reserves for {could} of {count} models. "
        f"Closest to it is {top}, which saves, of what can be saved: {', '.join(parts)}."
    )
    return sentences


def kinds(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Group the results by the kind of their traces."""
    return {kind: group for kind in KINDS if (group := [result for result in results if result.kind == kind])}


def told(results: Sequence[Result]) -> str:
    """Return all tables and conclusions as text for the terminal."""
    lines = []
    for kind, group in kinds(results).items():
        lines += ["", f"=== {KINDS[kind]}", "", "the default caching manager (parts: at the peak / on average)"]
        lines += [table(defaults(group)), "", "most reserved (smallest device), per byte of the most live"]
        lines += [table(managers(group)), "", table(settings(group)), "", table(readings(group)), ""]
        lines += conclusions(group)
    return "\n".join([*lines, "", "packed: the best offline packing; * where a lower one may exist"])


def section(results: Sequence[Result]) -> str:
    """Return the summary of the study in Markdown."""
    parts = [
        "## Memory managers (`python -m benchmarks memory`)",
        "The most that is reserved, per byte of the most that is live; in brackets the smallest device on which the "
        "run ends (idle segments go back when it is full). Packed: the best offline packing found (* a lower one may "
        "exist).",
    ]
    for kind, group in kinds(results).items():
        parts += [f"**{kind.capitalize()}**: {KINDS[kind]}.", markdown(managers(group))]
        if kind == "paper":
            parts.append(markdown(readings(group)))
        parts.append(" ".join(conclusions(group)))
    return "\n\n".join(parts)


def drawn(results: Sequence[Result]) -> Any:
    """Return a plotly figure of the peak of reserved / live bytes, for every trace and every pair of limits."""
    from plotly.subplots import make_subplots

    groups = kinds(results)
    width = max(map(len, groups.values()))
    titles = [f"{result.model}, {kind}" for kind, group in groups.items() for result in group]
    figure = make_subplots(len(groups), width, subplot_titles=titles, vertical_spacing=0.1, horizontal_spacing=0.03)
    for row, (kind, group) in enumerate(groups.items(), 1):
        limits = SMALL_LIMITS if kind == "cpu" else LIMITS
        names = ["none" if mib is None else f"{mib:g}" for mib in limits]
        for column, result in enumerate(group, 1):
            swept = [mib for mib in limits if any(mib in pair for pair in result.sweep)]
            reserved = [[_at(result, split, recycling) for recycling in swept] for split in swept]
            shown = [names[limits.index(mib)] for mib in swept]
            figure.add_heatmap(x=shown, y=shown, z=reserved, coloraxis="coloraxis", row=row, col=column)
    figure.update_xaxes(title="recycling limit, MiB", type="category")
    figure.update_yaxes(title="split limit, MiB", type="category")
    colours = {"colorscale": "Viridis", "colorbar_title": "reserved / live"}
    return figure.update_layout(height=320 * len(groups), width=330 * width, coloraxis=colours)


def _at(result: Result, split: float | None, recycling: float | None) -> float:
    return peak(result, result.at((split, recycling)))
