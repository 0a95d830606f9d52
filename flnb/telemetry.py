"""The public names of `flnb_telemetry`."""

from flnb_telemetry import *  # noqa: F403
from flnb_telemetry import __all__ as __all__
