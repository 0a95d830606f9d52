"""Pickles of plain values (texts, numbers, lists, tuples, dicts), read and written without the `pickle` module.

Reading executes no code: only the pickle opcodes that build plain values are known. Keys of dicts must be texts. Values
may share parts or contain themselves, so a few bytes can describe an endless value; therefore no value is hashed,
compared or printed as a whole. `pickle.Unpickler` would hash values, and would load a file of several GB into memory.
Here the items of lists are passed to a function in batches while the file is read, and their memory is released.
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

WINDOW = 1 << 24  # bytes of the file after which the pages already read are released
LONGEST_INTEGER = 16  # bytes
CACHED = 1 << 16  # lists of references that are cached
_REFERENCES = re.compile(rb"\](\x94?)\(((?:h.|j.{4}){1,999}+)e", re.DOTALL)
_REFERENCE = re.compile(rb"h.|j.{4}", re.DOTALL)
"""Patterns of opcodes: a list of values fetched from the memo, such as a call stack; and the fetch of one value."""
TEXTS = frozenset({str})


class PickleError(ValueError):
    """Raised if bytes are not a complete pickle of plain values; the message has the position and the problem."""


def read(path: str | os.PathLike[str], gather: Callable[[list[Any]], list[Any]] = lambda items: items) -> Any:
    """Return the value in a pickle file.

    A list of memoized values becomes a tuple, and equal lists of this form become the same tuple.

    Args:
        path: a pickle of protocol 2 to 5.
        gather: a function that is called each time the file appends items to a list (`pickle` appends a thousand at a
            time). Its argument is the list of new items; it returns the items to store. The memory of dicts that this
            function empties is released.

    Raises:
        PickleError: the file is not a complete pickle of plain values.
    """
    with open(path, "rb") as file:
        if not (head := file.read(2)):
            raise PickleError("the file is empty")
        if head[0] != 0x80 or head[1:] not in (b"\x02", b"\x03", b"\x04", b"\x05"):
            raise PickleError(f"the file begins with {head!r}, not as a pickle of protocol 2 to 5")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            machine = _Machine(data, gather)
            try:
                return machine.run()
            finally:
                machine.data = b""  # an error's traceback must not keep the file open


class _Machine:
    """An interpreter of pickle opcodes: a stack, marked positions in it, and a memo of numbered values.

    `at` is the position in `data` after the current opcode.
    """

    def __init__(self, data: Any, gather: Callable[[list[Any]], list[Any]]) -> None:
        self.data, self.at, self.released, self.swept = data, 0, 0, 0
        self.gather = gather
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.lists: dict[bytes, tuple[Any, ...]] = {}

    def run(self) -> Any:
        """Execute the whole pickle and return its value. The most frequent opcodes are executed in the loop itself."""
        data, stack, memo, start = self.data, self.stack, self.memo, 0
        try:
            while (code := data[start := self.at]) != 0x2E:  # STOP
                if code == 0x68:  # BINGET
                    stack.append(memo[data[start + 1]])
                    self.at = start + 2
                elif code == 0x6A:  # LONG_BINGET
                    stack.append(memo[int.from_bytes(data[start + 1 : start + 5], "little")])
                    self.at = start + 5
                elif code == 0x8A and (count := data[start + 1]) <= LONGEST_INTEGER:  # LONG1
                    self.at = start + 2 + count
                    stack.append(int.from_bytes(data[start + 2 : self.at], "little", signed=True))
                elif code == 0x5D and (found := _REFERENCES.match(data, start)):  # EMPTY_LIST and its items
                    stack.append(self.shared(found[2]))
                    if found[1]:
                        memo[len(memo)] = stack[-1]
                    self.at = found.end()
                elif code == 0x94:  # MEMOIZE
                    memo[len(memo)] = stack[-1]
                    self.at = start + 1
                else:
                    self.at = start + 1
                    step = _STEPS[code]
                    if step is None:
                        self.refuse(code, start)
                    step(self)
        except PickleError:
            raise
        except KeyError as error:
            raise PickleError(f"damaged: byte {start:,} uses stored value number {error}, which is missing") from error
        except (IndexError, TypeError, AttributeError, struct.error, UnicodeDecodeError) as error:
            if self.at >= len(data):
                raise PickleError(f"the file ends after {len(data):,} bytes, in the middle of a value") from error
            raise PickleError(f"byte {start:,} is damaged, or no pickle of plain values ({error})") from error
        if len(stack) != 1 or self.marks:
            raise PickleError(f"the file stops at byte {start:,} within a value")
        return stack[0]

    def shared(self, references: bytes) -> tuple[Any, ...]:
        """Return the memo's values that the opcodes `references` fetch; equal opcodes get the same tuple."""
        values = self.lists.get(references)
        if values is None:
            codes = _REFERENCE.findall(references)
            values = tuple([self.memo[int.from_bytes(code[1:], "little")] for code in codes])
            if len(self.lists) >= CACHED:
                self.lists.clear()
            self.lists[references] = values
        return values

    def gathered(self, items: list[Any]) -> list[Any]:
        """Return the result of `gather` for the items of a list; remove dicts that `gather` emptied from the memo."""
        kept = self.gather(items)
        if emptied := {id(item) for item in items if item.__class__ is dict and not item}:
            for number in range(self.swept, len(self.memo)):
                if id(self.memo.get(number)) in emptied:
                    self.memo[number] = _EMPTIED
            self.swept = len(self.memo)
        if self.at - self.released > WINDOW and hasattr(self.data, "madvise"):
            self.released = self.at // mmap.PAGESIZE * mmap.PAGESIZE
            self.data.madvise(mmap.MADV_DONTNEED, 0, self.released)
        return kept

    def refuse(self, code: int, start: int) -> None:
        """Raise a `PickleError` for a byte that is no opcode, or an opcode that does more than build a plain value.

        Args:
            code: the opcode as a byte.
            start: the opcode's position in the file. The message states this position, and the import or the action
                for which the opcode stands.
        """
        op = next((op for op in pickletools.opcodes if op.code.encode("latin-1")[0] == code), None)
        if op is None:
            raise PickleError(f"byte {start:,} is {code:#x}, which is not a pickle opcode")
        asked = f"would execute the opcode {op.name}"
        if op.name == "GLOBAL":
            names = self.data[self.at : self.at + 200].decode("utf-8", "replace").split("\n")[:2]
            asked = "would import " + safe_text(".".join(names))
        elif op.name == "STACK_GLOBAL":
            asked = "would import " + safe_text(".".join(name for name in self.stack[-2:] if isinstance(name, str)))
        raise PickleError(f"the file {asked} (byte {start:,}); expected plain values only; nothing was executed")

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes, or fewer if the file ends before; then `run` finds no further opcode."""
        self.at += count
        return self.data[self.at - count : self.at]

    def uint(self, width: int) -> int:
        """Return the next bytes, `width` of them, as an unsigned integer."""
        return int.from_bytes(self.take(width), "little")

    def long(self, width: int) -> int:
        """Read and return a signed integer: `width` bytes with its length, then the integer's bytes."""
        count = self.uint(width)
        if count > LONGEST_INTEGER:
            raise PickleError(f"the file has an integer of {count} bytes, expected at most {LONGEST_INTEGER}")
        return int.from_bytes(self.take(count), "little", signed=True)

    def text(self, width: int) -> str:
        """Read and return a string: `width` bytes with its length in bytes, then the string as UTF-8."""
        return self.take(self.uint(width)).decode("utf-8", "surrogatepass")

    def since_mark(self) -> list[Any]:
        """Remove the last mark and the values above it from the stack, and return these values."""
        if not self.marks:
            raise PickleError(f"byte {self.at - 1:,} ends a list or dict that never began")
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def pops(self, count: int) -> tuple[Any, ...]:
        """Remove the topmost `count` values from the stack and return them."""
        if count > len(self.stack):
            raise PickleError(
                f"damaged: byte {self.at - 1:,} is an instruction that needs {count} values, got {len(self.stack)}"
            )
        items = tuple(self.stack[-count:])
        del self.stack[-count:]
        return items

    def append(self, items: list[Any]) -> None:
        """Append items to the list on top of the stack."""
        target = self.stack[-1]
        if target.__class__ is not list:
            raise PickleError(f"byte {self.at - 1:,} appends to {type(target).__name__}, expected a list")
        target += self.gathered(items)

    def update(self, items: list[Any]) -> None:
        """Set items of the dict on top of the stack; keys and values alternate."""
        target = self.stack[-1]
        if target.__class__ is not dict or len(items) % 2:
            raise PickleError(f"byte {self.at - 1:,} sets items of {type(target).__name__}, expected a dict and pairs")
        keys = items[::2]
        if not TEXTS.issuperset(map(type, keys)):
            strange = next(key for key in keys if key.__class__ is not str)
            raise PickleError(f"byte {self.at - 1:,} sets a key of type {type(strange).__name__}, expected a string")
        target.update(zip(keys, items[1::2], strict=True))

    def put(self, number: int) -> None:
        """Store the value on top of the stack in the memo under `number`."""
        if number in self.memo:
            raise PickleError(f"damaged: byte {self.at - 1:,} stores a second value under number {number}")
        self.memo[number] = self.stack[-1]

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self.stack.append(value)


_EMPTIED: dict[str, Any] = {}


def _dict_of_pairs(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.push({})
    machine.update(items)


_STEPS: list[Callable[[_Machine], object] | None] = [None] * 256
for _code, _step in {
    0x80: lambda m: m.take(1),  # PROTO
    0x95: lambda m: m.take(8),  # FRAME
    0x28: lambda m: m.marks.append(len(m.stack)),
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
    0x64: _dict_of_pairs,
    0x73: lambda m: m.update(list(m.pops(2))),
    0x75: lambda m: m.update(m.since_mark()),
    0x71: lambda m: m.put(m.uint(1)),  # BINPUT
    0x72: lambda m: m.put(m.uint(4)),
}.items():
    _STEPS[_code] = _step


def encoded(value: Any) -> bytes:
    """Return the pickle opcodes that build a plain value, without the PROTO at the beginning and the STOP at the end.

    No value is memoized. A bytes object within the value is inserted unchanged, as opcodes. A value of any other type
    raises a `TypeError`.

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
