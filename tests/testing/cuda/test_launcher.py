"""flnb's own kernels on the emulated device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from flnb_backends.tensor.cuda.launcher import Launcher

if TYPE_CHECKING:
    from flnb.testing.cuda import EmulatedDevice
    from tests.testing.cuda.arrays import Arrays


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
def test_a_kernel_is_compiled_for_the_dtype_of_a_call(dtype: str, device: EmulatedDevice, arrays: Arrays) -> None:
    y = arrays.empty(600)
    types, numbers = {"T": np.dtype(dtype), "A": np.dtype(np.float64)}, (np.float64(2), np.float64(0.5))
    Launcher(device.driver).launch("creation", "arange", types, (2,), (64,), y, 300, *numbers)
    np.testing.assert_array_equal(arrays.get(y, 300, dtype=dtype), (2 + 0.5 * np.arange(300)).astype(dtype))
    assert device.reports == []
