"""Telemetry of flnb: events, their recording and what can be computed from it. Public as `flnb.telemetry`.

Imports nothing of flnb, and of other packages only numpy.
"""

from flnb_telemetry.bus import log, phase, scope, step

__all__ = ["log", "phase", "scope", "step"]
