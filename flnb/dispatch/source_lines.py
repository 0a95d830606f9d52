"""Locations in the user's program: a code object and the offset of an instruction, which determine file and line.

Determining a location takes about 0.15 us, because no line is looked up and no frame is stored. Frames of flnb are
skipped. In events, the line is part of the context (`flnb_telemetry.intern.Context`), whose number a `Location` stores.
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
from flnb_telemetry.withblock import WithBlock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from flnb_telemetry.lane import Lane

__all__ = [
    "Line", "Location", "caller", "common_line", "common_location", "creation_stacks", "fixed", "here", "interned",
    "is_own", "is_users", "lines", "location", "locations", "name_of", "outside", "own", "pinned", "pinned_at", "site",
    "where", "with_own_lines",
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


class Location(dict[int, int]):
    """A location in the user's program; a dict from a context to the context that differs in its line only.

    Attributes:
        code, lasti: a code object and the offset of an instruction, or a call stack, see `Stack`.
    """

    __slots__ = ("code", "lasti")

    def __init__(self, code: Any, lasti: int) -> None:
        self.code, self.lasti = code, lasti

    def __missing__(self, context: int) -> int:
        number = context
        if context not in _pinned:
            frames = lines(self.code, self.lasti)
            text = "\nfrom ".join(line.brief for line in frames)
            number = intern.contexts.id_of(intern.contexts.items[context]._replace(line=text))
            if isinstance(self.code, tuple) and frames:
                intern.stacks[number] = tuple(intern.Frame(line.function, line.file, line.line) for line in frames)
        self[context] = number
        return number


locations: dict[Any, Location] = {}
"""All locations. The key is ``id(code) + offset``: an address inside of the code object, so no other location has it.

The location refers to the code object, which therefore keeps its address. The key of a call stack is the tuple of its
ids and offsets."""
MOST = 1 << 16
"""The largest number of locations, which are all discarded then."""


class _Fixed(dict[int, dict[Any, int]]):
    """A dict from a context to another dict, from the key of a location to a `pinned` context with that line."""

    def __missing__(self, context: int) -> dict[Any, int]:
        return self.setdefault(context, {})


fixed = _Fixed()
"""Contexts with the line of an earlier op, for which other ops run now, such as those of its gradient."""
_pinned: set[int] = set()


def _key(code: Any, lasti: int) -> Any:
    """Return the key of a location in `locations`."""
    return tuple([number for c, i in code for number in (id(c), i)]) if isinstance(code, tuple) else id(code) + lasti


def location(code: Any, lasti: int) -> Location:
    """Return the location of a code object and an offset, or of a call stack."""
    key = _key(code, lasti)
    found = locations.get(key)
    if found is None:
        if len(locations) >= MOST:
            for each in list(fixed.values()):
                each.clear()  # not the outer dict: a backward pass may refer to one of its values
            locations.clear()
        found = locations[key] = Location(code, lasti)
    return found


def pinned_at(context: int, code: Any, lasti: int) -> int:
    """Return the number of a context like number ``context``, but with the line of a location, which stays."""
    key, known = _key(code, lasti), fixed[context]
    number = known.get(key)
    if number is None:
        number = known[key] = pinned(location(code, lasti)[context])
    return number


@lru_cache(None)
def pinned(context: int) -> int:
    """Return the number of a context equal to number ``context`` whose line stays while ops run elsewhere.

    Such ops run for an earlier op, whose line the context has: they are its gradient's, or were deferred.
    """
    if not intern.contexts.items[context].line:
        return context
    number = intern.contexts.append(intern.contexts.items[context])
    if context in intern.stacks:
        intern.stacks[number] = intern.stacks[context]
    _pinned.add(number)
    return number


@lru_cache(None)
def _plain(context: int) -> int:
    """Return the number of a context like number ``context``, but without a line."""
    return intern.contexts.id_of(intern.contexts.items[context]._replace(line=""))


def with_own_lines(function: Callable[..., T], *arguments: Any) -> T:
    """Call a user's function from a layer or a backward pass; its ops get the lines at which they are."""
    lane = bus.lanes.lane if bus.lanes is not None else None
    if lane is None:
        return function(*arguments)
    context, common = lane.context, lane.location
    lane.context, lane.location = _plain(context), None
    try:
        return function(*arguments)
    finally:
        lane.context, lane.location = context, common


def common_location(method: Any, outer: Location | None) -> Location | None:
    """Return the location of the user's line that runs now, for all ops that ``method`` will run.

    So the line is determined once, not by each op. ``outer`` is the location that was determined before, further out;
    None if there is none. The result is None if each op has a line of its own, because the method is the user's, or
    because whole stacks are recorded.
    """
    code = getattr(method, "__code__", None)
    if own.full or code is None or not own[code.co_filename]:
        return None
    if outer is not None:
        return outer
    frame = outside(sys._getframe(2))
    return location(frame.f_code, frame.f_lasti)


class common_line(WithBlock[None]):
    """Context manager: all ops in the block get the user's line that runs now, see `common_location`."""

    def __init__(self, method: Any) -> None:
        self._method = method
        self._lane: Lane | None = None

    def begin(self) -> None:
        if bus.lanes is not None:
            lane = bus.lanes.lane
            self._outer, self._lane = lane.location, lane
            lane.location = common_location(self._method, lane.location)

    def end(self, error: BaseException | None) -> None:
        if self._lane is not None:
            self._lane.location = self._outer


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
    return location(*site())[context]


@lru_cache(1024)
def interned(code: Any, lasti: int) -> int:
    """Return the number under which telemetry stores the text of a node's location."""
    return intern.strings.id_of(where(code, lasti))
