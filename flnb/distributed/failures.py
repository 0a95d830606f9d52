"""Exceptions for cells that fail or are interrupted on ranks of a cluster."""

from __future__ import annotations

from typing import NamedTuple


class Failure(NamedTuple):
    """The error of one rank: class name, message, and traceback as text."""

    name: str
    message: str
    traceback: str


def _grouped(texts: dict[int, str]) -> dict[str, list[int]]:
    """Group the ranks that have the same text; returns a dict from each text to a list of its ranks."""
    same: dict[str, list[int]] = {}
    for rank, text in texts.items():
        same.setdefault(text, []).append(rank)
    return same


def _lines(same: dict[str, list[int]]) -> str:
    return "\n".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {text}" for text, ranks in same.items()
    )


class RankError(RuntimeError):
    """A cell failed on one or more ranks of a `Cluster`; the message contains every rank's error.

    Attributes:
        failures: for each rank that failed, the name of the error's class, its message and its traceback.
    """

    def __init__(self, failures: dict[int, Failure]) -> None:
        self.failures = failures
        own = [rank for rank, failure in failures.items() if failure.name != "CollectiveError"]
        order = own + [rank for rank in failures if rank not in own]
        self.first = order[0]
        super().__init__(_lines(_grouped({rank: ": ".join(filter(None, failures[rank][:2])) for rank in order})))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: the first rank's traceback, then every rank's error."""
        return [*self.failures[self.first].traceback.splitlines(), "", f"RankError: {self}"]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a cell that ran on the ranks of a `Cluster`; the message names the line where each rank was."""

    def __init__(self, places: dict[int, str]) -> None:
        super().__init__(_lines(_grouped(places)))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: the message alone, without a traceback."""
        return [f"KeyboardInterrupt: {self}"]
