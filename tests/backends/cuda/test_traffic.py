"""Kernels that do not go along rows: what warps ask of memory, which holds on any device, and equal results.

A request of 32 float32 side by side is one of 4 sectors, of 32 int64 one of 8; bank conflicts are turns that it takes
beyond the first. `test_whole` and `test_reductions` have those of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flnb_backends.tensor.cuda import sorting
from flnb_backends.tensor.cuda.convolution import Convolution
from flnb_backends.tensor.cuda.optimizers import OptimizerSteps
from flnb_backends.tensor.cuda.pooling import Pooling
from flnb_backends.tensor.cuda.random import RandomNumbers

from tests.backends.cuda import test_indexing

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb.testing.cuda import EmulatedDevice

WHOLE = ("slice", None, None, None)
PLACING = (1, 1), (1, 1), (1, 1), 1


class OnDevice(test_indexing.OnDevice, Pooling, Convolution, RandomNumbers, OptimizerSteps):  # type: ignore[misc]
    """The methods, over arrays of the tests."""


def pooled(b: Any, x: Any) -> list[Any]:
    given, g, sizes = b.put(x), b.put(x[:, :, ::2, ::2].copy()), ((2, 2), (2, 2))
    return [b.max_pool2d(given, *sizes), b.max_pool2d_grad(g, given, *sizes), b.max_pool2d_select(given, given, *sizes)]


def convolved(b: Any, x: Any) -> list[Any]:
    weight = b.put(np.ones((4, 4, 3, 3), np.float32))
    return [
        b.conv2d(b.put(x), weight, *PLACING),
        b.conv2d_input_grad(b.put(x), weight, *PLACING, x.shape[2:]),
        b.conv2d_weight_grad(b.put(x), b.put(x), *PLACING, (3, 3)),
    ]


def drawn(b: Any, x: Any) -> list[Any]:
    names = "random_uniform", "random_normal"
    return [getattr(b, name)(0, 1, np.random.default_rng(0), b.new((x.size,), x.dtype)) for name in names]


def made(b: Any, x: Any) -> list[Any]:
    rows = x.size // 32
    numbers, diagonal = b.new((x.size,), x.dtype), b.new((rows, 32), x.dtype)
    placed = b.place(b.put(x.reshape(rows, 32)), (2 * rows, 32), (("slice", None, None, 2), WHOLE))
    return [b.arange(0, 1, numbers), b.eye(0, diagonal), placed]


def ordered(b: Any, x: Any) -> list[Any]:
    rows = x.reshape(2, -1)
    given, mask = b.put(rows), (rows > 0.5).astype(np.float32)
    return [
        b.sort(given, 1, False, True),
        b.argsort(given, 1, True, True),
        b.searchsorted(b.put(np.sort(rows[0])), given, "left"),
        b.nonzero(b.put(mask), int(mask.sum())),
    ]


def scattered(b: Any, x: Any) -> list[Any]:
    rows = x.size // 64
    index = b.put(np.arange(rows) * 7 % 5)
    return [b.scatter_add(b.put(x.reshape(rows, 64)), index, (5, 64), (("index", 0), WHOLE), None)]


def stepped(b: Any, x: Any) -> list[Any]:
    gradient, written = b.put(x), [b.put(x + number) for number in range(6)]
    b.sgd_update(gradient, *written[:2], 1.0, 0.1, 0.1, 0.9, 1.0)
    b.adam_update(gradient, *written[2:], 0.9, 0.0, 0.9, 0.99, 1e-8, 0.1)
    return written


CALLS: list[tuple[Callable[..., Any], dict[str, float]]] = [  # and each kernel's most sectors a request
    (made, {"arange": 4, "eye": 4, "place": 4}),
    (drawn, {"random_uniform": 4, "random_normal": 4}),
    (stepped, {"sgd": 4, "adam": 4}),
    (convolved, {"im2col": 4.3, "swap_leading": 4, "col2im": 5}),  # columns of shifted windows straddle sectors
    (pooled, {"max_pool": 7.2, "max_places": 8, "take_places": 9, "add_at_places": 3.4}),  # every other column
    (
        ordered,
        {
            "sort_pieces": 5.34, "write_places": 8, "merge_runs": 5, "count_nonzero": 4, "add_before": 8,
            "write_nonzero": 3, "write_values": 16, "searchsorted": 18,  # the last two go where values say
        },
    ),
    (scattered, {"add_axis": 8, "add_rows": 1.6}),  # a warp reads one number of a row, 32 of its elements
]  # fmt: skip
NAMES = [call.__name__ for call, _ in CALLS]


@pytest.mark.parametrize(("call", "most"), CALLS, ids=NAMES)
def test_threads_side_by_side_ask_for_neighbours(
    call: Callable[..., Any], most: dict[str, float], device: EmulatedDevice
) -> None:
    call(OnDevice(device), np.random.default_rng(0).standard_normal((2, 4, 32, 32), np.float32))
    device.driver.synchronize()
    traffic = {kernel: device.traffic(kernel) for kernel in most}
    found = {kernel: round(each.sectors_per_request, 2) for kernel, each in traffic.items()}
    assert all(0.8 * most[kernel] <= sectors <= most[kernel] for kernel, sectors in found.items()), found
    assert all(each.conflicts == 0 for each in traffic.values())


@pytest.mark.parametrize("call", [call for call, _ in CALLS], ids=NAMES)
def test_results_are_equal_to_the_last_bit_in_every_order(
    call: Callable[..., Any], device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of streams, blocks and threads: no kernel of these adds by atomics."""
    monkeypatch.setattr(sorting, "PIECE", 64)
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8), np.float32)
    device.begin("eager")
    wanted = [each.numpy() for each in call(OnDevice(device), x)]
    for order, seed in [("lazy", 0), *[("random", seed) for seed in range(6)]]:
        device.begin(order, seed)
        for found, each in zip(call(OnDevice(device), x), wanted, strict=True):
            np.testing.assert_array_equal(found.numpy(), each, strict=True)
        assert device.reports == []
