"""Telemetry of flnb: events, their recording and what can be computed from it. Public as `flnb.telemetry`.

Imports nothing of flnb, and of other packages only numpy; pyarrow and pandas when a function needs them.
"""

from flnb_telemetry.analysis.fragmentation import FORMULAS, Fragmentation
from flnb_telemetry.analysis.memory import BlockView, Memory, MemoryState, SegmentView, Timeline
from flnb_telemetry.analysis.ops import OpRow, OpStats
from flnb_telemetry.analysis.tape import Tape, TapeLeaf, TapeNode
from flnb_telemetry.bus import log, phase, scope, step
from flnb_telemetry.formats.html import write_report
from flnb_telemetry.formats.parquet import RunFileError, load_run
from flnb_telemetry.live import Live
from flnb_telemetry.pump import attach, detach, flush
from flnb_telemetry.recording import Recording, record

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
