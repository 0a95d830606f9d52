"""A memory manager or backend alone on a cell's last line."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from flnb_telemetry import palette, quantity, schema

from flnb.show.tensors import BOX, CODE, DIM

if TYPE_CHECKING:
    from flnb.interface.memory import MemoryManager, SegmentState

__all__ = ["manager_html"]

SEGMENTS, BLOCKS = 12, 200  # drawn at most


def manager_html(manager: MemoryManager) -> str:
    """What a manager holds: sums, and its segments as bars in which blocks have the colours of their categories."""
    stats = manager.stats()
    size = quantity.size
    many = "" if stats["segments"] == 1 else "s"
    sums = (
        f"{size(stats['allocated'])} in {stats['live']} blocks of {size(stats['reserved'])} reserved in "
        f"{stats['segments']} segment{many} · peak {size(stats['peak_allocated'])} of {size(stats['peak_reserved'])} · "
        f"{quantity.count(stats['allocs'])} allocations, {quantity.count(stats['frees'])} frees"
    )
    segments = sorted(manager.snapshot(), key=lambda one: -one.segment.size)
    largest = segments[0].segment.size if segments else 1
    bars = "".join(_bar(one, largest) for one in segments[:SEGMENTS])
    if len(segments) > SEGMENTS:
        bars += f"<div style='{DIM}'>and {len(segments) - SEGMENTS} smaller segments</div>"
    used = sorted({block.category for one in segments for block in one.blocks if block.id})
    legend = " ".join(f"<span style='color:{_colour(c)}'>■</span> {_name(c)}" for c in used)
    device = manager.device
    limit = "" if device.capacity is None else f" of {size(device.capacity)}"
    return (
        f"<div style='{BOX};min-width:26em'><div><b>{escape(type(manager).__name__)}</b> "
        f"<span style='{CODE}'>{escape(manager.name)}</span> <span style='{DIM}'>on {escape(device.name)}{limit}</span>"
        f"</div><div style='{DIM}'>{sums}</div>{bars}<div style='{DIM}'>{legend}</div></div>"
    )


def _bar(state: SegmentState, largest: int) -> str:
    segment = state.segment
    blocks = [block for block in state.blocks if block.id][:BLOCKS]
    parts = "".join(
        f"<rect x='{100 * (b.address - segment.address) / segment.size:.3f}' width='{100 * b.size / segment.size:.3f}' "
        f"height='10' fill='{_colour(b.category)}'><title>block {b.id}: {quantity.size(b.size)} {_name(b.category)}"
        f"</title></rect>"
        for b in blocks
    )
    used = quantity.size(sum(block.size for block in state.blocks if block.id))
    said = f"segment {segment.id}: {used} of {quantity.size(segment.size)}"
    width = max(8, round(100 * segment.size / largest))
    return (
        f"<svg role='img' aria-label='{said}' viewBox='0 0 100 10' preserveAspectRatio='none' style='display:block;"
        f"width:{width}%;height:14px;margin:3px 0;border:1px solid var(--jp-border-color1,#8888)'>"
        f"<title>{said}</title>{parts}</svg>"
    )


def _name(category: int) -> str:
    return schema.CATEGORIES[category]


def _colour(category: int) -> str:
    """The dark theme's colour, which can be seen on both."""
    return palette.CATEGORY[_name(category)][1]
