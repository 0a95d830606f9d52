"""Programs as graphs: ops are recorded as values, which are computed later."""

from flnb.graph.listing import dprint

__all__ = ["dprint"]
