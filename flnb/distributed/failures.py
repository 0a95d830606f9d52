"""The error of a cell that failed on some rank of a cluster."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Failure", "RankError"]


class Failure(NamedTuple):
    """The error of one rank: the name of its class, its message, and its traceback as text."""

    name: str
    message: str
    traceback: str


class RankError(RuntimeError):
    """A cell failed on some rank of a `Cluster`: the message has the errors of all ranks.

    Attributes:
        failures: by rank, the name of the error's class, its message and its traceback.
    """

    def __init__(self, failures: dict[int, Failure]) -> None:
        self.failures = failures
        same: dict[str, list[int]] = {}
        for rank, failure in failures.items():
            same.setdefault(": ".join(filter(None, failure[:2])), []).append(rank)
        own = [text for text, ranks in same.items() if failures[ranks[0]].name != "CollectiveError"]
        self.first = same[(own or list(same))[0]][0]
        order = own + [text for text in same if text not in own]
        super().__init__("\n".join(f"{_named(same[text])}: {text}" for text in order))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: where the first rank failed, then every rank's error."""
        return [*self.failures[self.first].traceback.splitlines(), "", f"RankError: {self}"]


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
