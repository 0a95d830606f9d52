"""What warps ask of memory in kernels that do not go along rows: counts that hold on any device.

A request of 32 float32 side by side is one of 4 sectors, of 32 int64 one of 8; bank conflicts are turns that it takes
beyond the first. `test_whole` and `test_reductions` have those of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda.convolution import Convolution
from flnb_backends.tensor.cuda.pooling import Pooling
from flnb_backends.tensor.cuda.random import RandomNumbers

from tests.backends.cuda import test_indexing

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.testing.cuda import EmulatedDevice

WHOLE = ("slice", None, None, None)
PLACING = (1, 1), (1, 1), (1, 1), 1
X = np.random.default_rng(0).standard_normal((2, 4, 32, 32), np.float32)
ROWS, MASK = X.reshape(2, 4096), (X > 0.5).reshape(2, 4096).astype(np.float32)


class OnDevice(test_indexing.OnDevice, Pooling, Convolution, RandomNumbers):  # type: ignore[misc]
    """The methods, over arrays of the tests."""


def pooled(b: Any) -> None:
    b.max_pool2d(b.put(X), (2, 2), (2, 2))
    b.max_pool2d_grad(b.put(X[:, :, ::2, ::2].copy()), b.put(X), (2, 2), (2, 2))
    b.max_pool2d_select(b.put(X), b.put(X), (2, 2), (2, 2))


def convolved(b: Any) -> None:
    weight = b.put(np.ones((4, 4, 3, 3), np.float32))
    b.conv2d(b.put(X), weight, *PLACING)
    b.conv2d_input_grad(b.put(X), weight, *PLACING, (32, 32))


def drawn(b: Any) -> None:
    for name in ("random_uniform", "random_normal"):
        getattr(b, name)(0, 1, np.random.default_rng(0), b.new((4096,), X.dtype))


def made(b: Any) -> None:
    b.arange(0, 1, b.new((4096,), X.dtype))
    b.eye(0, b.new((64, 64), X.dtype))
    b.place(b.put(X.reshape(256, 32)), (512, 32), (("slice", None, None, 2), WHOLE))


def ordered(b: Any) -> None:
    b.sort(b.put(ROWS), 1, False, True)
    b.argsort(b.put(ROWS), 1, False, True)
    b.searchsorted(b.put(np.sort(ROWS[0])), b.put(ROWS), "left")
    b.nonzero(b.put(MASK), int(MASK.sum()))


def scattered(b: Any) -> None:
    b.scatter_add(b.put(X.reshape(128, 64)), b.put(np.arange(128) * 7 % 50), (50, 64), (("index", 0), WHOLE), None)


CALLS: list[tuple[Callable[[Any], None], dict[str, float]]] = [  # and each kernel's most sectors a request
    (made, {"arange": 4, "eye": 4, "place": 4}),
    (drawn, {"random_uniform": 4, "random_normal": 4}),
    (convolved, {"im2col": 4.3, "swap_leading": 4, "col2im": 5}),  # columns of shifted windows straddle sectors
    (pooled, {"max_pool": 7.2, "max_places": 8, "take_places": 9, "add_at_places": 3.4}),  # every other column
    (
        ordered,
        {"sort_pieces": 5.34, "write_places": 8, "merge_runs": 5, "write_values": 16, "searchsorted": 18},
    ),  # by value
    (ordered, {"count_nonzero": 4, "add_before": 8, "write_nonzero": 3}),
    (scattered, {"add_axis": 8, "add_rows": 1.6}),  # a warp reads one number of a row, 32 of its elements
]


@pytest.mark.parametrize(("call", "most"), CALLS, ids=lambda given: " ".join(given) if isinstance(given, dict) else "")
def test_threads_side_by_side_ask_for_neighbours(
    call: Callable[[Any], None], most: dict[str, float], device: EmulatedDevice
) -> None:
    call(OnDevice(device))
    device.driver.synchronize()
    traffic = {kernel: device.traffic(kernel) for kernel in most}
    found = {kernel: round(each.sectors_per_request, 2) for kernel, each in traffic.items()}
    print(found)
    assert all(0.8 * most[kernel] <= sectors <= most[kernel] for kernel, sectors in found.items()), found
    assert all(each.conflicts == 0 for each in traffic.values())
