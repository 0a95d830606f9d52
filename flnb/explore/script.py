"""Readable Python code for reproducing a call: arrays as short expressions, classes with their dependencies."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import textwrap
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.formats import aside

from flnb.explore.layout import Kept, Layout

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from flnb.explore.calls import OpCall

LONGEST = 64  # elements of an array that is written out


def literal(value: Any) -> str:
    """Return Python code for an op's argument: a number, tuple, dtype, or random generator in its state."""
    if isinstance(value, tuple):
        inside = ", ".join(map(literal, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, np.dtype):
        return f'np.dtype("{value.name}")'
    if isinstance(value, np.generic):
        return f"np.{value.dtype.name}({literal(value.item())})"
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, np.random.Generator):
        state = value.bit_generator.state
        fresh = state == np.random.default_rng(0).bit_generator.state
        return "np.random.default_rng(0)" if fresh else f"flnb.explore.generator({state!r})"
    return repr(value)


def result_code(call: OpCall) -> str:
    """Return ``, result=(shape, dtype)`` as code of a keyword argument; empty if the call has no `result`."""
    return "" if call.result is None else f', result=({call.result[0]}, "{call.result[1].name}")'


def array_code(kept: Kept) -> str | None:
    """Return an expression that makes an array with its layout in memory; None if it has too many values for that."""
    layout = Layout.of(kept.array())
    base, _ = layout.filled(np.array(kept.array()))
    made = _values(base)
    return None if made is None else layout.code(made)


def _values(base: np.ndarray[Any, Any]) -> str | None:
    """Return an expression for the values of a C-contiguous array, or None if there are too many irregular ones."""
    name, shape = base.dtype.name, base.shape
    if not base.size:
        return f'np.zeros({shape}, "{name}")'
    first = base.flat[0]
    if (base.size > 1 or not shape) and base.tobytes() == np.full(shape, first, base.dtype).tobytes():
        number = literal(np.asarray(first).item())
        if number in ("1.0", "1", "0.0", "0"):
            return f'np.{"ones" if number[0] == "1" else "zeros"}({shape}, "{name}")'
        return f'np.full({shape}, {number}, "{name}")'
    counted = np.arange(base.size).reshape(shape)
    for text, values in (
        ("np.arange({})", counted),
        ("(np.arange({}) % 7 + 1)", counted % 7 + 1),
        ("(np.arange({}) % 7 * 0.25 - 0.75)", counted % 7 * 0.25 - 0.75),
    ):
        if base.size > 8 and base.tobytes() == np.asarray(values, base.dtype).tobytes():
            return f'{text.format(base.size)}.reshape({shape}).astype("{name}")'
    return None if base.size > LONGEST else f'np.array({literal(base.tolist())}, "{name}")'


def where(*parts: str, between: str = ", ") -> str:
    """Join texts on where an op was called (module, phase, line) by ``between``; leave out empty ones and "other"."""
    return between.join(part for part in parts if part and part != "other")


def definition(value: Any, name: str, known: frozenset[str] = frozenset(("np", "flnb"))) -> list[str]:
    """Return lines of code that define ``name`` as a value, given the already defined names ``known``.

    Modules, classes and functions are imported. Those defined in a notebook cell or inside a function cannot be
    imported: for these, the result has the source text, preceded by definitions of all globals and enclosing variables
    that the source uses.
    """
    if isinstance(value, ModuleType):
        return [f"import {value.__name__}{f' as {name}' * (name != value.__name__)}"]
    if not isinstance(value, (type, FunctionType)):
        return [f"{name} = {literal(value)}"]
    module: Any = sys.modules.get(value.__module__)
    importable = value.__module__ != "__main__" and getattr(module, value.__name__, None) is value
    if importable:
        return [f"from {value.__module__} import {value.__name__}{f' as {name}' * (name != value.__name__)}"]
    functions = [f for f in (value, *vars(value).values()) if isinstance(f, FunctionType)]
    for function in functions:
        code = function.__code__
        text = "".join(linecache.getlines(code.co_filename))
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef)) or node.name != value.__name__:
                continue
            if node.lineno <= code.co_firstlineno <= (node.end_lineno or 0):
                source = textwrap.dedent("\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]))
                return [*_used(node, functions, known | {name}), *source.splitlines()]
    bases = getattr(value, "__bases__", ())  # a class without methods
    made = [line for base in bases for line in definition(base, base.__name__, known)]
    return [*made, f"class {name}({', '.join(base.__name__ for base in bases)}): pass"] if bases else []


def _used(node: ast.AST, functions: Sequence[FunctionType], known: frozenset[str]) -> Iterator[str]:
    """Yield code that defines the global names used in the source of a class or function, except those in ``known``."""
    around = dict(functions[0].__globals__)
    for function in functions:
        around |= inspect.getclosurevars(function).nonlocals
    names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
    own = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    own |= {part.id for part in names if isinstance(part.ctx, ast.Store)}
    for name in dict.fromkeys(part.id for part in names):
        if name in around and name not in own | known | vars(builtins).keys():
            yield from definition(around[name], name, known)
            known |= {name}


def save(inputs: Sequence[Kept], path: str | os.PathLike[str]) -> None:
    """Write arrays with their layouts to an ``.npz`` file, from which `flnb.explore.inputs_of` reads them."""
    content: dict[str, Any] = {}
    for i, kept in enumerate(inputs):
        content[f"memory{i}"] = np.frombuffer(kept.memory, np.uint8)
        content[f"dtype{i}"] = np.array(kept.dtype.name)
        content[f"layout{i}"] = np.array([kept.offset, kept.start, *kept.shape, *kept.strides], np.int64)
    if Path(path).suffix != ".npz":
        raise ValueError(f"to_code: the path must end in .npz, got {str(path)!r}")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with aside(path) as part, part.open("wb") as file:
        np.savez(file, **content)
