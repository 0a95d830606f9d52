"""Convolution by cuDNN through NVIDIA's cudnn-frontend, where both are installed. Unmeasured: no GPU has run it."""

from __future__ import annotations

import threading
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.dispatch import devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb_backends.tensor.cuda.base import Buffer
    from flnb_backends.tensor.cuda.gpu import Gpu

Extents = tuple[int, ...]
TYPES = {"e": ("HALF", "FLOAT"), "f": ("FLOAT", "FLOAT"), "d": ("DOUBLE", "DOUBLE")}
"""cuDNN's names of the element type and the type of sums, by the character of a dtype."""
OPERANDS = {"conv_fprop": ("image", "weight"), "conv_wgrad": ("image", "loss"), "conv_dgrad": ("loss", "filter")}
NUMBERS = 1, 2, 3
"""The ids of a graph's tensors: the two operands and the result."""


def cudnn_of(gpu: Gpu, tf32: bool) -> Cudnn | None:
    """Return the `Cudnn` of a device; None if the device is emulated, or cuDNN or its frontend is not installed.

    ``tf32`` is the setting of `Cudnn`.
    """
    if gpu.driver.emulated is not None:
        return None
    try:
        module = import_module("cudnn")
        module.backend_version()
    except (ImportError, OSError, RuntimeError):  # no frontend, or no library that it could open
        return None
    return Cudnn(module, gpu, tf32)


class Cudnn:
    """Computes convolutions on one device, by execution plans that are built at the first call with given shapes.

    Each thread has its own handle and plans, because a cuDNN handle may be used by one thread at a time.

    Args:
        module: the module ``cudnn`` of cudnn-frontend.
        gpu: the device, whose active memory manager provides the workspace.
        tf32: whether float32 convolutions may use TF32 tensor cores, which round inputs to 10 bits.
    """

    def __init__(self, module: Any, gpu: Gpu, tf32: bool = False) -> None:
        self._module, self._gpu, self._tf32 = module, gpu, tf32
        self._here = threading.local()

    def convolve(
        self, kind: str, a: Buffer, b: Buffer, y: Buffer, stride: Extents, padding: Extents, dilation: Extents
    ) -> bool:
        """Queue a convolution or its gradient in the current stream; returns False if cuDNN does not support it.

        Args:
            kind: "conv_fprop" (convolution), "conv_wgrad" (gradient of the weight) or "conv_dgrad" (of the image).
            a, b: the operands, which `OPERANDS` names for each kind; images are (N, C, *extents), weights are
                (O, C / groups, *kernel).
            y: the buffer for the result; a, b and y are C-contiguous.
            stride, padding, dilation: one number for each spatial dimension.
        """
        if y.dtype.char not in TYPES or not (a.size and b.size and y.size):
            return False
        here, gpu = self._here.__dict__, self._gpu
        if not here:
            here.update(handle=self._module.create_handle(), plans={})
        key = kind, y.dtype.char, a.shape, b.shape, y.shape, stride, padding, dilation
        if key not in here["plans"]:
            here["plans"][key] = self._plan(here["handle"], *key)
        graph = here["plans"][key]
        if graph is None:
            return False
        self._module.set_stream(handle=here["handle"], stream=gpu.stream())
        workspace = gpu.cupy.empty(graph.get_workspace_size(), np.uint8)
        task = devices.begin(gpu.driver, gpu.stream())
        addresses = [x.data.ptr for x in (a, b, y)]
        graph.execute(dict(zip(NUMBERS, addresses, strict=True)), workspace.data.ptr, handle=here["handle"])
        if task is not None:
            task.launched(f"cudnn {kind}", addresses=addresses)
        return True

    def _plan(self, handle: Any, kind: str, char: str, *signature: Extents) -> Any:
        """Build a convolution's graph and the plan that cuDNN's heuristics recommend; None if there is none.

        ``handle`` is the thread's cuDNN handle, ``kind`` that of `convolve`, ``char`` the dtype's character.
        ``signature`` consists of the shapes of a, b and y, the stride, padding and dilation.
        """
        module = self._module
        try:
            graph = self.graph(handle, kind, char, *signature)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])
            if char == "f":
                notes = module.numerical_note
                graph.deselect_numeric_notes([notes.DOWN_CONVERT_INPUTS, *([] if self._tf32 else [notes.TENSOR_CORE])])
            graph.check_support()
            graph.build_plans()
        except module.cudnnGraphNotSupportedError:
            return None
        return graph

    def graph(
        self, handle: Any, kind: str, char: str, a: Extents, b: Extents, y: Extents, stride: Extents, padding: Extents,
        dilation: Extents,
    ) -> Any:  # fmt: skip
        """Return cuDNN's graph of a convolution, given the shapes a, b and y; cuDNN infers groups from the channels."""
        elements, sums = (getattr(self._module.data_type, name) for name in TYPES[char])
        graph = self._module.pygraph(
            name=kind, handle=handle, io_data_type=elements, intermediate_data_type=sums, compute_data_type=sums
        )
        operands = {
            name: graph.tensor(name=name, dim=_at_least_2d(x), stride=_strides(x), data_type=elements, uid=uid)
            for uid, name, x in zip(NUMBERS, OPERANDS[kind], (a, b), strict=False)
        }
        placing = {
            "padding": [*[0] * (2 - len(padding)), *padding],
            "stride": [*[1] * (2 - len(stride)), *stride],
            "dilation": [*[1] * (2 - len(dilation)), *dilation],
        }
        result = getattr(graph, kind)(**operands, **placing)
        result.set_output(True).set_data_type(elements).set_uid(NUMBERS[-1])
        result.set_dim(_at_least_2d(y)).set_stride(_strides(y))
        return graph


def _at_least_2d(shape: Sequence[int]) -> list[int]:
    """Return a shape with at least two spatial dimensions, as cuDNN requires: (N, C, L) becomes (N, C, 1, L)."""
    return [*shape[:2], *[1] * (4 - len(shape)), *shape[2:]]


def _strides(shape: Sequence[int]) -> list[int]:
    """Return the strides, in elements, of a C-contiguous array of the shape that `_at_least_2d` returns."""
    return list(accumulate(_at_least_2d(shape)[:0:-1], lambda a, b: a * b, initial=1))[::-1]
