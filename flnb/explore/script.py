"""A call as Python code that a person can read: arrays as short expressions, or from a file where they are long."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry.formats import aside

from flnb.explore.layout import Kept, Layout

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from flnb.interface import TensorBackend

__all__ = ["array_code", "literal", "named_backend", "save", "where"]

LONGEST = 64  # elements that are written out


def literal(value: Any) -> str:
    """Python that makes an attribute: numbers, tuples, dtypes, a source of random numbers in its state."""
    if isinstance(value, tuple):
        inside = ", ".join(map(literal, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
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


def array_code(kept: Kept) -> str | None:
    """An expression for an array with its layout; None where its values are too many to write."""
    layout = Layout.of(kept.array())
    base, _ = layout.filled(np.array(kept.array()))
    made = _values(base)
    return None if made is None else layout.code(made)


def _values(base: np.ndarray[Any, Any]) -> str | None:
    name, shape = base.dtype.name, base.shape
    if base.size > 1 or not shape:
        first = base.flat[0] if base.size else 0
        if base.size and base.tobytes() == np.full(shape, first, base.dtype).tobytes():
            number = literal(np.asarray(first).item())
            if number in ("1.0", "1", "0.0", "0"):
                return f'np.{"ones" if number[0] == "1" else "zeros"}({shape}, "{name}")'
            return f'np.full({shape}, {number}, "{name}")'
    counted = np.arange(base.size).reshape(shape)
    for text, values in (
        ("{}", counted),
        ("{} % 7 + 1", counted % 7 + 1),
        ("{} % 7 * 0.25 - 0.75", counted % 7 * 0.25 - 0.75),
    ):
        if base.size > 8 and base.tobytes() == np.asarray(values, base.dtype).tobytes():
            made = text.format(f"np.arange({base.size})")
            made = f"({made})" if made[-1] != ")" else made
            return f'{made}.reshape({shape}).astype("{name}")'
    if base.size > LONGEST:
        return None
    numbers = _listed(base.tolist())
    return f'np.array({numbers}, "{name}")' if base.size else f'np.zeros({shape}, "{name}")'


def _listed(values: Any) -> str:
    if isinstance(values, list):
        return f"[{', '.join(map(_listed, values))}]"
    return literal(values)


def where(*parts: str, between: str = ", ") -> str:
    """Scope, phase and line of an op, as far as they say something."""
    return between.join(part for part in parts if part and part != "other")


def named_backend(given: Any, backend: TensorBackend) -> tuple[str, str]:
    """How a script names a backend, and the import that it needs for it (or nothing)."""
    if isinstance(given, str):
        return f'"{given}"', ""
    cls = type(backend)
    importable = getattr(sys.modules.get(cls.__module__), cls.__name__, None) is cls
    if not importable or cls.__module__ == "__main__":  # typed into a cell: the script runs where it is defined
        return cls.__name__, ""
    return cls.__name__, f"from {cls.__module__} import {cls.__name__}"


def save(inputs: Sequence[Kept], path: str | os.PathLike[str]) -> None:
    """Write arrays with their layouts to an ``.npz`` file, from which `flnb.explore.inputs_of` reads them."""
    content: dict[str, Any] = {}
    for i, kept in enumerate(inputs):
        content[f"memory{i}"] = np.frombuffer(kept.memory, np.uint8)
        content[f"dtype{i}"] = np.array(kept.dtype.name)
        content[f"layout{i}"] = np.array([kept.offset, kept.start, *kept.shape, *kept.strides], np.int64)
    if Path(path).suffix != ".npz":
        raise ValueError(f"to_code: the inputs are written to an .npz file, got the path {str(path)!r}")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with aside(path) as part, part.open("wb") as file:
        np.savez(file, **content)
