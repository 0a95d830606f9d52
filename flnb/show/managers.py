"""A memory manager as HTML, for the last line of a notebook cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flnb_telemetry import quantity, schema
from flnb_telemetry.analysis.memory import BlockView, SegmentView
from flnb_telemetry.formats import svg
from flnb_telemetry.safe_text import html_text

from flnb.show.tensors import BOX, CODE, DIM

if TYPE_CHECKING:
    from flnb.interface.memory import MemoryManager, SegmentState

SEGMENTS, BLOCKS = 12, 200  # drawn at most


def manager_html(manager: MemoryManager) -> str:
    """Return HTML with a manager's statistics and a bar per segment, with blocks in the colours of their categories."""
    stats = manager.stats()
    size = quantity.size
    many = "" if stats["segments"] == 1 else "s"
    sums = (
        f"{size(stats['allocated'])} in {stats['live']} blocks of {size(stats['reserved'])} reserved in "
        f"{stats['segments']} segment{many} · peak {size(stats['peak_allocated'])} of {size(stats['peak_reserved'])} · "
        f"{quantity.count(stats['allocs'])} allocations, {quantity.count(stats['frees'])} frees"
    )
    segments = [_view(one) for one in manager.snapshot()]
    bars = svg.segment_bars(segments, "segments", SEGMENTS)
    device = manager.device
    limit = "" if device.capacity is None else f" of {size(device.capacity)}"
    return (
        f"<div style='{BOX};min-width:26em'><div><b>{html_text(type(manager).__name__)}</b> "
        f"<span style='{CODE}'>{html_text(manager.name)}</span> "
        f"<span style='{DIM}'>on {html_text(device.name)}{limit}</span>"
        f"</div><div style='{DIM}'>{sums}</div>{bars}</div>"
    )


def _view(state: SegmentState) -> SegmentView:
    """Convert a segment of a manager's snapshot to the form that `svg.segment_bars` draws."""
    segment = state.segment
    blocks = [
        BlockView(b.id, b.address - segment.address, b.size, b.requested, schema.CATEGORIES[b.category], "", "", 0, "")
        for b in state.blocks
        if b.id
    ]
    return SegmentView(segment.id, segment.address, segment.size, tuple(blocks[:BLOCKS]))
