"""Checks of arguments, whose errors name the function (``op``), the value received and the one expected."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from flnb.dispatch.brief import brief
from flnb.ops.creation import asarray
from flnb.ops.dtypes import finfo, iinfo
from flnb.ops.reduction import floating


def picture(op: str, x: Any, method: str = "linear") -> Any:
    """Check pictures (..., H, W) and an interpolation method; return a tensor, floating-point for "linear"."""
    x = asarray(x)
    if x.ndim < 2 or 0 in x.shape[-2:]:
        raise ValueError(f"vision.{op}: expected pictures (..., H, W) with one pixel or more, got {x._spec!r}")
    if method not in ("linear", "nearest"):
        raise ValueError(f"vision.{op}: method must be 'linear' or 'nearest', got {brief(method)}")
    return x if method == "nearest" else floating(x)


def whole(given: Any) -> int:
    """Return a whole number >= 1 as an int, and 0 for any other value."""
    try:
        return max(index(given), 0)
    except TypeError:
        return 0


def sized(op: str, given: Any) -> tuple[int, ...]:
    """Check a size (rows, columns) and return it as a tuple."""
    extents = tuple(map(whole, given)) if hasattr(given, "__len__") and np.ndim(given) == 1 else ()
    if len(extents) != 2 or 0 in extents:
        raise ValueError(
            f"vision.{op}: expected a size (rows, columns), whole numbers of 1 or more, got {brief(given)}"
        )
    return extents


def finite(op: str, name: str, given: Any, least: float = -math.inf) -> float:
    """Check that the argument ``name`` is a finite number of at least ``least``, and return it as a float."""
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= least):
        limit = "" if least == -math.inf else f" of {least:g} or more"
        raise ValueError(f"vision.{op}: expected {name} to be a finite number{limit}, got {brief(given)}")
    return number


def pair(op: str, name: str, given: Any, parts: str = "(rows, columns)", least: float = -math.inf) -> list[float]:
    """Check that the argument ``name`` is two finite numbers of at least ``least``, and return them.

    ``parts`` describes the two numbers in errors.
    """
    try:
        both = list(given)
    except TypeError:
        both = []
    if len(both) != 2:
        raise ValueError(f"vision.{op}: expected {name} to be two numbers {parts}, got {brief(given)}")
    return [finite(op, f"both of {name} {parts}", value, least) for value in both]


def floats(op: str, name: str, given: Any, shape: tuple[int, ...]) -> Any:
    """Check the shape of the argument ``name`` and return it as a tensor of floating point.

    A tensor may require gradients; anything else is converted to float64 and must be finite.
    """
    known = hasattr(given, "_spec")
    try:
        made = floating(given) if known else np.asarray(given, np.float64)
    except (TypeError, ValueError):
        made = np.empty(0)
    if made.shape != shape or not (known or np.isfinite(made).all()):
        raise ValueError(
            f"vision.{op}: expected {name} to be finite numbers of shape {shape}, in the order (row, column), got "
            f"{given._spec if known else brief(given)}"
        )
    return asarray(made)


def limits(dtype: Any) -> tuple[float, float]:
    """Return the smallest and the largest number of a dtype."""
    if dtype.kind == "b":
        return 0, 1
    known: Any = iinfo(dtype) if dtype.kind in "iu" else finfo(dtype)
    return known.min, known.max


def outside(op: str, dtype: Any, value: Any) -> Any:
    """Check the fill value of pixels outside of a picture; return it as a number that keeps the pictures' dtype."""
    if dtype.kind not in "biu":
        return value
    number = finite(op, "value, which fills pixels outside of a picture,", value)
    low, high = limits(dtype)
    if not (number.is_integer() and low <= number <= high):
        raise ValueError(
            f"vision.{op}: value, which fills pixels outside of a picture, must be a whole number from {low} to {high} "
            f"for {dtype} pictures, got {brief(value)}; for others, cast the pictures first: x.astype(flnb.float32)"
        )
    return bool(value) if dtype.kind == "b" else int(value)
