"""Steps of optimizers by own kernels, one launch for a parameter with all of its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flnb_backends.tensor.cuda.base import CudaBuffers
from flnb_backends.tensor.cuda.rows import accumulator, kernel_types

if TYPE_CHECKING:
    from flnb_backends.tensor.cuda.base import Buffer

__all__ = ["OptimizerSteps"]


class OptimizerSteps(CudaBuffers):
    """Algorithms of `flnb.optim`: methods of the cuda backend, which write all buffers but the gradient."""

    def sgd_update(self, gradient: Buffer, data: Buffer, *rest: Buffer | float) -> None:
        """Make a step of `flnb.optim.SGD` or `NAG`; ``rest`` is the velocity, if there is one, and the numbers."""
        *velocity, shrink, decay, rate, momentum, nesterov = rest
        self._step("sgd", 1, gradient, (data, *velocity), (shrink, decay, rate, momentum), bool(nesterov))

    def adam_update(self, gradient: Buffer, data: Buffer, *rest: Buffer | float) -> None:
        """Make a step of `flnb.optim.Adam`, `AdamW` or `AMSgrad`; ``rest`` is the state's buffers and the numbers."""
        self._step("adam", 3, gradient, (data, *rest[:-6]), rest[-6:])

    def _step(
        self, name: str, slots: int, gradient: Buffer, written: tuple[Buffer, ...], numbers: tuple[float, ...],
        *flags: bool,
    ) -> None:  # fmt: skip
        """Launch a kernel that takes as many slots of state, null where there is none, and write its results back."""
        arrays = [self.contiguous(x) for x in written]
        given = [*arrays, *[0] * (1 + slots - len(arrays))]
        scalars = [accumulator(gradient.dtype).type(number) for number in numbers]
        self.launcher.launch_each(
            "optimizers", name, kernel_types(gradient.dtype), gradient.size, self.contiguous(gradient), *given,
            *scalars, *[np.bool_(flag) for flag in flags], gradient.size,
        )  # fmt: skip
        for array, target in zip(arrays, written, strict=True):
            self.finished(array, target)
