"""The public names of `flnb_telemetry`."""

from flnb_telemetry import *  # noqa: F403
from flnb_telemetry import __all__ as _names
from flnb_telemetry.live.view import Live as Live

__all__ = ["Live", *_names]
