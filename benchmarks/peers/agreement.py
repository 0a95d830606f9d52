"""Check that two frameworks compute the same loss and gradients, before their times are compared.

The check is in float64. In float32, rounding alone changes gradients of a small ResNet-50 by more than a tenth, where a
ReLU's input is positive in one framework and negative in the other; a mistake of this size would not be noticed.
"""

from __future__ import annotations

import numpy as np

__all__ = ["GRADIENT", "LOSS", "SMALLEST", "disagreement"]

LOSS = 1e-9
"""The largest relative difference of two losses that agree."""
GRADIENT = 1e-6
"""The largest difference of two gradients of a parameter that agree, in the maximum norm, relative to the gradient."""
SMALLEST = 1e-3
"""A gradient that is smaller than this share of the model's largest gradient is compared relative to that share. For
example, the gradient of a convolution's bias before a batch norm is zero, except for rounding errors."""


def disagreement(who: str, reference: tuple[float, str], other: tuple[float, str]) -> str:
    """Return the differences between the results of two frameworks, as text: "loss 1e-07, gradients 3e-06".

    A result is a pair of the loss and the path of an .npz file with gradients.

    Raises:
        ValueError: the losses differ by more than `LOSS`, or the gradients of a parameter by more than `GRADIENT`. The
            message has the number of the parameter.
    """
    off = abs(reference[0] - other[0]) / max(abs(reference[0]), 1e-12)
    with np.load(reference[1]) as expected, np.load(other[1]) as got:
        if len(expected) != len(got):
            raise ValueError(f"{who}: expected {len(expected)} gradients, got {len(got)}")
        floor = SMALLEST * max(float(np.abs(gradient).max(initial=0.0)) for gradient in expected.values())
        errors = []
        for index, (a, b) in enumerate(zip(expected.values(), got.values(), strict=True)):
            if a.shape != b.shape:
                raise ValueError(f"{who}: the gradient of parameter {index} is {b.shape}, expected {a.shape}")
            scale = max(float(np.abs(a).max(initial=0.0)), floor)
            errors.append(float(np.abs(a - b).max(initial=0.0)) / (scale or 1.0))
    where = int(np.argmax(errors))  # of one that is not a number, if there is one
    worst = errors[where]
    if not (off <= LOSS and worst <= GRADIENT):
        raise ValueError(
            f"{who}: loss {other[0]:.7g} instead of {reference[0]:.7g} (relative {off:.1e}, at most {LOSS:g}); "
            f"gradients off by {worst:.1e} (at most {GRADIENT:g}) at parameter {where}; only what agrees is timed"
        )
    return f"loss {off:.0e}, gradients {worst:.0e}"
