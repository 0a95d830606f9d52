"""Gradients that fused programs compute, beside finite differences of the fused forward pass, over the op table.

All samples: ``python -m tests.graph.test_gradients_of_programs``; here are some.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flnb
from flnb.testing import samples

SAMPLES = [s for s in samples() if any(a.dtype == np.float64 and a.size for a in s.inputs)]
STEP = 1e-6
"""The distance of the points between which the difference is taken, on both sides."""
DRAWN = random.Random(14).sample(SAMPLES, 60)
DRAWN += [s for s in SAMPLES if str(s) == "flip-no dimension"]  # whose view once was none


def functions(sample: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A sample's weighted sum, and the gradients of that by the inputs that are floating-point numbers."""

    def total(*given: Any) -> Any:
        y = sample.function(*given)
        if y.dtype.kind == "c":
            y = flnb.real(y) + 0.5 * flnb.imag(y)
        weights = np.cos(np.arange(y.size) + 1.0).reshape(y.shape)
        return (y * flnb.asarray(weights)).sum()

    def gradients(*given: Any) -> Any:
        variables = [flnb.Variable(x) if x.dtype == np.float64 else x for x in given]
        total(*variables).backward()
        return [v.grad for v in variables if isinstance(v, flnb.Variable)]

    return total, gradients


def check(sample: Any) -> bool:
    """Compare a sample's gradients by a program with differences and with eager ones; returns whether it has some."""
    total, gradients = functions(sample)
    given = [flnb.asarray(a) for a in sample.inputs]
    y = sample.function(*[flnb.Variable(x) if x.dtype == np.float64 else x for x in given])
    if not getattr(y, "requires_grad", False):
        return False
    expected = gradients(*given)
    jitted, forward = flnb.jit(gradients), flnb.jit(total)
    for _ in range(3):
        got = jitted(*given)
    assert jitted.programs, f"{sample} is no program"
    rng = np.random.default_rng(0)
    directions = [rng.standard_normal(a.shape) if a.dtype == np.float64 else None for a in sample.inputs]
    slope = 0.0
    for g, known, d in zip(got, expected, (d for d in directions if d is not None), strict=True):
        assert (g is None) == (known is None), sample
        if g is not None:
            size = max(1.0, float(np.abs(known.numpy()).max(initial=0.0)))
            np.testing.assert_allclose(g.numpy(), known.numpy(), rtol=1e-9, atol=1e-11 * size, err_msg=str(sample))
            slope += float((g.numpy() * d).sum())
    ends = []
    for sign in (1.0, -1.0):
        moved = [a if d is None else a + sign * STEP * d for a, d in zip(sample.inputs, directions, strict=True)]
        for _ in range(3):
            y = forward(*[flnb.asarray(a) for a in moved])
        ends.append(y.item())
    assert forward.programs, f"{sample} is no program"
    measured = (ends[0] - ends[1]) / (2 * STEP)
    scale = max(1.0, abs(slope), abs(ends[0]))
    assert abs(measured - slope) <= 2e-7 * scale, f"{sample}: {slope} by the program, {measured} by differences"
    return True


@pytest.mark.parametrize("sample", DRAWN, ids=str)
def test_gradients_of_a_fused_program(sample: Any) -> None:
    check(sample)


@pytest.mark.parametrize("dtype", ["float16", "complex64"])
def test_a_gradient_in_a_dtype_without_machine_code_is_computed_by_the_backend(dtype):
    def gradient(x):
        return flnb.grad(lambda x: flnb.real(x * x).sum())(x)

    x = flnb.asarray([[1.0, 2.0], [3.0, 4.0]], dtype=dtype)
    compiled = flnb.jit(gradient)
    for _ in range(3):  # the ones with which backward begins are a constant of this dtype
        assert compiled(x).tolist() == [[2.0, 4.0], [6.0, 8.0]]


if __name__ == "__main__":
    counts = {True: 0, False: 0}
    failures = []
    for each in SAMPLES:
        try:
            counts[check(each)] += 1
        except Exception as error:
            failures.append(str(each))
            print(f"{each}: {type(error).__name__}: {' '.join(str(error).split())[:240]}", flush=True)
    print(f"{counts[True]} samples agree, {counts[False]} have no gradient, {len(failures)} failed: {failures}")
    sys.exit(bool(failures))
