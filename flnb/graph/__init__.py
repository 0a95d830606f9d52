"""Programs as graphs: what ran is recorded as values, rewritten, and computed later."""

from flnb.graph.values import Value, reachable

__all__ = ["Value", "reachable"]
