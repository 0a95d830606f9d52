"""A stand-in of cudnn-frontend: its calls and their order, over NumPy in the streams of the emulated device."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
from flnb_backends.tensor.numpy import NumpyBackend

DTYPES = {"HALF": np.float16, "FLOAT": np.float32, "DOUBLE": np.float64}
STAGES = "made", "validated", "lowered", "planned", "supported", "built"
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
WORKSPACE = 1000
numpy = NumpyBackend()


class cudnnGraphNotSupportedError(Exception):
    """What the real module raises for a graph that cuDNN has no plan for."""


class Tensor:
    def __init__(self, dim: Any = None, stride: Any = None, data_type: Any = None, uid: int = -1) -> None:
        self.dim, self.stride, self.data_type, self.uid, self.output = dim, stride, data_type, uid, False

    def set_output(self, value: bool) -> Tensor:
        self.output = value
        return self

    def set_data_type(self, value: Any) -> Tensor:
        self.data_type = value
        return self

    def set_uid(self, value: int) -> Tensor:
        self.uid = value
        return self

    def set_dim(self, value: Any) -> Tensor:
        self.dim = value
        return self

    def set_stride(self, value: Any) -> Tensor:
        self.stride = value
        return self


class Frontend:
    """The module. It lists what was asked of it, and refuses graphs whose images have a number of axes.

    Attributes:
        executed: kind and stream of every graph that ran.
        built: how many plans were made; ``deselected`` the notes that they were made without.
    """

    cudnnGraphNotSupportedError = cudnnGraphNotSupportedError
    data_type = SimpleNamespace(**{name: name for name in DTYPES})
    heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
    numerical_note = SimpleNamespace(TENSOR_CORE="TENSOR_CORE", DOWN_CONVERT_INPUTS="DOWN_CONVERT_INPUTS")

    def __init__(self, path: str, refused: int = 0) -> None:
        self.device, self.refused = ctypes.CDLL(path), refused
        self.device.cuLaunchHostFunc.argtypes = [ctypes.c_void_p, HOST_FUNCTION, ctypes.c_void_p]
        self.device.flnb_device_touch.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.executed: list[tuple[str, int]] = []
        self.built, self.deselected = 0, []
        self.functions: list[Any] = []  # C holds no reference

    def backend_version(self) -> int:
        return 91400

    def create_handle(self) -> Any:
        return SimpleNamespace(stream=0)

    def set_stream(self, handle: Any, stream: int) -> None:
        handle.stream = stream

    def pygraph(
        self, name: str, io_data_type: Any, intermediate_data_type: Any, compute_data_type: Any, handle: Any
    ) -> Graph:
        assert compute_data_type == ("DOUBLE" if io_data_type == "DOUBLE" else "FLOAT")
        return Graph(self)


class Graph:
    def __init__(self, module: Frontend) -> None:
        self.module, self.stage = module, 0
        self.tensors: list[Tensor] = []

    def _step(self, to: str) -> None:
        assert STAGES[self.stage + 1] == to, f"{to} after {STAGES[self.stage]}"
        self.stage += 1

    def tensor(self, name: str, dim: Any, stride: Any, data_type: Any, uid: int) -> Tensor:
        self.tensors.append(Tensor(dim, stride, data_type, uid))
        return self.tensors[-1]

    def conv_fprop(self, image: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any) -> Tensor:
        return self._convolution("conv_fprop", (image, weight), padding, stride, dilation)

    def conv_dgrad(self, loss: Tensor, filter: Tensor, padding: Any, stride: Any, dilation: Any) -> Tensor:
        return self._convolution("conv_dgrad", (loss, filter), padding, stride, dilation)

    def conv_wgrad(self, image: Tensor, loss: Tensor, padding: Any, stride: Any, dilation: Any) -> Tensor:
        return self._convolution("conv_wgrad", (image, loss), padding, stride, dilation)

    def _convolution(self, kind: str, operands: Any, padding: Any, stride: Any, dilation: Any) -> Tensor:
        self.kind, self.placing = kind, (tuple(stride), tuple(padding), tuple(dilation))
        self.tensors = [*operands, Tensor()]
        return self.tensors[-1]

    def validate(self) -> None:
        self._step("validated")
        for tensor in self.tensors:
            packed = np.empty(tensor.dim, np.int8).strides
            assert tuple(tensor.stride) == packed
            assert tensor.data_type in DTYPES
        assert self.tensors[-1].output
        assert len({tensor.uid for tensor in self.tensors}) == 3
        a, b, y = (tuple(tensor.dim) for tensor in self.tensors)
        x, w, g = {"conv_fprop": (a, b, y), "conv_dgrad": (y, b, a), "conv_wgrad": (a, y, b)}[self.kind]
        self.groups = x[1] // w[1]
        assert len(x) == len(w) == len(g) in (4, 5)
        assert (x[0], x[1], w[0]) == (g[0], w[1] * self.groups, g[1])
        fit = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(x[2:], w[2:], *self.placing, strict=True)
        ]
        assert list(g[2:]) == fit

    def build_operation_graph(self) -> None:
        self._step("lowered")

    def create_execution_plans(self, heuristics: Any) -> None:
        self._step("planned")

    def deselect_numeric_notes(self, notes: Any) -> None:
        assert STAGES[self.stage] == "planned"
        self.module.deselected.append(notes)

    def check_support(self) -> None:
        self._step("supported")
        if len(self.tensors[0].dim) == self.module.refused:
            raise cudnnGraphNotSupportedError("no engine")

    def build_plans(self) -> None:
        self._step("built")
        self.module.built += 1

    def get_workspace_size(self) -> int:
        return WORKSPACE

    def execute(self, tensors: dict[int, int], workspace: int, handle: Any) -> None:
        """Queue what NumPy computes of the operands' memory, and writes to the result's and to the workspace."""
        assert STAGES[self.stage] == "built"
        self.module.executed.append((self.kind, handle.stream))
        dtypes = [np.dtype(DTYPES[tensor.data_type]) for tensor in self.tensors]
        places = [
            (tensors[tensor.uid], tuple(tensor.dim), dtype) for tensor, dtype in zip(self.tensors, dtypes, strict=True)
        ]

        def work(_: Any) -> None:
            for index, (address, shape, dtype) in enumerate(places):
                nbytes = int(np.prod(shape)) * dtype.itemsize
                self.module.device.flnb_device_touch(self.kind.encode(), address, nbytes, index == 2)
            self.module.device.flnb_device_touch(b"workspace", workspace, WORKSPACE, 1)
            ctypes.memset(workspace, 255, WORKSPACE)
            a, b, y = (
                np.frombuffer((ctypes.c_byte * (int(np.prod(shape)) * dtype.itemsize)).from_address(address), dtype)
                .reshape(shape) for address, shape, dtype in places
            )  # fmt: skip
            np.copyto(y, self._result(a, b, y.shape))

        self.module.functions.append(HOST_FUNCTION(work))
        assert self.module.device.cuLaunchHostFunc(handle.stream, self.module.functions[-1], None) == 0

    def _result(self, a: Any, b: Any, shape: Any) -> Any:
        if self.kind == "conv_fprop":
            return numpy.conv2d(a, b, *self.placing, self.groups)
        if self.kind == "conv_dgrad":
            return numpy.conv2d_input_grad(a, b, *self.placing, self.groups, shape[2:])
        return numpy.conv2d_weight_grad(b, a, *self.placing, self.groups, shape[2:])
