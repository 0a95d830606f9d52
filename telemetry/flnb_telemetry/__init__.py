"""Telemetry of flnb: events, their recording and what can be computed from it. Public as `flnb.telemetry`.

Imports nothing of flnb, and of other packages only numpy; pyarrow and pandas when a function needs them. Only the bus
is loaded at once, because every op needs it; the rest when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flnb_telemetry.bus import log, phase, scope, step

if TYPE_CHECKING:
    from flnb_telemetry.analysis.fragmentation import FORMULAS, Fragmentation
    from flnb_telemetry.analysis.memory import BlockView, Memory, MemoryState, SegmentView, Timeline
    from flnb_telemetry.analysis.ops import OpRow, OpStats
    from flnb_telemetry.analysis.tape import Tape, TapeLeaf, TapeNode
    from flnb_telemetry.formats.html import write_report
    from flnb_telemetry.formats.parquet import RunFileError, load_run
    from flnb_telemetry.live import Live
    from flnb_telemetry.pump import attach, detach, flush
    from flnb_telemetry.recording import Recording, record

_HOME = {
    "analysis.fragmentation": ("FORMULAS", "Fragmentation"),
    "analysis.memory": ("BlockView", "Memory", "MemoryState", "SegmentView", "Timeline"),
    "analysis.ops": ("OpRow", "OpStats"),
    "analysis.tape": ("Tape", "TapeLeaf", "TapeNode"),
    "formats.html": ("write_report",),
    "formats.parquet": ("RunFileError", "load_run"),
    "live": ("Live",),
    "pump": ("attach", "detach", "flush"),
    "recording": ("Recording", "record"),
}
_LAZY = {name: f"flnb_telemetry.{module}" for module, names in _HOME.items() for name in names}

__all__ = [
    "FORMULAS",
    "BlockView",
    "Fragmentation",
    "Live",
    "Memory",
    "MemoryState",
    "OpRow",
    "OpStats",
    "Recording",
    "RunFileError",
    "SegmentView",
    "Tape",
    "TapeLeaf",
    "TapeNode",
    "Timeline",
    "attach",
    "detach",
    "flush",
    "load_run",
    "log",
    "phase",
    "record",
    "scope",
    "step",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'flnb_telemetry' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
