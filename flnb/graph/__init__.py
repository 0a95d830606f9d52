"""Programs as graphs: ops are recorded as nodes of a graph (`Value`) instead of being run, and computed later."""

from typing import TYPE_CHECKING, Any

from flnb_telemetry.extras import tool

from flnb.graph.listing import dprint

if TYPE_CHECKING:
    from flnb.graph.inspection import history, source, trace

__all__ = ["dprint", "history", "source", "trace"]


def __getattr__(name: str) -> Any:
    """Import a function of `flnb.graph.inspection` at its first access, so that `import flnb` stays fast."""
    if name not in __all__:
        raise AttributeError(f"module 'flnb.graph' has no attribute {name!r}")
    return tool("flnb.graph.inspection", name)
