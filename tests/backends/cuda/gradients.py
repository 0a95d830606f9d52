"""Gradients of the cuda backend by finite differences: ``python -m tests.backends.cuda.gradients``, half an hour."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

import flnb
from flnb.testing import samples, verify_grad
from flnb.testing.cuda import emulate

if TYPE_CHECKING:
    from flnb.testing.sample import Sample

ABSENT = {
    "cholesky", "det", "eigh", "eigvalsh", "inv", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
    "fftn", "ifftn", "irfftn", "rfftn",
}  # fmt: skip
"""Ops that need cuSOLVER or cuFFT, which the emulated device lacks."""
CHECKED = [
    s for s in samples()
    if any(a.dtype == np.float64 for a in s.inputs) and s.op not in ABSENT and s.note != "power -2"  # an inverse
]  # fmt: skip
"""The samples that have a gradient."""


def check_gradients(sample: Sample) -> None:
    """Compare a sample's gradients of first and second order."""
    with flnb.use_backend("cuda"):
        verify_grad(sample.function, sample.inputs, tolerance=1e-8)


def main() -> int:
    """Check every sample's; returns whether one is wrong."""
    device, wrong = emulate(), 0
    for sample in CHECKED:
        try:
            check_gradients(sample)
        except Exception as error:
            wrong += 1
            print(f"{sample}: {error}")
    print(f"gradients of {len(CHECKED)} samples, {wrong} wrong; {device.count('launches')} launches")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
