"""What is raised where a cell fails on some rank of a cluster, or is interrupted."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Failure", "Interrupted", "RankError"]


class Failure(NamedTuple):
    """The error of one rank: the name of its class, its message, and its traceback as text."""

    name: str
    message: str
    traceback: str


def _grouped(texts: dict[int, str]) -> dict[str, list[int]]:
    """The ranks that say the same, by what they say."""
    same: dict[str, list[int]] = {}
    for rank, text in texts.items():
        same.setdefault(text, []).append(rank)
    return same


def _lines(same: dict[str, list[int]]) -> str:
    return "\n".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {text}" for text, ranks in same.items()
    )


class RankError(RuntimeError):
    """A cell failed on some rank of a `Cluster`: the message has the errors of all ranks.

    Attributes:
        failures: by rank, the name of the error's class, its message and its traceback.
    """

    def __init__(self, failures: dict[int, Failure]) -> None:
        self.failures = failures
        own = [rank for rank, failure in failures.items() if failure.name != "CollectiveError"]
        order = own + [rank for rank in failures if rank not in own]
        self.first = order[0]
        super().__init__(_lines(_grouped({rank: ": ".join(filter(None, failures[rank][:2])) for rank in order})))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: where the first rank failed, then every rank's error."""
        return [*self.failures[self.first].traceback.splitlines(), "", f"RankError: {self}"]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a cell that ran on the ranks of a `Cluster`; the message says in which line each of them was."""

    def __init__(self, places: dict[int, str]) -> None:
        super().__init__(_lines(_grouped(places)))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: no traceback of the program that waited."""
        return [f"KeyboardInterrupt: {self}"]
