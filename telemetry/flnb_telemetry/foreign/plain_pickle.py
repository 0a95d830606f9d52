"""Pickles of plain values (texts, numbers, lists, tuples, dicts), read and written without the `pickle` module.

Reading executes nothing: of the pickle machine's opcodes only those are known that make plain values. Keys of dicts are
texts, and no value is ever hashed, compared or printed whole: values may share parts or hold themselves, so that a few
bytes stand for an endless one. Large files stay small in memory: rows of a list are handed over in batches while they
are read, and the part of the file that was read is released. A row, a dict of plain values under keys that came before,
is taken by one regular expression.
"""

from __future__ import annotations

import mmap
import pickletools
import re
import struct
from typing import TYPE_CHECKING, Any

from flnb_telemetry.safe_text import safe_text

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

__all__ = ["PickleError", "encoded", "read"]

BATCH = 4096  # rows that are handed over at once
WINDOW = 1 << 24  # bytes of the file after which those read are let go
CACHED = 1 << 16
PATTERNS, MOST_KEYS = 8, 16
LEARNED = 64  # patterns that are made for a file: each takes as long as thousands of rows
TEXTS = frozenset({str})


class PickleError(ValueError):
    """Bytes that are no whole pickle of plain values; the text says what was found where."""


def read(path: str | os.PathLike[str], gather: Callable[[list[Any]], list[Any]] = lambda rows: rows) -> Any:
    """The value that a file holds.

    Args:
        gather: is given the items of a list, some at a time and in order, and gives what is kept of them. Dicts that
            it empties are let go.

    Raises:
        PickleError: for anything but a whole pickle, protocol 2 to 5, of plain values.
    """
    with open(path, "rb") as file:
        if not (head := file.read(2)):
            raise PickleError("it is empty")
        if head[0] != 0x80 or head[1:] not in (b"\x02", b"\x03", b"\x04", b"\x05"):
            raise PickleError(f"it begins with {head!r}, not as a pickle of protocol 2 to 5")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            machine = _Machine(data, gather)
            try:
                return machine.run()
            finally:
                machine.data = b""  # an error's traceback must not keep the file open


# What a value of a row may be: int, reference, None, bool, float, short text, list of references; "\x94" memoizes.
_SIZED = b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(128))
_REFERENCE = rb"h.|j.{4}"
_VALUE = (
    rb"h.|j.{4}|\x8a(?:\x07.{7}|\x06.{6}|\x08.{8}|\x05.{5}|\x04.{4}|\x03.{3}|\x02..|\x01.|\x00)|K.|M..|J.{4}"
    rb"|N|\x88|\x89|G.{8}|\x8c(?:" + _SIZED + rb")\x94?"
    rb"|\]\x94?(?:\((?:" + _REFERENCE + rb")*+e|(?:" + _REFERENCE + rb")a)?"
)
_ROW = re.compile(rb"\}(\x94?)\(((?:(?:" + _REFERENCE + rb")(?:" + _VALUE + rb"))++)u", re.DOTALL)
_PAIR = re.compile(rb"(" + _REFERENCE + rb")(" + _VALUE + rb")", re.DOTALL)
_ITEM = re.compile(_REFERENCE, re.DOTALL)
_LIST, _TEXT, _LONG = b"]\x8c\x8a"
_SHARED = (_LIST, _TEXT)


class _Machine:
    """The pickle machine with a stack, marks in it, and a memo."""

    def __init__(self, data: Any, gather: Callable[[list[Any]], list[Any]]) -> None:
        self.data, self.size, self.at, self.released, self.swept = data, len(data), 0, 0, 0
        self.gather = gather
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.full = [BATCH]  # for each mark, and for none, how high the stack may be until rows are handed over
        self.memo: list[Any] = []
        self.patterns: list[tuple[re.Pattern[bytes], list[str]]] = []
        self.learned = 0
        self.known: dict[bytes, Any] = {}  # values by their bytes: references and numbers
        self.inline: dict[bytes, Any] = {}  # texts and lists, each of which is memoized anew

    def run(self) -> Any:
        while True:
            start = self.at
            if start >= self.size:
                raise PickleError(f"it ends after {self.size:,} bytes, in the middle of a value")
            code = self.data[start]
            if code == 0x2E:  # "."
                if len(self.stack) != 1 or self.marks:
                    raise PickleError(f"it stops at byte {start:,} within a value")
                return self.stack[0]
            try:
                if code == 0x7D and self._row(start):  # "}"
                    continue
                self.at += 1
                step = _STEPS[code]
                if step is None:
                    self._refuse(code, start)
                step(self)
            except PickleError:
                raise
            except (IndexError, TypeError, AttributeError, struct.error, UnicodeDecodeError) as error:
                raise PickleError(f"byte {start:,} makes no sense there ({error})") from error

    def _row(self, start: int) -> bool:
        """Take a whole dict at once, if it is a simple one."""
        for pattern, names in self.patterns:
            found = pattern.match(self.data, start)
            if found is not None:
                self._fill(found, names)
                return True
        return self._learned(start) and self._row(start)

    def _fill(self, found: re.Match[bytes], names: list[str]) -> None:
        """Push the dict of a row."""
        known, row = self.known, dict[str, Any]()
        memoized, *values = found.groups()
        if memoized:
            self.memo.append(row)
        for name, value in zip(names, values, strict=True):
            kind = value[0]
            if kind == _LONG:
                row[name] = int.from_bytes(value[2:], "little", signed=True)
            elif kind in _SHARED:
                row[name] = self._object(value)
            else:
                row[name] = known[value] if value in known else self._number(value)
        self.at = found.end()
        self.stack.append(row)
        if len(self.stack) >= self.full[-1]:
            new = self.full[-1] - BATCH
            self.stack[new:] = self.gathered(self.stack[new:])
            self.full[-1] = len(self.stack) + BATCH

    def _learned(self, start: int) -> bool:
        """Whether the dict there is a simple one; then there is a pattern of its keys from now on."""
        found = _ROW.match(self.data, start) if self.learned < LEARNED else None
        if found is None:
            return False
        self.learned += 1
        keys = [key for key, _ in _PAIR.findall(found[2])]
        names = [self._number(key) for key in keys]
        if len(names) > MOST_KEYS or any(name.__class__ is not str for name in names):
            return False
        values = b"".join(re.escape(key) + b"(" + _VALUE + b")" for key in keys)
        self.patterns.insert(0, (re.compile(rb"\}(\x94?)\(" + values + b"u", re.DOTALL), names))
        del self.patterns[PATTERNS:]
        return True

    def _number(self, code: bytes) -> Any:
        """A reference or a number, by its bytes."""
        kind = code[:1]
        if kind in b"hj":
            index = int.from_bytes(code[1:], "little")
            value = self.made(index)
            if value.__class__ is dict or value.__class__ is list:
                return value  # one that is let go must not be kept here
        elif kind in b"KM":
            value = int.from_bytes(code[1:], "little")
        elif kind == b"J":
            value = int.from_bytes(code[1:], "little", signed=True)
        elif kind == b"G":
            value = struct.unpack(">d", code[1:])[0]
        else:
            value = {b"N": None, b"\x88": True, b"\x89": False}[kind]
        if len(self.known) >= CACHED:
            self.known.clear()
        self.known[code] = value
        return value

    def _object(self, code: bytes) -> Any:
        """A text, or a tuple in place of a list of references: one for all that have these bytes."""
        value = self.inline.get(code)
        if value is None:
            if code[0] == _TEXT:
                value = code[2 : 2 + code[1]].decode("utf-8", "surrogatepass")
            else:
                first = 1 + (code[1:2] == b"\x94")
                first += code[first : first + 1] == b"("
                value = tuple(map(self._number, _ITEM.findall(code, first)))
            if len(self.inline) >= CACHED:
                self.inline.clear()
            self.inline[code] = value
        if code[1:2] == b"\x94" if code[0] == _LIST else len(code) == code[1] + 3:
            self.memo.append(value)
        return value

    def gathered(self, items: list[Any]) -> list[Any]:
        """The items of a list that are stored. The memo forgets those that are empty dicts now."""
        kept = self.gather(items)
        if spent := {id(item) for item in items if item.__class__ is dict and not item}:
            memo = self.memo
            for i in range(self.swept, len(memo)):
                if id(memo[i]) in spent:
                    memo[i] = _SPENT
            self.swept = len(memo)
        if self.at - self.released > WINDOW and hasattr(self.data, "madvise"):
            self.released = self.at // mmap.PAGESIZE * mmap.PAGESIZE
            self.data.madvise(mmap.MADV_DONTNEED, 0, self.released)
        return kept

    def _refuse(self, code: int, start: int) -> None:
        op = next((op for op in pickletools.opcodes if op.code.encode("latin-1")[0] == code), None)
        if op is None:
            raise PickleError(f"byte {start:,} is {code:#x}, which is no pickle opcode")
        asked = f"would do {op.name}"
        if op.name == "GLOBAL":
            names = self.data[self.at : self.at + 200].decode("utf-8", "replace").split("\n")[:2]
            asked = "would import " + safe_text(".".join(names))
        elif op.name == "STACK_GLOBAL":
            asked = "would import " + safe_text(".".join(name for name in self.stack[-2:] if isinstance(name, str)))
        raise PickleError(f"it {asked} (byte {start:,}); plain values need no code, and nothing was executed")

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise PickleError(f"it ends after {self.size:,} bytes; {count:,} more were to follow byte {self.at:,}")
        self.at += count
        taken: bytes = self.data[self.at - count : self.at]
        return taken

    def uint(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def long(self, width: int) -> int:
        count = self.uint(width)
        if count > 16:
            raise PickleError(f"it has an integer of {count} bytes, expected at most 16")
        return int.from_bytes(self.take(count), "little", signed=True)

    def text(self, width: int) -> str:
        return self.take(self.uint(width)).decode("utf-8", "surrogatepass")

    def mark(self) -> None:
        self.marks.append(len(self.stack))
        self.full.append(len(self.stack) + BATCH)

    def since_mark(self) -> list[Any]:
        if not self.marks:
            raise PickleError(f"byte {self.at - 1:,} ends what never began")
        mark = self.marks.pop()
        self.full.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def pops(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack) - (self.marks[-1] if self.marks else 0):
            raise PickleError(f"byte {self.at - 1:,} takes {count} values where there are fewer")
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if target.__class__ is not list:
            raise PickleError(f"byte {self.at - 1:,} appends to {type(target).__name__}, expected a list")
        target += self.gathered(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if target.__class__ is not dict or len(items) % 2:
            raise PickleError(f"byte {self.at - 1:,} sets items of {type(target).__name__}, expected pairs for a dict")
        keys = items[::2]
        if not TEXTS.issuperset(map(type, keys)):
            strange = next(key for key in keys if key.__class__ is not str)
            raise PickleError(f"byte {self.at - 1:,} sets a key that is {type(strange).__name__}, expected a text")
        target.update(zip(keys, items[1::2], strict=True))

    def put(self, index: int) -> None:
        """Memoize the last value. Numbers may be left out (`pickletools.optimize` does), within the file's length."""
        if index < len(self.memo) and self.memo[index] is not _NOTHING:
            raise PickleError(f"value {index} is made twice")
        if index > self.size:
            raise PickleError(f"value {index} in a file of {self.size:,} bytes")
        self.memo += [_NOTHING] * (index + 1 - len(self.memo))
        self.memo[index] = self.stack[-1]

    def made(self, index: int) -> Any:
        """A memoized value."""
        if index >= len(self.memo) or self.memo[index] is _NOTHING:
            raise PickleError(f"value {index} is used before it was made")
        return self.memo[index]

    def push(self, value: Any) -> None:
        self.stack.append(value)


class _Nothing:
    """Placeholder for an unused memo slot."""


_NOTHING = _Nothing()
_SPENT: dict[str, Any] = {}


def _of_pairs(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.push({})
    machine.update(items)


_STEPS: list[Callable[[_Machine], object] | None] = [None] * 256
for _code, _step in {
    0x80: lambda m: m.take(1),  # PROTO
    0x95: lambda m: m.take(8),  # FRAME
    0x28: lambda m: m.mark(),
    0x4E: lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    0x4A: lambda m: m.push(int.from_bytes(m.take(4), "little", signed=True)),  # BININT
    0x4B: lambda m: m.push(m.uint(1)),
    0x4D: lambda m: m.push(m.uint(2)),
    0x8A: lambda m: m.push(m.long(1)),
    0x8B: lambda m: m.push(m.long(4)),
    0x47: lambda m: m.push(struct.unpack(">d", m.take(8))[0]),  # BINFLOAT
    0x8C: lambda m: m.push(m.text(1)),  # SHORT_BINUNICODE and the longer ones
    0x58: lambda m: m.push(m.text(4)),
    0x8D: lambda m: m.push(m.text(8)),
    0x5D: lambda m: m.push([]),  # EMPTY_LIST
    0x61: lambda m: m.append(list(m.pops(1))),
    0x65: lambda m: m.append(m.since_mark()),
    0x6C: lambda m: m.push(m.gathered(m.since_mark())),
    0x29: lambda m: m.push(()),  # EMPTY_TUPLE
    0x85: lambda m: m.push(m.pops(1)),
    0x86: lambda m: m.push(m.pops(2)),
    0x87: lambda m: m.push(m.pops(3)),
    0x74: lambda m: m.push(tuple(m.since_mark())),
    0x7D: lambda m: m.push({}),  # EMPTY_DICT
    0x64: _of_pairs,
    0x73: lambda m: m.update(list(m.pops(2))),
    0x75: lambda m: m.update(m.since_mark()),
    0x68: lambda m: m.push(m.made(m.uint(1))),  # BINGET
    0x6A: lambda m: m.push(m.made(m.uint(4))),
    0x71: lambda m: m.put(m.uint(1)),  # BINPUT
    0x72: lambda m: m.put(m.uint(4)),
    0x94: lambda m: m.memo.append(m.stack[-1]),  # MEMOIZE
}.items():
    _STEPS[_code] = _step


def encoded(value: Any) -> bytes:
    """The opcodes, without beginning and end, that make a plain value; nothing is memoized. Bytes are opcodes already.

    >>> import pickle
    >>> pickle.loads(bytes([0x80, 4]) + encoded({"a": [1, -2, 2**40], "b": (None, "text", 0.5)}) + b".")
    {'a': [1, -2, 1099511627776], 'b': (None, 'text', 0.5)}
    """
    if value is None or value is True or value is False:
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if type(value) is int:
        if 0 <= value < 256:
            return b"K" + value.to_bytes(1)
        return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)
    if type(value) is bytes:
        return value
    if type(value) is float:
        return b"G" + struct.pack(">d", value)
    if type(value) is str:
        text = value.encode("utf-8", "surrogatepass")
        return b"X" + len(text).to_bytes(4, "little") + text
    if type(value) is list:
        return b"](" + b"".join(map(encoded, value)) + b"e"
    if type(value) is tuple:
        return b"(" + b"".join(map(encoded, value)) + b"t"
    if type(value) is dict:
        return b"}(" + b"".join(encoded(part) for item in value.items() for part in item) + b"u"
    raise TypeError(f"expected a plain value for a pickle, got {type(value).__name__}")
