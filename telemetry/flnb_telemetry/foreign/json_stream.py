"""Read the events of a JSON trace one by one, so that a file of gigabytes needs little memory."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from typing import TYPE_CHECKING, Any, TextIO

from flnb_telemetry.safe_text import brief

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

CHUNK = 1 << 18
LONGEST = 1 << 24
"""The most characters that one JSON value may have."""
ESCAPE = 16
"""A parse error within this many characters of the window's end may be due to a literal that continues after it."""
_SPACE = re.compile(r"[ \t\r\n]*")


class TraceError(ValueError):
    """Raised if a file is not a JSON trace; the message has the value that was found and the expected one."""


def read_trace(path: str | os.PathLike[str], head: dict[str, Any]) -> Iterator[Any]:
    """Yield the events of a trace: the items of "traceEvents", or of a file that is one list of events.

    Args:
        path: a JSON file, compressed by gzip or not.
        head: a dict to which the values of the outermost object's other keys are added. Keys that follow the events in
            the file are added after the last event.

    Raises:
        TraceError: the file is not JSON, is cut off, or has a value longer than `LONGEST`.
    """
    with open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    try:
        with (gzip.open if packed else open)(path, "rt", encoding="utf-8-sig") as file:
            yield from _Reader(file).events(head)
    except UnicodeDecodeError as error:
        raise TraceError(f"the file is not text in UTF-8: {error.reason} at byte {error.start}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"the file's compressed data is damaged or cut off: {error}") from None
    except RecursionError:
        raise TraceError("a value is nested too deeply") from None


class _Reader:
    """A JSON parser that has one window of the file in memory: `text`. The next character to parse is ``text[at]``."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.text, self.at, self.ended = file, "", 0, False
        self.decode = json.JSONDecoder().raw_decode

    def events(self, head: dict[str, Any]) -> Iterator[Any]:
        first = self.peek()
        if first == "[":
            yield from self.items()
        elif first == "{":
            yield from self.members(head)
        else:
            raise TraceError(f"the file begins with {brief(first)}, expected a list, or an object with traceEvents")
        if self.peek(end=True):
            raise TraceError(f"the trace is followed by {brief(self.text[self.at : self.at + 20])}, expected nothing")

    def members(self, head: dict[str, Any]) -> Iterator[Any]:
        """Parse the outermost object: yield its events, and store the values of its other keys in `head`."""
        self.at += 1
        found = False
        while self.peek() != "}":
            key = self.value()
            self.expect(":")
            if key == "traceEvents" and self.peek() == "[" and not found:
                found = True
                yield from self.items()
            elif key == "traceEvents":
                raise TraceError(f"traceEvents begins with {brief(self.peek())}, expected one list of events")
            elif isinstance(key, str):
                head[key] = self.value()
            else:
                raise TraceError(f"the outermost object has the key {brief(key)}, expected a string")
            if self.peek() != "}":
                self.expect(",")
        self.at += 1
        if not found:
            raise TraceError(f"the file is {brief(head)}, expected traceEvents among its keys")

    def items(self) -> Iterator[Any]:
        """Parse a list, and yield its items one by one."""
        self.at += 1
        while self.peek() != "]":
            yield self.value()
            if self.peek() != "]":
                self.expect(",")
        self.at += 1

    def value(self) -> Any:
        """Read and return the next JSON value."""
        self.peek()
        while True:
            try:
                found, at = self.decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if not error.msg.startswith("Unterminated") and error.pos < len(self.text) - ESCAPE:
                    raise TraceError(f"the file is no JSON at {brief(self.text[error.pos : error.pos + 20])}") from None
                at = len(self.text)
            except ValueError as error:  # an integer of thousands of digits
                raise TraceError(str(error)) from None
            if at < len(self.text):  # a number may go on where the window ends
                self.at = at
                return found
            self.more()

    def expect(self, mark: str) -> None:
        """Read one character, which must be `mark`."""
        if self.peek() != mark:
            raise TraceError(f"the file has {brief(self.text[self.at : self.at + 20])}, expected {mark!r}")
        self.at += 1

    def peek(self, end: bool = False) -> str:
        """Return the next character that is not white space; at the file's end "" if `end` is True, else an error."""
        while True:
            space = _SPACE.match(self.text, self.at)
            assert space is not None
            self.at = space.end()
            if self.at < len(self.text):
                return self.text[self.at]
            if self.ended:
                if end:
                    return ""
                raise TraceError("the file ends in the middle: it was cut off, or is still being written")
            self.more()

    def more(self) -> None:
        """Read the next part of the file into the window, and drop the text that has been parsed."""
        if self.ended:
            raise TraceError("the file ends in the middle: it was cut off, or is still being written")
        if len(self.text) - self.at > LONGEST:
            raise TraceError(f"one value is longer than {LONGEST:,} characters, the limit")
        size = max(CHUNK, len(self.text) - self.at)  # doubled for long values, which are decoded anew each time
        part = self.file.read(size)
        self.ended = len(part) < size
        self.text, self.at = self.text[self.at :] + part + "\n" * self.ended, 0


def text(value: Any, name: str) -> str:
    """Return a string with lone surrogates replaced, because UTF-8 files cannot contain these.

    Raises:
        ValueError: the value is not a string; the message calls it `name`.
    """
    if type(value) is not str:
        raise ValueError(f"{name} is {brief(value)}, expected a string")
    return value.encode("utf-8", "replace").decode()


def integer(value: Any, bits: int = 62) -> int:
    """Return a value after a check that it is an integer of at most `bits` bits; raises a ValueError otherwise."""
    if type(value) is not int or value.bit_length() > bits:
        raise ValueError(f"a number is {brief(value)}, expected an integer of at most {bits} bits")
    return value


def amount(value: Any) -> int:
    """Return a number of bytes or FLOPs, after a check that it has at most 50 bits, so that sums fit in 64 bits."""
    return integer(value, 50)


def extents(value: Any) -> tuple[int, ...] | None:
    """Return the shape (a tuple) for a list of extents, or None for any other value, such as a list of shapes."""
    if type(value) not in (list, tuple) or not all(type(extent) is int and 0 <= extent < 1 << 62 for extent in value):
        return None
    return tuple(value)
