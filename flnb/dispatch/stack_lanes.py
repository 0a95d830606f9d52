"""Lanes (the threads' lists of events) whose context includes the user's call stack, for `creation_stacks("full")`.

Each event has the number of a context. The code that emits an event reads this number from ``lane.context``. In these
lanes, `context` is a property that finds the running frames. So events of all kinds have a stack, and events of
ordinary lanes take no more time than before.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from flnb_telemetry import intern
from flnb_telemetry.lane import Lane

from flnb.dispatch.source_lines import lines, user_frames

if TYPE_CHECKING:
    from types import FrameType

_context: Any = Lane.__dict__["context"]  # the slot, in which the context without a stack is stored
_known: dict[tuple[int, ...], tuple[int, Any]] = {}
MOST = 1 << 16
"""The largest number of call stacks in `_known`, which also stores their code objects, because the keys are ids."""


class StackLane(Lane):
    """A lane whose `context`, when it is read, includes the present call stack, reduced to the user's frames."""

    __slots__ = ()

    @property
    def context(self) -> int:
        """The number of the context of an event that is emitted now."""
        return with_stack(_context.__get__(self), sys._getframe(1))

    @context.setter
    def context(self, number: int) -> None:
        _context.__set__(self, number)

    @property
    def base(self) -> int:
        """The number of the context that was last assigned to `context`, without a call stack."""
        return int(_context.__get__(self))


def with_stack(base: int, frame: FrameType | None) -> int:
    """Return the number of a context like number ``base``, with the call stack of ``frame`` added.

    If context ``base`` has a source line already, ``base`` is returned.
    """
    place: intern.Context = intern.contexts.items[base]
    if place.line:
        return base
    frames = user_frames(frame)
    key = (base, *(number for code, lasti in frames for number in (id(code), lasti)))
    found = _known.get(key)
    if found is None:
        if len(_known) >= MOST:
            _known.clear()
        found = _known[key] = (_interned(place, frames), frames)
    return found[0]


def _interned(place: intern.Context, frames: list[tuple[Any, int]]) -> int:
    """Store a copy of the context ``place`` with the text of the call stack ``frames``; return the number of the copy.

    The frames themselves are stored, too, for displays.
    """
    stack = lines(tuple(frames), -1)
    number = intern.contexts.id_of(place._replace(line="\nfrom ".join(line.brief for line in stack)))
    if stack:
        intern.stacks[number] = tuple(intern.Frame(line.function, line.file, line.line) for line in stack)
    return number
