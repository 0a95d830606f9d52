"""CUDA C for scalars: a target of `flnb.graph.emitter` that writes each instruction as the definition of a variable."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from flnb.graph.emitter import kind
from flnb_backends.tensor.cuda.launcher import TYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.graph.emitter import Scalar

OPERATORS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "remainder": "%", "less": "<", "less_equal": "<=",
    "equal": "==", "not_equal": "!=", "and": "&", "or": "|", "xor": "^", "left": "<<", "right": ">>",
}  # fmt: skip
WRAPPING = ("add", "subtract", "multiply", "left")
"""Instructions on signed integers that are computed unsigned, because signed overflow is undefined in C++."""
SAME_BITS = {
    ("f", "i"): "__float_as_int", ("i", "f"): "__int_as_float", ("d", "q"): "__double_as_longlong",
    ("q", "d"): "__longlong_as_double",
}  # fmt: skip
NOT_FINITE = {
    "f": "__int_as_float(0x{:x})", "d": "__longlong_as_double(0x{:x}ll)",
}  # fmt: skip
"""The C++ expression of a number by its bits, because NVRTC does not define INFINITY."""


def type_of(dtype: str) -> str:
    """Return the CUDA C type of a dtype, given as NumPy's character.

    >>> from flnb_backends.tensor.cuda.text import type_of
    >>> type_of("f"), type_of("?"), type_of("l")
    ('float', 'bool', 'long long')
    """
    return TYPES[np.dtype(dtype).name]


class Text:
    """The text of a CUDA C function, written line by line: the `flnb.graph.emitter.Emitter` for CUDA.

    Attributes:
        lines: the lines so far.
        rounded: whether a product must be rounded before it is added, rather than fused with the sum.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.rounded = False
        self._numbers = count()

    def add(self, line: str) -> None:
        """Append a line of text."""
        self.lines.append(line)

    def name(self, dtype: str, expression: str) -> str:
        """Define a new variable with the value of an expression; returns the variable's name."""
        made = f"v{next(self._numbers)}"
        self.add(f"const {type_of(dtype)} {made} = {expression};")
        return made

    def constant(self, number: float, dtype: str) -> str:
        """Return a number as a CUDA C literal of a dtype."""
        value = np.dtype(dtype).type(number)
        if kind(dtype) == "f":
            if not math.isfinite(value):
                return NOT_FINITE[dtype].format(int(value.view(f"u{value.itemsize}")))
            return f"({value.item().hex()}{'f' if dtype == 'f' else ''})"
        if dtype == "?":
            return "true" if value else "false"
        if value == np.iinfo(np.int64).min:
            return "(-9223372036854775807ll - 1)"
        return f"(({type_of(dtype)}){value}{'ull' if kind(dtype) == 'u' else 'll'})"

    def instruction(self, name: str, dtype: str, operands: Sequence[Scalar]) -> str:
        """Append the emitter's instruction ``name``, such as "add"; returns the name of the result's variable."""
        values = [str(x.value) for x in operands]
        return self.name(dtype, self._expression(name, dtype, operands[0].dtype, values))

    def _expression(self, name: str, dtype: str, source: str, values: list[str]) -> str:
        """Return the instruction ``name`` on ``values`` as a C expression; ``source`` is the first value's dtype."""
        real = kind(source) == "f"
        if name == "select":
            return "{} ? {} : {}".format(*values)
        if name == "convert":
            return f"({type_of(dtype)}){values[0]}"
        if name == "bits":
            return f"{SAME_BITS[source.replace('l', 'q'), dtype.replace('l', 'q')]}({values[0]})"
        if name == "negative":
            return f"-{values[0]}" if real else self._wrapped(f"0 - ({self._unsigned(source)}){values[0]}", dtype)
        if name == "abs" and not real:
            return f"{values[0]} < 0 ? {self._expression('negative', dtype, source, values)} : {values[0]}"
        if real and name == "multiply" and self.rounded:
            return f"__{source}mul_rn({', '.join(values)})"
        if name in OPERATORS and not (real and name == "remainder"):
            if name in WRAPPING and kind(source) == "i":
                values = [f"({self._unsigned(source)}){x}" for x in values]
                return self._wrapped(f" {OPERATORS[name]} ".join(values), dtype)
            return f" {OPERATORS[name]} ".join(values)
        function = {"remainder": "fmod", "abs": "fabs"}.get(name, name)
        return f"{function}{'f' if source == 'f' else ''}({', '.join(values)})"

    @staticmethod
    def _unsigned(dtype: str) -> str:
        """Return the name of an unsigned C type for a dtype: 64 bits wide for dtypes of 64 bits, else 32 bits wide."""
        return "unsigned long long" if np.dtype(dtype).itemsize == 8 else "unsigned"

    @staticmethod
    def _wrapped(expression: str, dtype: str) -> str:
        return f"({type_of(dtype)})({expression})"
