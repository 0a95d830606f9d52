"""Activation functions on a CUDA device, one kernel each; `flnb_backends.tensor.whole` describes the methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_backends.tensor.cuda.base import CudaBuffers
from flnb_backends.tensor.cuda.rows import accumulator, kernel_types

if TYPE_CHECKING:
    from flnb_backends.tensor.cuda.base import Buffer, Out


class Activations(CudaBuffers):
    """Activation functions and their gradients: methods of the cuda backend."""

    def relu(self, x: Buffer, out: Out = None) -> tuple[Buffer, ...]:
        return self._elementwise("relu", (x,), out)

    def relu_pull(self, g: Buffer, x: None, y: Buffer, out: Out = None) -> tuple[Buffer, ...]:
        return self._elementwise("relu_pull", (g, y), out)

    def sigmoid(self, x: Buffer, out: Out = None) -> tuple[Buffer, ...]:
        return self._elementwise("sigmoid", (x,), out)

    def sigmoid_pull(self, g: Buffer, x: None, y: Buffer, out: Out = None) -> tuple[Buffer, ...]:
        return self._elementwise("sigmoid_pull", (g, y), out)

    def swish(self, x: Buffer, beta: float, out: Out = None) -> tuple[Buffer, ...]:
        return self._elementwise("swish", (x,), out, 2, accumulator(x.dtype).type(beta))

    def swish_pull(
        self, g: Buffer, x: Any, gate: Buffer, y: Buffer, beta: float, out: Out = None
    ) -> tuple[Buffer, ...]:
        return self._elementwise("swish_pull", (g, gate, y), out, 1, accumulator(y.dtype).type(beta))

    def gelu(self, x: Buffer, out: Out = None) -> tuple[Buffer, ...]:
        return self._elementwise("gelu", (x,), out, 2)

    def gelu_pull(self, g: Buffer, x: Buffer, below: Buffer, y: None, out: Out = None) -> tuple[Buffer, ...]:
        return self._elementwise("gelu_pull", (g, x, below), out)

    def gelu_tanh(self, x: Buffer, out: Out = None) -> tuple[Buffer, ...]:
        return self._elementwise("gelu_tanh", (x,), out, 2)

    def gelu_tanh_pull(self, g: Buffer, x: Buffer, gate: Buffer, y: None, out: Out = None) -> tuple[Buffer, ...]:
        return self._elementwise("gelu_tanh_pull", (g, x, gate), out)

    def _elementwise(
        self, name: str, given: tuple[Buffer, ...], out: Out, results: int = 1, *numbers: Any
    ) -> tuple[Buffer, ...]:
        x = given[-1]
        made = tuple([self.target(out, i, x.shape, x.dtype) for i in range(results)])
        arguments = *map(self.contiguous, given), *made, *numbers, x.size
        self.launcher.launch_each("activations", name, kernel_types(x.dtype), x.size, *arguments)
        return made
