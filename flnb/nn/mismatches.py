"""Checks of a saved state before it is loaded; all missing, unexpected and mis-shaped names are reported at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flnb_telemetry.safe_text import LONGEST_LINE, safe_text


def mismatches(own: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """Return a line for each difference between the names in a saved `state` and in an object's `own` state.

    Where the value in `own` has a shape, the one in `state` must have the same shape and a dtype that can be cast.

    >>> import numpy as np
    >>> mismatches({"weight": np.zeros(2), "steps": 0}, {"weight": np.zeros(3), "rate": 1.0})
    ['missing: steps', 'unexpected: rate', 'mis-shaped: weight: got (3,) float64, expected (2,) float64']
    """
    problems = [f"missing: {name}" for name in own if name not in state]
    problems += [f"unexpected: {name}" for name in state if name not in own]
    for name, expected in own.items():
        if name not in state or not hasattr(expected, "shape"):
            continue
        got = state[name]
        if tuple(got.shape) != tuple(expected.shape) or not np.can_cast(got.dtype, expected.dtype, "same_kind"):
            problems.append(f"mis-shaped: {name}: got {_described(got)}, expected {_described(expected)}")
    return problems


def refuse(problems: Sequence[str], what: str) -> None:
    """Raise a ValueError that lists all problems, if there are any; `what` names the object that is loaded.

    Names come from a file, so they are made safe to display.
    """
    if problems:
        listed = "\n  ".join(safe_text(problem, LONGEST_LINE) for problem in sorted(problems))
        raise ValueError(
            f"flnb: this state does not fit {what}; nothing was loaded\n  {listed}\n"
            "build it with the sizes and settings it was saved with, or remove the entries that do not belong to it"
        )


def _described(tensor: Any) -> str:
    """Return the shape and dtype of a tensor as text."""
    return f"{tuple(tensor.shape)} {tensor.dtype}"
