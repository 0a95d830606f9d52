"""Routines: prepared primitives of oneDNN among the calls of a segment, with no Python between them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from flnb_backends.native.instructions import Code
from flnb_backends.native.llvm import compiler
from flnb_backends.native.onednn import OneDnnError
from flnb_backends.native.prepared import LINE

if TYPE_CHECKING:
    from flnb_backends.native.prepared import Prepared

__all__ = ["Routine"]

STATUS, FAILED, SET, EXECUTE, STREAM, OUTER, INNER, ZEROS, CALLS = range(9)
"""The words at the beginning of a block: the status of the last call that failed; the address of the word in which the
segment looks for a failure; the addresses of oneDNN's functions and stream; the lengths of four tables; and where these
tables begin: the memory objects of operands, those in scratch memory with their offsets, the offsets and sizes of what
is set to zero, and primitives with the number and the address of their arguments."""


class Routine:
    """A prepared oneDNN primitive that a `Segment` can call like a `flnb_backends.native.nests.Kernel`.

    Args:
        prepared: the primitive; while the routine runs it, no other thread may do so.
        threads: how many threads oneDNN uses.

    Attributes:
        address: the address of the machine code.
        begin, extent: the last two arguments of the machine code: the address of an array of 64-bit words, from which
            it reads what to run, and 0.
        scratch: the bytes of scratch memory that a call needs, at any alignment.
        splits: whether calls with different ranges are independent: False, there is one call.
    """

    extent, splits = 0, False

    def __init__(self, prepared: Prepared, threads: int) -> None:
        self.prepared, self.threads, self.scratch = prepared, threads, prepared.scratch
        lib, word = prepared.dnn.lib, prepared.dnn.word
        function = prepared.dnn.ffi.addressof
        outer, inner = prepared.memories
        tables = [
            [word(memory) for memory in outer],
            [number for memory, offset in inner for number in (word(memory), offset)],
            [number for zeros in prepared.zeros for number in zeros],
            [n for call in prepared.calls for n in (word(call.primitive), call.number, word(call.arguments))],
        ]
        head = [
            0, 0, word(function(lib, "dnnl_memory_set_data_handle")), word(function(lib, "dnnl_primitive_execute")),
            word(prepared.dnn.stream), len(outer), len(inner), len(prepared.zeros), len(prepared.calls),
        ]  # fmt: skip
        self.block = np.array([number for numbers in (head, *tables) for number in numbers], np.uint64)
        self.begin = int(self.block.ctypes.data)
        self.address = _execute()

    def report_to(self, word: int) -> None:
        """Set the address of the word to which the machine code writes the address of this block if a call fails."""
        self.block[FAILED] = word

    def use_threads(self) -> None:
        """Set the number of threads that oneDNN uses when called from the present thread."""
        self.prepared.dnn.use_threads(self.threads)

    def error(self) -> OneDnnError:
        """Return the error of the last call, which failed."""
        return OneDnnError(int(self.block[STATUS]), self.prepared.what)


@cache
def _execute() -> int:
    """Return the address of the machine code that runs a routine, which is compiled at the first call."""
    text = _text()
    return compiler().address("execute", text, lambda: text)


def _text() -> str:
    """Return the LLVM IR of ``void execute(void **arrays, int64 block, int64 end)``, whose arrays end with scratch."""
    code = Code("execute", "ptr %arrays, i64 %begin, i64 %end", 256)
    block = code.add("inttoptr i64 %begin to ptr")

    def word(index: str, base: str = block) -> str:
        return str(code.load("q", code.element(base, "q", index)).value)

    def call(function: str, *arguments: str) -> None:
        status = code.add(f"call i32 {function}({', '.join(arguments)})")
        failed = code.add(f"icmp ne i32 {status}, 0")
        with code.when(failed):
            code.lines.append(f"store i32 {status}, ptr {block}")
            code.lines.append(f"store i64 %begin, ptr {pointer(word(str(FAILED)))}")

    def pointer(number: str) -> str:
        return code.add(f"inttoptr i64 {number} to ptr")

    def plus(a: str, b: str) -> str:
        return code.add(f"add i64 {a}, {b}")

    put, execute, stream = (pointer(word(str(each))) for each in (SET, EXECUTE, STREAM))
    outer, inner, zeros, calls = (word(str(each)) for each in (OUTER, INNER, ZEROS, CALLS))
    table = code.element(block, "q", str(CALLS + 1))
    with code.loop("0", outer) as i:
        call(put, f"i64 {word(i, table)}", f"i64 {word(i, '%arrays')}")
    table = code.element(table, "q", outer)
    rounded = plus(word(outer, "%arrays"), str(LINE - 1))
    scratch = code.add(f"and i64 {rounded}, {-LINE}")
    with code.loop("0", inner) as i:
        place = code.element(table, "q", i, 2)
        call(put, f"i64 {word('0', place)}", f"i64 {plus(scratch, word('1', place))}")
    table = code.element(table, "q", inner, 2)
    with code.loop("0", zeros) as i:
        place = code.element(table, "q", i, 2)
        start = pointer(plus(scratch, word("0", place)))
        with code.loop("0", word("1", place)) as j:
            code.lines.append(f"store i8 0, ptr {code.element(start, 'b', j)}")
    table = code.element(table, "q", zeros, 2)
    with code.loop("0", calls) as i:
        place = code.element(table, "q", i, 3)
        number = code.add(f"trunc i64 {word('1', place)} to i32")
        call(execute, f"i64 {word('0', place)}", f"ptr {stream}", f"i32 {number}", f"i64 {word('2', place)}")
    return code.text()
