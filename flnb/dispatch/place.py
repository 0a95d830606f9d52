"""The line of the user's program that is running: the innermost frame outside of flnb."""

from __future__ import annotations

import linecache
import os
import sys
from typing import NamedTuple

import flnb_telemetry

import flnb

__all__ = ["Place", "user_place"]

OURS = tuple(os.path.dirname(package.__file__ or "") + os.sep for package in (flnb, flnb_telemetry))


class Place(NamedTuple):
    """A line of source."""

    file: str = ""
    line: int = 0

    @property
    def source(self) -> str:
        """The line's text, empty where it is not known."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        if not self.file:
            return ""
        return f"{os.path.basename(self.file)}:{self.line}" + (f": {self.source}" if self.source else "")


def user_place() -> Place:
    """Where the program is, seen from within flnb.

    >>> from flnb.dispatch.place import user_place
    >>> user_place().line
    1
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back  # type: ignore[assignment]
    return Place(frame.f_code.co_filename, frame.f_lineno) if frame is not None else Place()
