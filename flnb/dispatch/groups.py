"""The groups of ranks of this process: which is active, how many calls it has made, and why it may be unusable."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from flnb_telemetry import bus, intern

from flnb.dispatch import state
from flnb.dispatch.board import FAILED, INSIDE, Board
from flnb.dispatch.effects import effects
from flnb.interface.communicator import CollectiveError, Communicator

if TYPE_CHECKING:
    from flnb.dispatch.calls import Call
    from flnb.interface.communicator import Work

_named: dict[tuple[str, int], int] = {}
"""The number of communicators so far, by group name and rank."""
_groups: WeakKeyDictionary[Any, Group] = WeakKeyDictionary()
"""The groups by board; so a communicator and its wrapper number their calls together."""


class Group:
    """The state of one group of ranks in this process: its calls, and the reason why it is unusable after a failure."""

    def __init__(self, communicator: Communicator) -> None:
        self.seq = 0
        name, rank = communicator.group_name or communicator.name, communicator.rank
        before = _named[name, rank] = _named.get((name, rank), 0) + 1  # ranks make their groups in the same order
        name += f" #{before}" if before > 1 else ""
        info = intern.GroupInfo(name, rank, communicator.size, platform.node(), os.getpid())
        self.number = intern.groups.id_of(info)
        self.calls: dict[Any, Call] = {}
        self.broken = ""
        self.unfinished: list[tuple[Work, Any]] = []
        """Operations that still run after an interrupt or error, with the buffers that they use."""

    def release(self) -> None:
        """Release the buffers of abandoned operations that have finished."""
        for one in list(self.unfinished):
            try:
                over = one[0].test()
            except Exception:  # it has ended by an error
                over = True
            if over:
                self.unfinished = [other for other in self.unfinished if other is not one]


def _facts() -> dict[str, Any]:
    """Return the rank, the number of ranks, the host and the process id, for the metadata of a new recording.

    The result is empty if there is a single rank.
    """
    here = current()
    if here.size == 1:
        return {}
    return {"rank": here.rank, "ranks": here.size, "host": platform.node(), "process": os.getpid()}


def _states() -> dict[int, str]:
    """Return the problems of running calls: a dict from rank to text.

    A rank's text says why a call has waited for this rank for over a second. The key -1 has the reason why a call of
    this process failed.
    """
    found: dict[int, str] = {}
    keys = [ref() for ref in _groups.keyrefs()]  # other threads may add groups
    known = [(key, _groups[key]) for key in keys if isinstance(key, Board)]
    newest = intern.groups.items[known[-1][1].number].name if known else ""
    for board, group in known:
        if group.broken and intern.groups.items[group.number].name == newest:
            found.setdefault(-1, group.broken)
        row = board.row(board.rank)
        if row.state == INSIDE and row.seconds > 1.0:
            gone = board.gone(board.unfinished(row.seq), row.seq)
            found |= {rank: text.partition(";")[0] for rank, text in gone.items()}
    return found


def current() -> Communicator:
    """Return the active communicator of this thread and context, by default a group of one rank.

    >>> import flnb
    >>> flnb.distributed.current()
    <Single communicator 'single', rank 0 of 1>
    """
    return state.current().parts["communicator"]  # type: ignore[return-value]


def abandon(communicator: Communicator, reason: str) -> None:
    """Make all further calls of a communicator raise an error, and notify the ranks that wait for this rank.

    ``reason`` is the text of these errors.
    """
    _group(communicator).broken = reason
    if communicator.board is not None:
        communicator.board.end(FAILED)


def _group(communicator: Communicator) -> Group:
    group: Group | None = communicator.ranks_group
    if group is None:
        key = communicator if communicator.board is None else communicator.board
        group = _groups.get(key)
        if group is None:
            group = _groups[key] = Group(communicator)
        communicator.ranks_group = group
    return group


def refuse_captured() -> None:
    """Raise a `RuntimeError` during capture by `flnb.jit`: communication with other ranks would not be repeated."""
    if effects.get() is not None:
        raise RuntimeError("flnb.jit: a collective call cannot be captured: make it outside the captured function")


def usable_group(communicator: Communicator, name: str) -> Group:
    """Return the group of a communicator for a call of the operation ``name``.

    Raises:
        CollectiveError: an earlier call of the group failed.
        RuntimeError: `flnb.jit` is capturing.
    """
    refuse_captured()
    group = _group(communicator)
    if group.broken:
        raise CollectiveError(f"{name}: this communicator failed before and can no longer be used: {group.broken}")
    if group.unfinished:
        group.release()
    return group


bus.describers.append(_facts)
bus.state_sources.append(_states)
