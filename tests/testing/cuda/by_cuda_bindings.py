"""Use the library libcuda.so.1 by NVIDIA's cuda.bindings: `test_abi` puts the emulated device in its place."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda


def got(result: Any) -> Any:
    """What a call returns behind its status, which must be success."""
    status, *values = result
    assert status == cuda.CUresult.CUDA_SUCCESS, status
    return values[0] if len(values) == 1 else values


def main(image: bytes) -> None:
    got(cuda.cuInit(0))
    assert got(cuda.cuDeviceGetCount()) == 2
    device = got(cuda.cuDeviceGet(0))
    assert got(cuda.cuDeviceGetName(100, device)).partition(b"\0")[0] == b"flnb emulated device (on the CPU)"
    major = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    warp = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_WARP_SIZE
    assert [got(cuda.cuDeviceGetAttribute(each, device)) for each in (major, warp)] == [9, 32]
    got(cuda.cuCtxSetCurrent(got(cuda.cuDevicePrimaryCtxRetain(device))))
    assert int(got(cuda.cuCtxGetDevice())) == 0

    kernel = got(cuda.cuModuleGetFunction(got(cuda.cuModuleLoadData(image)), b"scale"))
    x, y = np.arange(256, dtype=np.float32), np.empty(256, np.float32)
    before = got(cuda.cuMemGetInfo())[0]
    source, result = got(cuda.cuMemAlloc(1024)), got(cuda.cuMemAlloc(1024))
    assert before - got(cuda.cuMemGetInfo())[0] == 2048
    pinned = got(cuda.cuMemAllocHost(1024))
    ctypes.memmove(pinned, x.ctypes.data, 1024)
    one, other = (got(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(2))
    begin, end = (got(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DEFAULT)) for _ in range(2))
    got(cuda.cuEventRecord(begin, one))
    got(cuda.cuMemcpyHtoDAsync(source, pinned, 1024, one))
    got(cuda.cuEventRecord(end, one))
    got(cuda.cuStreamWaitEvent(other, end, 0))
    types = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_int
    values = int(source), int(result), 2.0, 256
    got(cuda.cuLaunchKernel(kernel, 2, 1, 1, 128, 1, 1, 0, other, (values, types), 0))
    got(cuda.cuMemcpyDtoHAsync(y.ctypes.data, result, 1024, other))
    got(cuda.cuStreamSynchronize(other))
    assert np.array_equal(y, 2 * x)
    got(cuda.cuEventSynchronize(end))
    assert got(cuda.cuEventQuery(end)) == []
    assert got(cuda.cuEventElapsedTime(begin, end)) >= 0
    got(cuda.cuMemFreeHost(pinned))

    got(cuda.cuStreamBeginCapture(one, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    got(cuda.cuLaunchKernel(kernel, 2, 1, 1, 128, 1, 1, 0, one, ((int(result), int(result), 2.0, 256), types), 0))
    assert cuda.cuStreamSynchronize(other)[0] == cuda.CUresult.CUDA_SUCCESS
    graph = got(cuda.cuStreamEndCapture(one))
    instance = got(cuda.cuGraphInstantiate(graph, 0))
    for _ in range(2):
        got(cuda.cuGraphLaunch(instance, other))
    got(cuda.cuMemcpyDtoHAsync(y.ctypes.data, result, 1024, other))
    got(cuda.cuStreamSynchronize(other))
    assert np.array_equal(y, 8 * x)
    got(cuda.cuGraphExecDestroy(instance))
    got(cuda.cuGraphDestroy(graph))

    assert cuda.cuMemAlloc(1 << 40)[0] == cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert cuda.cuModuleGetFunction(got(cuda.cuModuleLoadData(image)), b"no such")[0].name == "CUDA_ERROR_NOT_FOUND"
    assert got(cuda.cuGetErrorString(cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY)) == b"out of memory"
    got(cuda.cuLaunchKernel(kernel, 2, 1, 1, 256, 1, 1, 0, one, ((int(source), int(result), 2.0, 512), types), 0))
    assert cuda.cuCtxSynchronize()[0] == cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    assert cuda.cuMemAlloc(4)[0] == cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS  # it stays
    print("every call was answered as documented")


main(sys.argv[1].encode() + b"\0")
