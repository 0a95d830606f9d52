"""Telemetry of flnb: events, recordings of them, and analyses of recordings. Public as `flnb.telemetry`.

This package does not import `flnb`, and needs only numpy; functions that need pyarrow or pandas import these packages.
The event bus is imported immediately, because every op needs it; other modules are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flnb_telemetry.bus import log, phase, scope, step

if TYPE_CHECKING:
    from flnb_telemetry.formats.listing import runs
    from flnb_telemetry.formats.parquet import load_run
    from flnb_telemetry.formats.stored import RunFileError
    from flnb_telemetry.pump import attach, detach, flush
    from flnb_telemetry.ranks import Ranks
    from flnb_telemetry.recorder import record
    from flnb_telemetry.recording import Recording

_HOME = {
    "formats.listing": ("runs",),
    "formats.parquet": ("load_run",),
    "formats.stored": ("RunFileError",),
    "pump": ("attach", "detach", "flush"),
    "ranks": ("Ranks",),
    "recorder": ("record",),
    "recording": ("Recording",),
}

__all__ = ["Ranks", "Recording", "RunFileError", "attach", "detach", "flush", "load_run"]
__all__ += ["log", "phase", "record", "runs", "scope", "step"]


def __getattr__(name: str) -> Any:
    for home, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"flnb_telemetry.{home}"), name)
    raise AttributeError(f"module 'flnb_telemetry' has no attribute {name!r}")
