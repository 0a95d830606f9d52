"""Locations in the user's program: a code object and the offset of an instruction, which determine file and line.

Determining a location takes about 0.15 us, because no line is looked up and no frame is stored. Frames of flnb are
skipped. In events, the line is part of the context (`flnb_telemetry.intern.Context`), whose number `sites` stores by
location.
"""

from __future__ import annotations

import linecache
import os
import sys
from functools import lru_cache
from time import perf_counter_ns as clock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import flnb_telemetry
from flnb_telemetry import bus, intern, schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

__all__ = [
    "Line", "caller", "creation_stacks", "fixed", "here", "interned", "is_own", "is_users", "lines", "located",
    "name_of", "outside", "own", "pinned", "site", "sites", "where", "with_own_lines",
]  # fmt: skip

T = TypeVar("T")
_PACKAGES = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.path.dirname(flnb_telemetry.__file__))
_ROOTS = tuple(package + os.sep for package in _PACKAGES)
_LIBRARIES = (*(os.path.dirname(path) + os.sep for path in (os.__file__, sys.executable) if path), "<frozen ")
_INSTALLED = tuple(f"{os.sep}{name}-packages{os.sep}" for name in ("site", "dist"))
_BACKENDS = os.sep + "flnb_backends" + os.sep  # not imported here: a backend imports this package


def is_own(filename: str) -> bool:
    """Return whether a source file belongs to flnb rather than to the user."""
    return filename.startswith(_ROOTS) or _BACKENDS in filename


class _Own(dict[str, bool]):
    """A dict from file names to bools: True if `outside` must be called for a frame of the file.

    That is so for files of flnb and of libraries, because `outside` finds the user's frame; and for all files while
    whole stacks are recorded, because `outside` returns the stack.
    """

    full = False

    def __missing__(self, filename: str) -> bool:
        if len(self) > 4096:  # every run of a notebook's cell is a file of its own
            self.clear()
        self[filename] = found = self.full or not is_users(filename)
        return found


own = _Own()


class Stack(NamedTuple):
    """The user's call stack as pairs of code and offset, the innermost first; nodes store it on request."""

    f_code: tuple[tuple[CodeType, int], ...]
    f_lasti: int


def outside(frame: FrameType | None) -> Any:
    """Return the user's innermost frame, beginning at ``frame``; a `Stack` if whole stacks are recorded.

    Without a frame of the user, as in the threads of some libraries, the innermost frame outside of flnb is returned.
    """
    if own.full:
        return Stack(tuple(user_frames(frame)), -1)
    found = frame
    while found is not None and own[found.f_code.co_filename]:
        found = found.f_back
    if found is not None:
        return found
    found = frame
    while found is not None and is_own(found.f_code.co_filename):
        found = found.f_back
    return found or frame


class _Users(dict[str, int]):
    """A dict from file names to 0 for files of flnb or a library, 1 for files of the user, 2 for notebook cells."""

    def __missing__(self, filename: str) -> int:
        if len(self) > 4096:
            self.clear()
        library = is_own(filename) or filename.startswith(_LIBRARIES) or any(part in filename for part in _INSTALLED)
        self[filename] = found = 0 if library else 2 if "ipykernel_" in filename else 1
        return found


_users = _Users()


def is_users(filename: str) -> bool:
    """Return whether a source file belongs to the user, and not to flnb or an installed library."""
    return _users[filename] > 0


def user_frames(frame: FrameType | None) -> list[tuple[CodeType, int]]:
    """Return code and offset of ``frame`` and its callers, without frames of flnb and of libraries.

    Frames of the kernel that runs a notebook cell are not included either.
    """
    found = []
    while frame is not None:
        code = frame.f_code
        kind = _users[code.co_filename]
        if kind:
            found.append((code, frame.f_lasti))
            if kind == 2 and code.co_name == "<module>":
                break
        frame = frame.f_back
    return found


class creation_stacks:
    """Choose whether nodes store the user's whole call stack (``"full"``) or one line (``"line"``, the default).

    The choice also applies to recorded ops, allocations and collectives; `flnb.record(stacks=True)` makes it for its
    block. Frames of flnb and of installed libraries are left out.

    The choice applies to all threads; as a context manager it is restored at the end of the block. Whole stacks take
    about 1 us per op, and memory.

    >>> import flnb
    >>> x = flnb.Variable([1.0])
    >>> def twice(x):
    ...     return x * 2.0
    >>> with flnb.creation_stacks("full"):
    ...     y = twice(x)
    >>> [line.function for line in flnb.creation_stack(y)][:2]
    ['twice', '<module>']
    """

    def __init__(self, what: str) -> None:
        if what not in ("full", "line"):
            raise ValueError(f"creation_stacks: got {what!r}, expected 'full' or 'line'")
        self._before = own.full
        _set(what == "full")

    def __enter__(self) -> creation_stacks:
        return self

    def __exit__(self, *_: object) -> None:
        _set(self._before)


def _set(full: bool) -> None:
    """Switch between whole stacks (``full``) and one line, both for nodes and for events."""
    own.full = full
    own.clear()


class _Known(dict[Any, int]):
    """The contexts that differ from the context ``plain`` in the user's line only, by location.

    The key of a location is ``id(code) + offset``, an address inside of the code object; the list `_located` refers to
    the code object, so that no other gets this address. The key of a call stack is the tuple of the ids and offsets.
    """

    def __init__(self, plain: int) -> None:
        self.plain = plain


class _Fixed(_Known):
    """Stands for `_Known` if the context has a line that ops must not replace; ``number`` is the context's own."""

    def __init__(self, plain: int, number: int) -> None:
        super().__init__(plain)
        self.number = number

    def get(self, *_: Any) -> int:
        return self.number


class _Sites(dict[int, _Known]):
    """A dict from a context, with or without a line, to its `_Known`."""

    def __missing__(self, context: int) -> _Known:
        place = intern.contexts.items[context]
        plain = intern.contexts.id_of(place._replace(line="")) if place.line else context
        self[context] = found = _Known(context) if plain == context else self[plain]
        return found


sites = _Sites()
"""Contexts with the line of the op that is running."""
fixed = _Sites()
"""Contexts with the line of an earlier op, for which other ops run now: its gradient's, or those that were deferred."""
_located: list[Any] = []
MOST = 1 << 16
"""The largest number of locations in `sites` and `fixed`, which are all discarded then."""


def located(context: int, code: Any, lasti: int, among: _Sites = sites) -> int:
    """Return the number of a context like number ``context``, but with the line, or call stack, of a location.

    With ``among=fixed`` the context is `pinned`.
    """
    stack = isinstance(code, tuple)
    key = tuple([number for c, i in code for number in (id(c), i)]) if stack else id(code) + lasti
    known = among[context]
    number = known.get(key)
    if number is None:
        if len(_located) >= MOST:
            for each in (*sites.values(), *fixed.values()):
                each.clear()  # not the outer dicts: a backward pass may refer to one of their values
            _located.clear()
        frames = lines(code, lasti)
        text = "\nfrom ".join(line.brief for line in frames)
        number = intern.contexts.id_of(intern.contexts.items[context]._replace(line=text))
        if stack and frames:
            intern.stacks[number] = tuple(intern.Frame(line.function, line.file, line.line) for line in frames)
        if among is fixed:
            number = pinned(number)
        _located.append(code)  # before its address becomes a key
        known[key] = number
    return number


def with_own_lines(function: Callable[..., T], *arguments: Any) -> T:
    """Call a user's function in a backward pass; its ops get the lines at which they are, see `pinned`."""
    lane = bus.lanes.lane if bus.lanes is not None else None
    if lane is None:
        return function(*arguments)
    context = lane.context
    lane.context = sites[context].plain
    try:
        return function(*arguments)
    finally:
        lane.context = context


@lru_cache(None)
def pinned(context: int) -> int:
    """Return the number of a context equal to number ``context`` whose line stays while ops run elsewhere."""
    if not intern.contexts.items[context].line:
        return context
    number = intern.contexts.append(intern.contexts.items[context])
    if context in intern.stacks:
        intern.stacks[number] = intern.stacks[context]
    sites[number] = fixed[number] = _Fixed(sites[context].plain, number)
    return number


class Line(NamedTuple):
    """A line of the user's program.

    Attributes:
        file: the path of the file; for a notebook cell its name, such as "In [5]".
        function: the name of the function that contains the line.
        source: the text of the line, empty if the file cannot be read.
    """

    file: str
    line: int
    function: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f": {self.source}" if self.source else "")

    @property
    def brief(self) -> str:
        """Return the line as text for tables: ``file:line`` without the folder, ``In [5]:line`` for a notebook cell."""
        return str(self._replace(file=os.path.basename(self.file)))


def name_of(file: str) -> str:
    """Return the name of a notebook cell, such as "In [5]", given its path; return other paths unchanged."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named = getattr(getattr(shell, "compile", None), "format_code_name", None)
    kind, name = (named and named(file)) or ("", "")
    return f"In [{name[3:-1]}]" if kind == "Cell" else "cell" if "ipykernel_" in file else file


def lines(code: Any, lasti: int) -> list[Line]:
    """Return the lines for the code and offset that a node stores, the innermost first."""
    pairs = code if isinstance(code, tuple) else ((code, lasti),) if code is not None else ()
    return [_line(c, i) for c, i in pairs]


def _line(code: CodeType, lasti: int) -> Line:
    """Return the source line to which an offset in a code object belongs."""
    number = next((n for start, end, n in code.co_lines() if start <= lasti < end and n), code.co_firstlineno)
    source = linecache.getline(code.co_filename, number).strip()
    return Line(name_of(code.co_filename), number, code.co_name, source)


def site() -> tuple[Any, int]:
    """Return code and offset of the line of the user's program that is running now."""
    frame = outside(sys._getframe(1))
    return frame.f_code, frame.f_lasti


def caller() -> str:
    """Return the line of the user's program that is running now as text, ``file:line: source``."""
    return where(*site())


def where(code: Any, lasti: int) -> str:
    """Return the code and offset that a node stores as text for an error message: ``file:line: source``.

    If the node stores a call stack, the text has one line for each frame.
    """
    return "\n    from ".join(map(str, lines(code, lasti))) or "an unknown line"


def note_cut(reason: int, node: int) -> None:
    """Emit an event that the user's line cuts the tape at ``node``, for `run.tape.why`; ``reason`` is a code."""
    if bus.lanes is not None:
        code = schema.CUT | reason << schema.AUX_SHIFT
        bus.emit(code, clock(), node, interned(*site()), bus.lanes.lane.context)


def here(context: int) -> int:
    """Return the number of a context like number ``context``, with the line of the user's program running now."""
    return located(context, *site())


@lru_cache(1024)
def interned(code: Any, lasti: int) -> int:
    """Return the number under which telemetry stores the text of a node's location."""
    return intern.strings.id_of(where(code, lasti))
