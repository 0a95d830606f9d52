"""Writes the text of a function in LLVM IR: its instructions, loops and variables."""

from __future__ import annotations

import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.graph.emitter import Scalar, kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ARITHMETIC = {
    "add": ("fadd", "add", "add"), "subtract": ("fsub", "sub", "sub"), "multiply": ("fmul", "mul", "mul"),
    "divide": ("fdiv", "sdiv", "udiv"), "remainder": ("frem", "srem", "urem"), "and": ("", "and", "and"),
    "or": ("", "or", "or"), "xor": ("", "xor", "xor"), "left": ("", "shl", "shl"), "right": ("", "ashr", "lshr"),
    "less": ("fcmp olt", "icmp slt", "icmp ult"), "less_equal": ("fcmp ole", "icmp sle", "icmp ule"),
    "equal": ("fcmp oeq", "icmp eq", "icmp eq"), "not_equal": ("fcmp une", "icmp ne", "icmp ne"),
}  # fmt: skip
"""For each of the emitter's instructions with two operands, LLVM's names for floating-point, signed and other types."""
_INTRINSICS = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint", "fma": "fmuladd"}
_INTRINSICS |= {"copysign": "copysign", "abs": "fabs"}
_CASTS = {
    ("f", "i"): "fptosi", ("f", "u"): "fptoui", ("i", "f"): "sitofp", ("u", "f"): "uitofp", ("b", "f"): "uitofp",
}  # fmt: skip


def type_of(dtype: str) -> str:
    """Return the LLVM type of values of a dtype, given as NumPy's character; a bool is one bit."""
    if kind(dtype) == "f":
        return {4: "float", 8: "double"}[np.dtype(dtype).itemsize]
    return "i1" if dtype == "?" else f"i{8 * np.dtype(dtype).itemsize}"


def memory_type(dtype: str) -> str:
    """Return the LLVM type of a dtype's elements in memory; a bool is a byte."""
    return "i8" if dtype == "?" else type_of(dtype)


class Code:
    """An LLVM function whose text grows instruction by instruction: the `flnb.graph.emitter.Emitter` for LLVM IR.

    Args:
        name: the function's name.
        parameters: the function's parameters in LLVM's syntax, such as ``ptr %arrays``.
        width: the widest vectors to use, in bits.
        returns: the LLVM type of the function's result.

    Attributes:
        contract: whether a product and a sum that uses it may be computed by one operation, which rounds once.
        interleaved: how many vectors an iteration of a parallel loop computes side by side; 0 lets LLVM choose.
    """

    def __init__(self, name: str, parameters: str, width: int = 256, returns: str = "void"):
        self.heading, self.returns = f"define {returns} @{name}({parameters}) #0 {{", returns
        self.width = width
        self.variables: list[str] = []
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self.metadata: list[str] = []
        self.group = ""
        self.contract = False
        self.interleaved = self.count = 0

    def text(self, result: str = "", others: Sequence[Code] = ()) -> str:
        """Return the LLVM module that contains the function and ``others``, as text.

        ``result`` is the name of the register or the constant that the function returns, or "" if it returns nothing.
        The functions ``others`` return nothing.
        """
        body = [line for code in others for line in code.body("")] + self.body(result)
        width = f'"no-trapping-math"="true" "prefer-vector-width"="{self.width}"'
        end = [f"attributes #0 = {{ nounwind {width} }}", "attributes #1 = { nounwind memory(none) }"]
        return "\n".join([*body, *sorted(self.declarations), *end, *self.metadata, ""])

    def body(self, result: str) -> list[str]:
        """Return the lines of the function's text; the function returns ``result``, or nothing if this is ""."""
        lines = [self.heading, "entry:", *self.variables, "br label %start", "start:", *self.lines]
        return [*lines, f"ret {self.returns} {result}".rstrip(), "}"]

    # Instructions

    def name(self) -> str:
        """Return a new name for the result of an instruction."""
        self.count += 1
        return f"%v{self.count}"

    def add(self, instruction: str) -> str:
        """Append an instruction, given as LLVM IR; returns the name of the instruction's result."""
        name = self.name()
        self.lines.append(f"{name} = {instruction}")
        return name

    def constant(self, number: float, dtype: str) -> str:
        """Return a constant in LLVM's syntax; a floating-point number is written as its bits in hexadecimal."""
        value = np.dtype(dtype).type(number).item()
        if kind(dtype) == "f":
            return f"0x{struct.pack('>d', value).hex()}"
        return str(value).lower()

    def instruction(self, name: str, dtype: str, operands: Sequence[Scalar]) -> str:
        """Append LLVM's code for the emitter's instruction ``name``, such as "add"; returns the name of the result."""
        x = operands[0]
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, dtype, operands)
        if name in _ARITHMETIC:
            instruction = _ARITHMETIC[name]["fi".find(kind(x.dtype))]
            flag = " contract" if self.contract and instruction in ("fadd", "fsub", "fmul") else ""
            return self.add(f"{instruction}{flag} {type_of(x.dtype)} {x.value}, {operands[1].value}")
        suffix = "f" if dtype == "f" else ""
        function = (
            f"@llvm.{_INTRINSICS[name]}.f{8 * np.dtype(dtype).itemsize}" if name in _INTRINSICS else f"@{name}{suffix}"
        )
        return self.call(function, type_of(dtype), [f"{type_of(o.dtype)} {o.value}" for o in operands])

    def call(self, function: str, result: str, operands: Sequence[str]) -> str:
        """Append a call of a function that has no side effects; returns the name of the call's result.

        ``result`` is the LLVM type of the result.
        """
        types = ", ".join(o.split()[0] for o in operands)
        self.declarations.add(f"declare {result} {function}({types}) #1")
        return self.add(f"call {result} {function}({', '.join(operands)})")

    # Memory

    def variable(self, x: Scalar) -> str:
        """Append a local variable with the initial value ``x``, and return the variable's address as text."""
        name = self.name()
        self.variables.append(f"{name} = alloca {type_of(x.dtype)}")
        self.set(name, x)
        return name

    def get(self, variable: str, dtype: str) -> Scalar:
        """Append a read of a local variable; returns its value."""
        return Scalar(self, self.add(f"load {type_of(dtype)}, ptr {variable}"), dtype)

    def set(self, variable: str, x: Scalar) -> None:
        """Append an assignment to a local variable."""
        self.lines.append(f"store {type_of(x.dtype)} {x.value}, ptr {variable}")

    def load(self, dtype: str, address: str) -> Scalar:
        """Append a load of an array element from an address."""
        value = self.add(f"load {memory_type(dtype)}, ptr {address}{self.group}")
        return Scalar(self, self.add(f"icmp ne i8 {value}, 0") if dtype == "?" else value, dtype)

    def store(self, x: Scalar, address: str) -> None:
        """Append a store of an array element to an address."""
        value = self.add(f"zext i1 {x.value} to i8") if x.dtype == "?" else x.value
        self.lines.append(f"store {memory_type(x.dtype)} {value}, ptr {address}{self.group}")

    def word(self, base: str, index: int | str) -> Scalar:
        """Append a load of the 64-bit word at an index of an array of words."""
        return self.load("q", self.element(base, "q", str(index)))

    def pointer(self, word: Scalar) -> str:
        """Append the conversion of an address to a pointer; returns the pointer."""
        return self.add(f"inttoptr i64 {word.value} to ptr")

    def element(self, address: str, dtype: str, index: str, stride: int = 1) -> str:
        """Append the computation of the address ``index * stride`` elements after ``address``; returns the result."""
        if stride == 0 or index == "0":
            return address
        offset = index if stride == 1 else self.add(f"mul nsw i64 {index}, {stride}")
        return self.add(f"getelementptr inbounds {memory_type(dtype)}, ptr {address}, i64 {offset}")

    # Control

    def label(self, name: str) -> None:
        """Start a basic block of that name."""
        self.lines.append(f"{name[1:]}:")

    @contextmanager
    def loop(self, start: str, stop: str, step: int = 1, parallel: bool = False, brief: bool = False) -> Iterator[str]:
        """Emit a loop from ``start`` to before ``stop`` by ``step`` around the ``with`` block; yields the loop's index.

        In a ``parallel`` loop, no iteration reads memory that another iteration wrote, except for local variables. A
        ``brief`` loop takes little time, so it is not unrolled and its code is shorter.
        """
        before, head, body, latch, done = (self.name() for _ in range(5))
        index, next_index = self.name(), self.name()
        self.lines += [f"br label {before}", f"{before[1:]}:", f"br label {head}", f"{head[1:]}:"]
        self.lines.append(f"{index} = phi i64 [ {start}, {before} ], [ {next_index}, {latch} ]")
        inside = self.add(f"icmp slt i64 {index}, {stop}")
        self.lines += [f"br i1 {inside}, label {body}, label {done}", f"{body[1:]}:"]
        mark = self._parallel(brief) if parallel else ""
        yield index
        self.group = ""
        self.lines += [f"br label {latch}", f"{latch[1:]}:", f"{next_index} = add nuw nsw i64 {index}, {step}"]
        self.lines += [f"br label {head}{mark}", f"{done[1:]}:"]

    def _parallel(self, brief: bool) -> str:
        """Mark memory accesses emitted from now on as independent of other iterations; returns the loop's metadata.

        ``brief`` is that of `loop`.
        """
        number = len(self.metadata)
        more = f", !{number + 3}" if brief else f", !{number + 4}" if self.interleaved else ""
        self.metadata += [
            f"!{number} = distinct !{{}}",
            f"!{number + 1} = distinct !{{!{number + 1}, !{number + 2}{more}}}",
            f'!{number + 2} = !{{!"llvm.loop.parallel_accesses", !{number}}}',
            f'!{number + 3} = !{{!"llvm.loop.unroll.disable"}}',
            f'!{number + 4} = !{{!"llvm.loop.interleave.count", i32 {self.interleaved}}}',
        ]
        self.group = f", !llvm.access.group !{number}"
        return f", !llvm.loop !{number + 1}"

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Emit a branch such that the code emitted in the ``with`` block runs only if a 1-bit condition is true."""
        yes, done = self.name(), self.name()
        self.lines += [f"br i1 {condition}, label {yes}, label {done}", f"{yes[1:]}:"]
        yield
        self.lines += [f"br label {done}", f"{done[1:]}:"]


def _negative(code: Code, dtype: str, operands: Sequence[Scalar]) -> str:
    (x,) = operands
    return code.add(f"fneg {type_of(dtype)} {x.value}" if kind(dtype) == "f" else f"sub {type_of(dtype)} 0, {x.value}")


def _abs(code: Code, dtype: str, operands: Sequence[Scalar]) -> str:
    (x,) = operands
    kind_of, value = type_of(dtype), f"{type_of(dtype)} {x.value}"
    bits = 8 * np.dtype(dtype).itemsize
    if kind(dtype) == "f":
        return code.call(f"@llvm.fabs.f{bits}", kind_of, [value])
    code.declarations.add(f"declare {kind_of} @llvm.abs.{kind_of}({kind_of}, i1 immarg) #1")
    return code.add(f"call {kind_of} @llvm.abs.{kind_of}({value}, i1 false)")


def _select(code: Code, dtype: str, operands: Sequence[Scalar]) -> str:
    condition, a, b = operands
    return code.add(f"select i1 {condition.value}, {type_of(dtype)} {a.value}, {type_of(dtype)} {b.value}")


def _bits(code: Code, dtype: str, operands: Sequence[Scalar]) -> str:
    (x,) = operands
    return code.add(f"bitcast {type_of(x.dtype)} {x.value} to {type_of(dtype)}")


def _convert(code: Code, dtype: str, operands: Sequence[Scalar]) -> str:
    """Emit a conversion to a dtype; a number out of range is converted as by the processor's own instruction."""
    (x,) = operands
    source, target = type_of(x.dtype), type_of(dtype)
    kinds = kind(x.dtype), kind(dtype)
    if source == target:
        return str(x.value)
    wider = np.dtype(dtype).itemsize > np.dtype(x.dtype).itemsize or x.dtype == "?"
    same = (
        ("fpext" if wider else "fptrunc")
        if kinds[0] == "f"
        else ("sext" if kinds[0] == "i" else "zext")
        if wider
        else "trunc"
    )
    found = code.add(f"{_CASTS.get(kinds, same)} {source} {x.value} to {target}")
    return code.add(f"freeze {target} {found}") if _CASTS.get(kinds, "").startswith("fpto") else found


_SPECIAL: dict[str, Any] = {"negative": _negative, "abs": _abs, "select": _select, "bits": _bits, "convert": _convert}
