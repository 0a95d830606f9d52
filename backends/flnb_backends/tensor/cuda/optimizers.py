"""Optimizer steps on a CUDA device: one kernel launch updates a parameter and all of its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flnb_backends.tensor.cuda.base import CudaBuffers
from flnb_backends.tensor.cuda.rows import accumulator, kernel_types

if TYPE_CHECKING:
    from flnb_backends.tensor.cuda.base import Buffer


class OptimizerSteps(CudaBuffers):
    """The methods of the cuda backend for `flnb.optim`, which write to all of their buffers except the gradient."""

    def sgd_update(self, gradient: Buffer, data: Buffer, *rest: Buffer | float) -> None:
        """Do one step of `flnb.optim.SGD` or `NAG`; ``rest`` is the velocity, if any, and the coefficients."""
        *velocity, shrink, decay, rate, momentum, nesterov = rest
        self._step("sgd", 1, gradient, (data, *velocity), (shrink, decay, rate, momentum), bool(nesterov))

    def adam_update(self, gradient: Buffer, data: Buffer, *rest: Buffer | float) -> None:
        """Do one step of `flnb.optim.Adam`, `AdamW` or `AMSgrad`; ``rest`` is the state and the six coefficients."""
        self._step("adam", 3, gradient, (data, *rest[:-6]), rest[-6:])

    def _step(
        self, name: str, slots: int, gradient: Buffer, written: tuple[Buffer, ...], numbers: tuple[float, ...],
        *flags: bool,
    ) -> None:  # fmt: skip
        """Launch the kernel ``name`` on contiguous buffers, and copy results back to buffers that are not contiguous.

        ``written`` is the parameter followed by its state. The kernel takes ``slots`` state buffers, null if missing,
        then the coefficients ``numbers`` and the ``flags``.
        """
        arrays = [self.contiguous(x) for x in written]
        given = [*arrays, *[0] * (1 + slots - len(arrays))]
        scalars = [accumulator(gradient.dtype).type(number) for number in numbers]
        self.launcher.launch_each(
            "optimizers", name, kernel_types(gradient.dtype), gradient.size, self.contiguous(gradient), *given,
            *scalars, *[np.bool_(flag) for flag in flags], gradient.size,
        )  # fmt: skip
        for array, target in zip(arrays, written, strict=True):
            self.finished(array, target)
