"""Machine code that runs oneDNN's primitives, so that a segment calls them like kernels, without Python."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.graph.emitter import Scalar
from flnb_backends.native.instructions import Code
from flnb_backends.native.llvm import compiler
from flnb_backends.native.onednn import OneDnnError
from flnb_backends.native.prepared import LINE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb_backends.native.prepared import Prepared

STATUS, FAILED, SET, EXECUTE, STREAM, SET_THREADS, THREADS, IGNORED, OUTER, INNER, ZEROS, CALLS = range(12)
"""The positions of the words at the beginning of a routine's block of 64-bit words, whose contents are, in order:

the status of the last call that failed; the address of a word to which a failing call writes the block's address (word
IGNORED by default); the addresses of oneDNN's functions and stream, and of the function that sets the number of threads
(0 if there is none); that number; a word without meaning; the lengths of four tables. The tables follow: the memory
objects of operands, each with its size in bytes; the memory objects in scratch memory, each with its offset; the offset
and the size of each part of scratch memory that is filled with zeros; each primitive with the number and the address of
its arguments."""
UNFIT, DONE, ERROR = range(3)
"""Results of the machine code: the arrays are not aligned or share memory, and nothing was done; or a call failed."""


class Routine:
    """A prepared oneDNN primitive that a `Segment` can call like a `flnb_backends.native.nests.Kernel`, or `run` alone.

    Args:
        prepared: the primitive; no other thread may run it at the same time.
        threads: how many threads oneDNN uses.

    Attributes:
        address: the address of the machine code.
        begin: an argument of the machine code: the address of the block, an array of 64-bit words with the primitives,
            their arguments and the number of threads.
        extent: the last argument of the machine code, 0 in a segment; 1 makes the code check the arrays' addresses.
        scratch: the bytes of scratch memory that a call needs, at any alignment.
        parts: the number of calls into which a segment divides the computation: always 1.
    """

    extent, parts = 0, 1

    def __init__(self, prepared: Prepared, threads: int) -> None:
        self.prepared, self.scratch = prepared, prepared.scratch
        dnn = prepared.dnn
        lib, word, function = dnn.lib, dnn.word, dnn.ffi.addressof
        outer, inner = prepared.memories
        tables = [
            [n for memory, size in zip(outer, prepared.extents, strict=True) for n in (word(memory), size)],
            [n for memory, offset in inner for n in (word(memory), offset)],
            [n for zeros in prepared.zeros for n in zeros],
            [n for call in prepared.calls for n in (word(call.primitive), call.number, word(call.arguments))],
        ]
        sets = getattr(lib, "omp_set_num_threads", None)
        head = [
            0, 0, word(function(lib, "dnnl_memory_set_data_handle")), word(function(lib, "dnnl_primitive_execute")),
            word(dnn.stream), 0 if sets is None else word(function(lib, "omp_set_num_threads")), threads, 0,
            len(outer), len(inner), len(prepared.zeros), len(prepared.calls),
        ]  # fmt: skip
        self.block = np.array([number for numbers in (head, *tables) for number in numbers], np.uint64)
        self.begin = int(self.block.ctypes.data)
        self.report_to(self.begin + 8 * IGNORED)
        self.address = _execute()
        self._run = dnn.function("int64_t (*)(void **, uintptr_t, int64_t)", self.address)
        self._run_at = dnn.function("int64_t (*)(uintptr_t *, uintptr_t, int64_t)", self.address)

    def report_to(self, word: int) -> None:
        """Make the machine code, if it fails, write `block`'s address to the memory word at the address ``word``."""
        self.block[FAILED] = word

    def run(self, arrays: Sequence[Any], scratch: Any) -> bool:
        """Compute the op on arrays, the last of which is written, with an array of scratch memory.

        Returns:
            Whether the op was computed. If False, nothing was written: an array is not aligned, or the last array
            shares memory with another one.

        Raises:
            OneDnnError: oneDNN reports a failure.
        """
        pointer = self.prepared.dnn.pointer
        try:
            made = self._run([pointer(x) for x in (*arrays, scratch)], self.begin, 1)
        except ValueError:  # an array is not contiguous
            made = self._run_at(self.prepared.dnn.addresses((*arrays, scratch)), self.begin, 1)
        if made == ERROR:
            raise self.error()
        return bool(made)

    def error(self) -> OneDnnError:
        """Return the error of the last call, which failed."""
        return OneDnnError(int(self.block[STATUS]), self.prepared.what)


@cache
def _execute() -> int:
    """Return the address of the machine code that runs a routine, which is compiled at the first call."""
    return compiler().address("execute", "", _text)


class _Text:
    """Writes the LLVM IR of ``int64 execute(void **arrays, int64 block, int64 checks)``; the last array is scratch."""

    def __init__(self) -> None:
        self.code = code = Code("execute", "ptr %arrays, i64 %block, i64 %checks", returns="i64")
        self.block = code.pointer(Scalar(code, "%block", "q"))
        self.result = code.variable(Scalar(code, str(DONE), "q"))

    def word(self, index: int) -> Scalar:
        """Emit the load of a word of the block; returns the word."""
        return self.code.word(self.block, index)

    def call(self, function: str, *arguments: str) -> None:
        """Emit a call of a oneDNN function, and the code that reports a failure of the call."""
        code = self.code
        status = code.add(f"call i32 {function}({', '.join(arguments)})")
        with code.when(code.add(f"icmp ne i32 {status}, 0")):
            code.lines.append(f"store i32 {status}, ptr {self.block}")
            code.lines.append(f"store i64 %block, ptr {code.pointer(self.word(FAILED))}")
            code.set(self.result, Scalar(code, str(ERROR), "q"))

    def check(self, table: str) -> str:
        """Emit a test that all arrays are aligned and the last one overlaps no other; returns the test's result, a bit.

        ``table`` is the address of the block's table with the arrays' sizes.
        """
        code = self.code
        last = self.word(OUTER) - 1
        y = code.word("%arrays", last.value)
        stop = y + code.word(code.element(table, "q", str(last.value), 2), 1)
        bad = code.variable(Scalar(code, "0", "q"))
        with code.loop("0", str((last * Scalar(code, "%checks", "q")).value)) as i:
            x = code.word("%arrays", i)
            both = (x < stop) & (y < x + code.word(code.element(table, "q", i, 2), 1))
            code.set(bad, code.get(bad, "q") | (x | y) & 3 | both.to("q"))
        return str(code.get(bad, "q").equal(0).value)

    def run(self, table: str) -> None:
        """Emit all calls of oneDNN; ``table`` is the address of the first table of the block."""
        code = self.code
        put, execute, stream = (code.pointer(self.word(each)) for each in (SET, EXECUTE, STREAM))
        outer, inner, zeros, calls = (str(self.word(each).value) for each in (OUTER, INNER, ZEROS, CALLS))
        sets = self.word(SET_THREADS)
        with code.when(str(sets.not_equal(0).value)):
            count = self.word(THREADS).make("convert", dtype="i").value
            code.lines.append(f"call void {code.pointer(sets)}(i32 {count})")
        with code.loop("0", outer) as i:
            memory = code.word(code.element(table, "q", i, 2), 0)
            self.call(put, f"i64 {memory.value}", f"i64 {code.word('%arrays', i).value}")
        table = code.element(table, "q", outer, 2)
        scratch = (code.word("%arrays", outer) + (LINE - 1)) & -LINE
        with code.loop("0", inner) as i:
            place = code.element(table, "q", i, 2)
            self.call(put, f"i64 {code.word(place, 0).value}", f"i64 {(scratch + code.word(place, 1)).value}")
        table = code.element(table, "q", inner, 2)
        with code.loop("0", zeros) as i:
            place = code.element(table, "q", i, 2)
            start = code.pointer(scratch + code.word(place, 0))
            with code.loop("0", str(code.word(place, 1).value)) as j:
                code.lines.append(f"store i8 0, ptr {code.element(start, 'b', j)}")
        table = code.element(table, "q", zeros, 2)
        with code.loop("0", calls) as i:
            primitive, number, arguments = (code.word(code.element(table, "q", i, 3), j) for j in range(3))
            number = number.make("convert", dtype="i")
            self.call(
                execute, f"i64 {primitive.value}", f"ptr {stream}", f"i32 {number.value}", f"i64 {arguments.value}"
            )


def _text() -> str:
    """Return the LLVM IR of the machine code of routines."""
    text = _Text()
    code = text.code
    table = code.element(text.block, "q", str(CALLS + 1))
    fits = text.check(table)
    with code.when(fits):
        text.run(table)
    return code.text(code.add(f"select i1 {fits}, i64 {code.get(text.result, 'q').value}, i64 {UNFIT}"))
