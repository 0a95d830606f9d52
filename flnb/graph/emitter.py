"""Scalars inside generated kernels: their operators print instructions for a code generation target.

A target is an `Emitter`, which prints instructions and returns the name of each result in the generated text.
Expressions are written with Python's operators on `Scalar`; each operator makes the emitter print an instruction. So
one Python expression can be translated to LLVM IR or to CUDA C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np


class Emitter(Protocol):
    """A code generation target: prints one scalar instruction at a time, such as in LLVM IR or CUDA C.

    Names of instructions: add, subtract, multiply, divide, remainder (with the dividend's sign, as in C), negative,
    abs; fma (fused where the machine can), sqrt, floor, ceil, trunc, rint, copysign; less, less_equal, equal (false for
    NaN), not_equal (true for NaN); and, or, xor, left, right (shifts; of signed integers the right one fills with the
    sign); select; convert (as a C cast), bits (the same bits as another dtype). Any other name is that of a function
    of the C library for float64.
    """

    def constant(self, number: float, dtype: str, /) -> Any:
        """Return the target's text for a constant of a dtype (NumPy's character)."""

    def instruction(self, name: str, dtype: str, operands: Sequence[Scalar], /) -> Any:
        """Print the instruction ``name`` with ``operands``; return the name of its result in the generated text.

        ``dtype`` is the dtype of the result, as NumPy's character.
        """


class Scalar:
    """A scalar inside a generated kernel; Python operators on it, also with numbers, print instructions.

    Attributes:
        emitter: the target.
        value: the name or expression of the scalar in the target's text.
        dtype: the scalar's dtype, as NumPy's character.
        number: the value of a constant; None for other scalars.
        product: for the product of a scalar with a constant, this scalar and the constant's value; None for other
            scalars.
        times: a function that prints the scalar's product with a power of two without a multiplication; None if the
            scalar has no such function.
    """

    __slots__ = ("dtype", "emitter", "number", "product", "times", "value")
    product: tuple[Scalar, float] | None
    times: Callable[[float], Scalar] | None

    def __init__(self, emitter: Emitter, value: Any, dtype: str, number: float | None = None):
        self.emitter, self.value, self.dtype, self.number = emitter, value, dtype, number
        self.product = self.times = None

    def constant(self, number: float, dtype: str = "") -> Scalar:
        """Return a constant scalar of a dtype, by default this scalar's dtype."""
        dtype = dtype or self.dtype
        return Scalar(self.emitter, self.emitter.constant(number, dtype), dtype, number)

    def make(self, name: str, *others: Scalar | float, dtype: str = "") -> Scalar:
        """Print the instruction ``name`` on this scalar and others; numbers become constants of this scalar's dtype."""
        operands = [self, *(o if isinstance(o, Scalar) else self.constant(o) for o in others)]
        dtype = dtype or self.dtype
        pairs = (operands, operands[::-1]) if name in ("add", "multiply") else ()
        constants = [(x, y.number) for x, y in pairs if y.number is not None]
        for x, number in constants:
            if name == "multiply" and x.times and 1e-3 < number < 1e3 and math.frexp(number)[0] == 0.5:
                return x.times(number)
        made = Scalar(self.emitter, self.emitter.instruction(name, dtype, operands), dtype)
        for x, number in constants:
            if name == "multiply":
                made.product = x, number
            elif x.times:
                made.times = lambda scale, times=x.times, term=number: times(scale) + term * scale
        return made

    def to(self, dtype: str) -> Scalar:
        """Return this scalar converted to a dtype as by NumPy's ``astype``."""
        if dtype == self.dtype:
            return self
        if dtype == "?":
            return self.not_equal(0)
        if kind(self.dtype) == "f" and kind(dtype) in "iu" and np.dtype(dtype).itemsize < 4:
            return self.make("convert", dtype="i").make("convert", dtype=dtype)  # what is too large wraps around
        return self.make("convert", dtype=dtype)

    def bits(self, dtype: str) -> Scalar:
        """Return the scalar's bits reinterpreted as another dtype of the same width."""
        return self.make("bits", dtype=dtype)

    def equal(self, other: Scalar | float) -> Scalar:
        """Return a bool scalar: whether this scalar equals ``other``; NaN equals nothing."""
        return self.make("equal", other, dtype="?")

    def not_equal(self, other: Scalar | float) -> Scalar:
        """Return a bool scalar: whether this scalar differs from ``other``; NaN differs from everything."""
        return self.make("not_equal", other, dtype="?")

    def __add__(self, other: Scalar | float) -> Scalar:
        return self.make("add", other)

    def __sub__(self, other: Scalar | float) -> Scalar:
        return self.make("subtract", other)

    def __mul__(self, other: Scalar | float) -> Scalar:
        return self.make("multiply", other)

    def __truediv__(self, other: Scalar | float) -> Scalar:
        return self.make("divide", other)

    def __rtruediv__(self, other: float) -> Scalar:
        return self.constant(other).make("divide", self)

    def __neg__(self) -> Scalar:
        return self.make("negative")

    def __lt__(self, other: Scalar | float) -> Scalar:
        return self.make("less", other, dtype="?")

    def __le__(self, other: Scalar | float) -> Scalar:
        return self.make("less_equal", other, dtype="?")

    def __gt__(self, other: Scalar | float) -> Scalar:
        return (other if isinstance(other, Scalar) else self.constant(other)).make("less", self, dtype="?")

    def __ge__(self, other: Scalar | float) -> Scalar:
        return (other if isinstance(other, Scalar) else self.constant(other)).make("less_equal", self, dtype="?")

    def __and__(self, other: Scalar | float) -> Scalar:
        return self.make("and", other)

    def __or__(self, other: Scalar | float) -> Scalar:
        return self.make("or", other)

    def __xor__(self, other: Scalar | float) -> Scalar:
        return self.make("xor", other)

    def __invert__(self) -> Scalar:
        ones = {"b": 1, "i": -1}.get(kind(self.dtype), 0) or int(np.iinfo(self.dtype).max)
        return self.make("xor", ones)

    def __lshift__(self, other: Scalar | float) -> Scalar:
        return self.make("left", other)

    def __rshift__(self, other: Scalar | float) -> Scalar:
        return self.make("right", other)


def kind(dtype: str) -> str:
    """Return the kind of a dtype: "f", "i" (signed), "u" (unsigned) or "b" (bool).

    >>> kind("d"), kind("?")
    ('f', 'b')
    """
    return np.dtype(dtype).kind


def select(condition: Scalar, a: Scalar | float, b: Scalar | float) -> Scalar:
    """Return a where ``condition`` is true, else b; a or b may be a Python number, but not both."""
    if not isinstance(a, Scalar):
        assert isinstance(b, Scalar)
        a = b.constant(a)
    return condition.make("select", a, b if isinstance(b, Scalar) else a.constant(b), dtype=a.dtype)


def fma(a: Scalar, b: Scalar | float, c: Scalar | float) -> Scalar:
    """Return a * b + c, with a single rounding on machines that have fused multiply-add."""
    return a.make("fma", b, c)


def call(name: str, *operands: Scalar) -> Scalar:
    """Print the call of a C math function, given the name of its float64 version, such as "exp"; returns the result."""
    return operands[0].make(name, *operands[1:])
