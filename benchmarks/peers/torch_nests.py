"""torch's contestant for `benchmarks.nests`: its eager kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.nests import COLUMNS, DROPPED, IMAGES, Kernels, arrays

__all__ = ["TorchKernels"]


class TorchKernels(Kernels):
    """The cases of `benchmarks.nests`, computed by torch eager on one thread; Adam is torch's fused version."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        x, y, z = map(torch.from_numpy, arrays())
        bias = y[0].clone()
        images, gradient = x.reshape(IMAGES), y.reshape(IMAGES)
        batch_norm, dropout = torch.nn.BatchNorm2d(IMAGES[1]), torch.nn.Dropout(DROPPED)
        parameter = torch.nn.Parameter(z.clone())
        parameter.grad = x.clone()
        optimizer = torch.optim.Adam([parameter], lr=1e-3, fused=True)

        def normalised() -> list[Any]:
            v = images.detach().requires_grad_()
            batch_norm.zero_grad()
            made = functional.relu(batch_norm(v))
            made.backward(gradient)
            return [made, v.grad, batch_norm.weight.grad, batch_norm.bias.grad]

        def adam() -> Any:
            optimizer.step()
            return parameter

        self.cases = {
            "gelu": lambda: functional.gelu(x),
            "bias + residual, relu": lambda: functional.relu(x + bias + z),
            "layer norm": lambda: functional.layer_norm(x, (COLUMNS,), bias, bias),
            "softmax": lambda: functional.softmax(x, -1),
            "batch norm + relu, both ways": normalised,
            "dropout": lambda: dropout(x),
            "Adam": adam,
            "a + b * c": lambda: x + y * z,
        }

    def results(self, case: str) -> list[Any]:
        for _ in range(3):
            made = self.cases[case]()
        return [np.array(x.detach()) for x in (made if isinstance(made, list) else [made])]
